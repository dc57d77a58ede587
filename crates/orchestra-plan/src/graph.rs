//! Who reads from whom: names to places in the tables, cycles, order, and what is used. Knows no shapes.

use std::collections::{HashMap, HashSet};

use orchestra_core::shapes::MATRIX;
use orchestra_core::{SourceId, StageId};

use crate::cx::Cx;
use crate::diagnostics::Span;
use crate::fields::Spanned;
use crate::kind::{Draft, Writes};
use crate::matrix::{owner_of, values_of};
use crate::nearest::{suggestion, toml_key};
use crate::plan::Origin;
use crate::sinks::FAILURES;
use crate::workflow::{Link, StageNode, WorkflowTables};

/// Resolves every `from` and `model`, reports what is wrong with any, and sorts the tables.
pub(crate) fn resolve(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    find_failure_sinks(workflow, cx);
    resolve_models(workflow, cx);
    OriginNames::of(workflow, cx).resolve(workflow, cx);
    let order = order(&workflow.stages, cx);
    report_unused(workflow, cx);
    sort(workflow, order);
    cut_long_rows(workflow, cx);
}

/// Sinks that read from `failures`, where no source and no stage is called so, write the failures of the run.
fn find_failure_sinks(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    let sources = workflow.sources.iter().map(|source| &source.name);
    if sources.chain(workflow.stages.iter().map(|stage| &stage.name)).any(|name| name.value == FAILURES) {
        return;
    }
    for sink in &mut workflow.sinks {
        let Some(from) = sink.from.iter().find(|from| from.value == FAILURES) else { continue };
        let is_each = sink.kind.as_ref().is_some_and(|kind| kind.writes() == Writes::FileEach);
        if sink.from.len() > 1 || is_each {
            let name = &sink.name.value;
            let message = match is_each {
                true => format!("sink `{name}` cannot write each failure to a file of its own"),
                false => format!("sink `{name}` reads from `{FAILURES}` and from something else"),
            };
            cx.error(from.span, message).help("for example: kind = \"csv\", from = \"failures\"");
        }
        (sink.is_of_failures, sink.ordered) = (true, false);
    }
}

/// Finds what runs the batches of each stage: a model of the file, or the program of the stage, which stands behind those from now on.
fn resolve_models(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    let names = workflow.models.iter().enumerate();
    let places: HashMap<String, usize> = names.map(|(at, model)| (model.name.value.clone(), at)).collect();
    let names: Vec<String> = workflow.models.iter().map(|model| model.name.value.clone()).collect();
    for stage in &mut workflow.stages {
        if let Some(program) = stage.program.take() {
            stage.model = Some(workflow.models.len());
            workflow.models.push(*program);
            continue;
        }
        let Some(model) = stage.batch().map(|batch| &batch.model) else { continue };
        let found = places.get(&model.value).copied();
        if found.is_none() && !stage.is_deferred {
            let (stage, name) = (&stage.name.value, &model.value);
            let message = format!("stage `{stage}` uses model `{name}`, but there is no such model");
            let help = suggestion("models", name, names.iter().map(String::as_str));
            cx.error(model.span, message).help(help);
        }
        stage.model = found;
    }
}

/// What can be read from.
struct OriginNames {
    all: Vec<String>,
    places: HashMap<String, Origin>,
    /// `pixels.scale`, a value of a matrix.
    values: HashMap<String, Origin>,
}

impl OriginNames {
    fn of(workflow: &WorkflowTables, cx: &mut Cx<'_>) -> Self {
        // Tables are no more than ids.
        let sources = (0..).map(SourceId).map(Origin::Source).zip(&workflow.sources);
        let mut places: HashMap<String, Origin> =
            sources.map(|(origin, source)| (source.name.value.clone(), origin)).collect();
        for (id, stage) in (0..).map(StageId).zip(&workflow.stages) {
            let name = &stage.name.value;
            if places.contains_key(name) {
                cx.error(stage.name.span, format!("`{name}` is the name of a source and of a stage"))
                    .help("`from` could mean either; rename one of them");
            } else {
                places.insert(name.clone(), Origin::Stage(id));
            }
        }
        let of_stages = (0..).map(StageId).zip(&workflow.stages);
        let values = of_stages.flat_map(|(id, stage)| {
            let name = &stage.name.value;
            values_of(name).map(move |value| (format!("{}.{value}", owner_of(name)), Origin::Stage(id)))
        });
        let sources = workflow.sources.iter().map(|source| &source.name);
        let all = sources.chain(workflow.stages.iter().map(|stage| &stage.name));
        let all = all.filter(|name| !name.value.contains('[')).map(|name| name.value.clone());
        Self { all: all.collect(), values: values.collect(), places }
    }

    fn resolve(&self, workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
        let of_parts = |stage: &StageNode| stage.kind_name() == MATRIX;
        for stage in workflow.stages.iter_mut().filter(|stage| !of_parts(stage)) {
            let reader = format!("stage `{}`", stage.name.value);
            stage.links = stage.upstreams.iter().map(|(_, from)| self.link(&reader, from, cx)).collect();
        }
        // What makes the parts of a stage reads what the stage does: it is reported once.
        for at in 0..workflow.stages.len() {
            let stage = &workflow.stages[at];
            let owner = owner_of(&stage.name.value);
            let owner = workflow.stages.iter().find(|owned| of_parts(stage) && owned.name.value == owner);
            let links = owner.map(|owner| owner.links[..stage.upstreams.len()].to_vec());
            workflow.stages[at].links =
                links.unwrap_or_else(|| std::mem::take(&mut workflow.stages[at].links));
        }
        for sink in workflow.sinks.iter_mut().filter(|sink| !sink.is_of_failures) {
            let reader = format!("sink `{}`", sink.name.value);
            sink.links = sink.from.iter().map(|from| self.link(&reader, from, cx)).collect();
            // What a sink reads from: stages, and beside them sources.
            let first = sink.links.iter().flatten().next();
            if let Some(Link { target: Origin::Source(source), span, .. }) = first
                && sink.links.iter().flatten().all(|link| link.stage().is_none())
            {
                let source = toml_key(&workflow.sources[source.index()].name.value);
                let column = |link: &Link| Some(format!("{0} = \"{0}\"", link.tensor.as_ref()?));
                let columns: Vec<String> = sink.links.iter().flatten().filter_map(column).collect();
                let columns =
                    if columns.is_empty() { "NAME = \"COLUMN\"".to_owned() } else { columns.join(", ") };
                cx.error(*span, format!("{reader} cannot read from source `{source}` alone")).help(format!(
                    "put a stage between that picks its columns, and read that: [stages.picked], kind = \"select\", from = \"{source}\", columns = {{ {columns} }}"
                ));
                sink.links.iter_mut().for_each(|link| *link = None);
            }
        }
    }

    fn link(&self, reader: &str, from: &Spanned<String>, cx: &mut Cx<'_>) -> Option<Link> {
        let (name, tensor) = match from.value.split_once('.') {
            Some((name, tensor)) => (name, Some(tensor.to_owned())),
            None => (from.value.as_str(), None),
        };
        let value = self.values.get(&from.value);
        let Some(target) = value.or_else(|| self.places.get(name)).copied() else {
            let owner = owner_of(&from.value);
            if owner != from.value && self.places.contains_key(owner) {
                let message = format!("{reader} reads from one variant of `{owner}`, `{}`", from.value);
                let help = format!(
                    "read from \"{owner}\": all of its variants are parts of a row; a `filter` lets one of them go on: from = [\"{owner}\", \"{owner}.NAME\"], keep = \"{owner}.NAME == VALUE\""
                );
                return cx.error(from.span, message).help(help).none();
            }
            let message = format!("{reader} reads from `{name}`, but there is no such source or stage");
            let help = suggestion("sources and stages", name, self.all.iter().map(String::as_str));
            return cx.error(from.span, message).help(help).none();
        };
        Some(Link { target, tensor, span: from.span })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitMark {
    New,
    OnPath,
    Done,
    OnCycle,
}

/// Depth-first order; each cycle is reported with its path.
fn order(stages: &[StageNode], cx: &mut Cx<'_>) -> Vec<usize> {
    let mut marks = vec![VisitMark::New; stages.len()];
    let mut order = Vec::new();
    for start in 0..stages.len() {
        if marks[start] != VisitMark::New {
            continue;
        }
        marks[start] = VisitMark::OnPath;
        // An explicit stack: a chain in the file may be longer than ours.
        let mut path = vec![(start, 0)];
        while let Some((stage, next)) = path.last_mut() {
            let (stage, link) = (*stage, stages[*stage].links.get(*next));
            *next += 1;
            match link {
                None => {
                    if marks[stage] == VisitMark::OnPath {
                        marks[stage] = VisitMark::Done;
                        order.push(stage);
                    }
                    path.pop();
                }
                Some(Some(Link { target: Origin::Stage(up), span, .. })) => match marks[up.index()] {
                    VisitMark::New => {
                        marks[up.index()] = VisitMark::OnPath;
                        path.push((up.index(), 0));
                    }
                    VisitMark::OnPath => {
                        let from = path.iter().position(|(s, _)| *s == up.index()).unwrap_or(0);
                        let cycle: Vec<usize> = path[from..].iter().map(|(s, _)| *s).collect();
                        report_cycle(stages, &cycle, *span, cx);
                        cycle.iter().for_each(|s| marks[*s] = VisitMark::OnCycle);
                    }
                    VisitMark::Done | VisitMark::OnCycle => {}
                },
                Some(_) => {}
            }
        }
    }
    order
}

fn report_cycle(stages: &[StageNode], cycle: &[usize], span: Span, cx: &mut Cx<'_>) {
    let names: Vec<String> =
        cycle.iter().chain(cycle.first()).map(|s| format!("`{}`", stages[*s].name.value)).collect();
    cx.error(span, format!("stages read from each other in a circle: {}", names.join(" reads ")))
        .help("data flows one way: every stage must lead back to a source");
}

/// Moves what some sink is reached from to the front, the stages of it in their order.
fn sort(workflow: &mut WorkflowTables, order: Vec<usize>) {
    let used = used(workflow);
    let used_stages = || workflow.stages.iter().zip(&used).filter(|(_, used)| **used).map(|(stage, _)| stage);
    let read: HashSet<Origin> =
        used_stages().flat_map(|stage| &stage.links).flatten().map(|link| link.target).collect();
    let named: HashSet<usize> = used_stages().filter_map(|stage| stage.model).collect();
    workflow.n_ordered = order.len();
    let is_ordered: HashSet<usize> = order.iter().copied().collect();
    let (mut stages, unused): (Vec<usize>, Vec<usize>) = order.into_iter().partition(|stage| used[*stage]);
    workflow.n_stages = stages.len();
    stages.extend(unused.into_iter().chain((0..used.len()).filter(|stage| !is_ordered.contains(stage))));
    let stages = reorder(&mut workflow.stages, &stages);
    let is_read = |source: &usize| read.contains(&Origin::Source(SourceId(*source as u16))); // tables are no more than ids
    let sources;
    (sources, workflow.n_sources) = used_first(&mut workflow.sources, is_read);
    let models;
    (models, workflow.n_models) = used_first(&mut workflow.models, |model| named.contains(model));
    workflow.stages.iter_mut().filter_map(|stage| stage.model.as_mut()).for_each(|at| *at = models[*at]);
    let of_stages = workflow.stages.iter_mut().flat_map(|stage| &mut stage.links);
    for link in of_stages.chain(workflow.sinks.iter_mut().flat_map(|sink| &mut sink.links)).flatten() {
        match &mut link.target {
            Origin::Source(id) => id.0 = sources[id.index()] as u16,
            Origin::Stage(id) => id.0 = stages[id.index()] as u16,
        }
    }
}

/// The new place of each table, and how many are used.
fn used_first<T>(tables: &mut Vec<T>, is_used: impl Fn(&usize) -> bool) -> (Vec<usize>, usize) {
    let (mut order, unused): (Vec<usize>, Vec<usize>) = (0..tables.len()).partition(is_used);
    let n_used = order.len();
    order.extend(unused);
    (reorder(tables, &order), n_used)
}

/// Puts tables into an order, and gives the new place of each.
fn reorder<T>(tables: &mut Vec<T>, order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| places[*old] = new);
    let mut placed: Vec<(usize, T)> = places.iter().copied().zip(std::mem::take(tables)).collect();
    placed.sort_by_key(|(place, _)| *place);
    tables.extend(placed.into_iter().map(|(_, table)| table));
    places
}

/// Per stage whether a sink is reached from it.
fn used(workflow: &WorkflowTables) -> Vec<bool> {
    let mut used = vec![false; workflow.stages.len()];
    let sinks = workflow.sinks.iter().flat_map(|sink| &sink.links);
    let mut open: Vec<usize> = sinks.flatten().filter_map(Link::stage).collect();
    while let Some(stage) = open.pop() {
        if !std::mem::replace(&mut used[stage], true) {
            open.extend(workflow.stages[stage].links.iter().flatten().filter_map(Link::stage));
        }
    }
    used
}

/// Stages that may stand in a row: maps run one inside of the other, and so does what plans them.
const MOST_IN_A_ROW: usize = 256;

/// Reports each stage that has too many before it, and takes away what it reads.
fn cut_long_rows(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    let mut depths: Vec<usize> = Vec::new();
    for stage in &mut workflow.stages[..workflow.n_ordered] {
        let before = stage.links.iter().flatten().filter_map(Link::stage).filter_map(|at| depths.get(at));
        let depth = 1 + before.max().copied().unwrap_or(0);
        if depth > MOST_IN_A_ROW {
            let message = format!("stage `{}` stands behind {MOST_IN_A_ROW} others", stage.name.value);
            cx.error(stage.name.span, message).help(format!("at most {MOST_IN_A_ROW} may stand in a row"));
            stage.links.iter_mut().for_each(|link| *link = None);
        }
        depths.push(if depth > MOST_IN_A_ROW { 0 } else { depth });
    }
}

/// Sources, stages and models that no table names.
fn report_unused(workflow: &WorkflowTables, cx: &mut Cx<'_>) {
    let WorkflowTables { sources, models, stages, sinks, tasks, .. } = workflow;
    let has_tasks_alone = !tasks.is_empty() && sources.is_empty() && stages.is_empty();
    if sinks.iter().all(|sink| sink.is_of_failures) && !has_tasks_alone {
        cx.error(None, "the workflow has no sink, so its results would go nowhere")
            .help("add [sinks.results] with kind = \"jsonl\" and from = \"..\"");
        return;
    }
    let links =
        || stages.iter().map(|stage| &stage.links).chain(sinks.iter().map(|sink| &sink.links)).flatten();
    let names_its_model = |stage: &StageNode| match &stage.draft {
        Some(Draft::Batch(_)) => stage.model.is_some(),
        Some(Draft::Stage(_)) => true,
        // A wrong setting was reported.
        None => stage.kind.is_some(),
    };
    // A name that leads nowhere probably meant one of those that no table names.
    let all_lead_somewhere = links().all(Option::is_some)
        && stages.iter().all(|stage| !stage.upstreams.is_empty() && names_its_model(stage))
        && sinks.iter().all(|sink| !sink.from.is_empty());
    if !all_lead_somewhere {
        return;
    }
    let read: HashSet<Origin> = links().flatten().map(|link| link.target).collect();
    let named: HashSet<usize> = stages.iter().filter_map(|stage| stage.model).collect();
    let sources = (0..)
        .map(SourceId)
        .zip(sources)
        .map(|(id, s)| ("source", &s.name, read.contains(&Origin::Source(id))));
    // `orchestra serve` serves those that no stage runs alone.
    let is_served =
        sinks.iter().filter_map(|sink| sink.kind.as_ref()).any(|kind| kind.writes() == Writes::Reply);
    let models =
        models.iter().enumerate().map(|(at, m)| ("model", &m.name, is_served || named.contains(&at)));
    let stages =
        (0..).map(StageId).zip(stages).map(|(id, s)| ("stage", &s.name, read.contains(&Origin::Stage(id))));
    for (what, name, _) in sources.chain(models).chain(stages).filter(|(.., is_used)| !is_used) {
        cx.warning(name.span, format!("nothing uses {what} `{}`", name.value))
            .label("it is left out of the plan");
    }
}
