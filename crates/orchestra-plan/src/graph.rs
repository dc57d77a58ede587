//! Who reads from whom: names to tables, cycles, order, and what is used. Knows no shapes.

use orchestra_core::{SourceId, StageId};

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::kind::{BatchDraft, Draft, Writes};
use crate::nearest::suggestion;
use crate::plan::Origin;
use crate::raw::{RawModel, RawSink, RawStage, RawWorkflow};
use crate::sinks::FAILURES;

/// A resolved `from`.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub target: Origin,
    /// `stage.tensor`
    pub tensor: Option<String>,
    pub span: Span,
}

impl Link {
    pub fn stage(&self) -> Option<usize> {
        self.target.stage().map(StageId::index)
    }
}

/// The topology. It has sorted the tables of the file as the plan will have them, what is used before the rest, so that places in the tables
/// are ids.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Per stage, per entry of its `reads`; `None` was reported.
    pub reads: Vec<Vec<Option<Link>>>,
    /// Per sink, per entry of its `from`; `None` was reported.
    pub sinks: Vec<Vec<Option<Link>>>,
    /// Stages, each after what it reads from, from which some sink is reached: the first of all, with the sources and the models that they
    /// name.
    pub n_stages: usize,
    pub n_sources: usize,
    pub n_models: usize,
    /// Stages on no cycle: behind those that are used, those that are not.
    pub n_ordered: usize,
}

impl Graph {
    /// Resolves every `from`, reports what is wrong with any, and sorts the tables.
    pub fn new(workflow: &mut RawWorkflow, diags: &mut Diagnostics) -> Self {
        find_failure_sinks(workflow, diags);
        let names = Names { workflow };
        names.report_doubles(diags);
        let (reads, sinks) = names.links(diags);
        let order = order(workflow, &reads, diags);
        let used = used(&reads, &sinks);
        report_unused(workflow, &reads, &sinks, diags);
        let read = |target: Origin| (0..reads.len()).any(|s| used[s] && names_it(&reads[s], target));
        let sources = |s: usize| read(Origin::Source(SourceId(s as u16))); // tables are no more than ids
        let n_sources = sort(&mut workflow.sources, sources);
        let models: Vec<_> = (0..used.len()).filter(|s| used[*s]).map(|s| &workflow.stages[s]).collect();
        let named = |m: &RawModel| models.iter().any(|s| s.batch().is_some_and(|b| names_model(b, m)));
        let named: Vec<bool> = workflow.models.iter().map(named).collect();
        let n_models = sort(&mut workflow.models, |m| named[m]);
        let n_ordered = order.len();
        let mut at: Vec<usize> = order.iter().copied().filter(|s| used[*s]).collect();
        let n_stages = at.len();
        at.extend(order.iter().filter(|s| !used[**s]));
        let mut is_ordered = vec![false; used.len()];
        order.iter().for_each(|s| is_ordered[*s] = true);
        at.extend((0..used.len()).filter(|s| !is_ordered[*s]));
        let mut stages: Vec<_> = std::mem::take(&mut workflow.stages).into_iter().map(Some).collect();
        workflow.stages = at.iter().filter_map(|s| stages[*s].take()).collect();
        // All that is wrong with names was reported.
        let (mut reads, sinks) = Names { workflow }.links(&mut Diagnostics::new("", ""));
        cut_long_rows(workflow, &mut reads[..n_ordered], diags);
        Self { reads, sinks, n_stages, n_sources, n_models, n_ordered }
    }
}

/// Stages that may stand in a row: maps run one inside of the other, and so does what plans them.
const MOST_IN_A_ROW: usize = 256;

/// Reports each stage that has too many before it, and takes away what it reads. `reads` are those of stages in their order, on no cycle.
fn cut_long_rows(workflow: &RawWorkflow, reads: &mut [Vec<Option<Link>>], diags: &mut Diagnostics) {
    let mut depths: Vec<usize> = Vec::new();
    for (stage, links) in workflow.stages.iter().zip(reads) {
        let before = links.iter().flatten().filter_map(Link::stage).filter_map(|stage| depths.get(stage));
        let depth = 1 + before.max().copied().unwrap_or(0);
        if depth > MOST_IN_A_ROW {
            let message = format!("stage `{}` stands behind {MOST_IN_A_ROW} others", stage.name.value);
            diags.error(stage.name.span, message).help(format!("at most {MOST_IN_A_ROW} may stand in a row"));
            links.iter_mut().for_each(|link| *link = None);
        }
        depths.push(if depth > MOST_IN_A_ROW { 0 } else { depth });
    }
}

/// Sinks that read from `failures`, where no source and no stage is called so, write the failures of the run.
fn find_failure_sinks(workflow: &mut RawWorkflow, diags: &mut Diagnostics) {
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
            diags.error(from.span, message).help("for example: kind = \"csv\", from = \"failures\"");
        }
        (sink.is_of_failures, sink.ordered) = (true, false);
    }
}

/// Moves what is used to the front, both parts in the order of the file; how many are used.
fn sort<T>(tables: &mut Vec<T>, is_used: impl Fn(usize) -> bool) -> usize {
    let (front, back): (Vec<_>, Vec<_>) =
        std::mem::take(tables).into_iter().enumerate().partition(|(i, _)| is_used(*i));
    let n = front.len();
    tables.extend(front.into_iter().chain(back).map(|(_, table)| table));
    n
}

fn names_it(links: &[Option<Link>], target: Origin) -> bool {
    links.iter().flatten().any(|link| link.target == target)
}

fn names_model(batch: &BatchDraft, model: &RawModel) -> bool {
    batch.model.as_ref().is_some_and(|name| name.value == model.name.value)
}

struct Names<'a> {
    workflow: &'a RawWorkflow,
}

type Links = Vec<Vec<Option<Link>>>;

impl Names<'_> {
    /// Of the stages, and of the sinks.
    fn links(&self, diags: &mut Diagnostics) -> (Links, Links) {
        let mut of_stage = |stage: &RawStage| {
            let reader = format!("stage `{}`", stage.name.value);
            stage.upstreams.iter().map(|(_, from)| self.resolve(&reader, from, diags)).collect()
        };
        let stages = self.workflow.stages.iter().map(&mut of_stage).collect();
        let mut of_sink = |sink: &RawSink| {
            if sink.is_of_failures { Vec::new() } else { self.sink_links(sink, diags) }
        };
        (stages, self.workflow.sinks.iter().map(&mut of_sink).collect())
    }

    fn report_doubles(&self, diags: &mut Diagnostics) {
        for stage in &self.workflow.stages {
            if self.workflow.sources.iter().any(|s| s.name.value == stage.name.value) {
                diags
                    .error(
                        stage.name.span,
                        format!("`{}` is the name of a source and of a stage", stage.name.value),
                    )
                    .help("`from` could mean either; rename one of them");
            }
        }
    }

    fn resolve(&self, reader: &str, from: &At<String>, diags: &mut Diagnostics) -> Option<Link> {
        let (name, tensor) = match from.value.split_once('.') {
            Some((name, tensor)) => (name, Some(tensor.to_owned())),
            None => (from.value.as_str(), None),
        };
        let sources = || self.workflow.sources.iter().map(|s| s.name.value.as_str());
        let stages = || self.workflow.stages.iter().map(|s| s.name.value.as_str());
        let target = match sources().position(|s| s == name) {
            Some(source) => Origin::Source(SourceId(source as u16)), // tables are no more than ids
            None => match stages().position(|s| s == name) {
                Some(stage) => Origin::Stage(StageId(stage as u16)),
                None => {
                    let known: Vec<&str> = sources().chain(stages()).collect();
                    diags
                        .error(
                            from.span,
                            format!("{reader} reads from `{name}`, but there is no such source or stage"),
                        )
                        .help(suggestion("sources and stages", name, known.iter().copied()));
                    return None;
                }
            },
        };
        Some(Link { target, tensor, span: from.span })
    }

    /// What a sink reads from: stages, and beside them sources.
    fn sink_links(&self, sink: &RawSink, diags: &mut Diagnostics) -> Vec<Option<Link>> {
        let reader = format!("sink `{}`", sink.name.value);
        let mut links: Vec<Option<Link>> =
            sink.from.iter().map(|from| self.resolve(&reader, from, diags)).collect();
        let first = links.iter().flatten().next();
        if let Some(Link { target: Origin::Source(source), span, .. }) = first
            && links.iter().flatten().all(|link| link.stage().is_none())
        {
            let source = &self.workflow.sources[source.index()].name.value;
            diags
                .error(*span, format!("{reader} cannot read from source `{source}` alone"))
                .help("a sink writes the results of a stage, and columns of a source beside them; a stage `select` picks columns of a source");
            links.iter_mut().for_each(|link| *link = None);
        }
        links
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    OnPath,
    Done,
    OnCycle,
}

/// Depth-first order; each cycle is reported with its path.
fn order(workflow: &RawWorkflow, reads: &[Vec<Option<Link>>], diags: &mut Diagnostics) -> Vec<usize> {
    let mut marks = vec![Mark::New; reads.len()];
    let mut order = Vec::new();
    for start in 0..reads.len() {
        if marks[start] != Mark::New {
            continue;
        }
        marks[start] = Mark::OnPath;
        // An explicit stack: a chain in the file may be longer than ours.
        let mut path = vec![(start, 0)];
        while let Some((stage, next)) = path.last_mut() {
            let (stage, link) = (*stage, reads[*stage].get(*next));
            *next += 1;
            match link {
                None => {
                    if marks[stage] == Mark::OnPath {
                        marks[stage] = Mark::Done;
                        order.push(stage);
                    }
                    path.pop();
                }
                Some(Some(Link { target: Origin::Stage(up), span, .. })) => match marks[up.index()] {
                    Mark::New => {
                        marks[up.index()] = Mark::OnPath;
                        path.push((up.index(), 0));
                    }
                    Mark::OnPath => {
                        let from = path.iter().position(|(s, _)| *s == up.index()).unwrap_or(0);
                        let cycle: Vec<usize> = path[from..].iter().map(|(s, _)| *s).collect();
                        report_cycle(workflow, &cycle, *span, diags);
                        cycle.iter().for_each(|s| marks[*s] = Mark::OnCycle);
                    }
                    Mark::Done | Mark::OnCycle => {}
                },
                Some(_) => {}
            }
        }
    }
    order
}

fn report_cycle(workflow: &RawWorkflow, cycle: &[usize], span: Span, diags: &mut Diagnostics) {
    let names: Vec<String> =
        cycle.iter().chain(cycle.first()).map(|s| format!("`{}`", workflow.stages[*s].name.value)).collect();
    diags
        .error(span, format!("stages read from each other in a circle: {}", names.join(" reads ")))
        .help("data flows one way: every stage must lead back to a source");
}

fn used(reads: &[Vec<Option<Link>>], sinks: &[Vec<Option<Link>>]) -> Vec<bool> {
    let mut used = vec![false; reads.len()];
    let mut open: Vec<usize> = sinks.iter().flatten().flatten().filter_map(Link::stage).collect();
    while let Some(stage) = open.pop() {
        if !std::mem::replace(&mut used[stage], true) {
            open.extend(reads[stage].iter().flatten().filter_map(Link::stage));
        }
    }
    used
}

fn names_its_model(workflow: &RawWorkflow, stage: &RawStage) -> bool {
    match &stage.draft {
        Some(Draft::Batch(batch)) => workflow.models.iter().any(|model| names_model(batch, model)),
        Some(Draft::Stage(_)) => true,
        // A wrong setting was reported.
        None => stage.kind.is_some(),
    }
}

/// Sources, stages and models that no table names.
fn report_unused(
    workflow: &RawWorkflow,
    reads: &[Vec<Option<Link>>],
    sinks: &[Vec<Option<Link>>],
    diags: &mut Diagnostics,
) {
    let has_tasks_alone =
        !workflow.tasks.is_empty() && workflow.sources.is_empty() && workflow.stages.is_empty();
    if workflow.sinks.iter().all(|sink| sink.is_of_failures) && !has_tasks_alone {
        diags
            .error(None, "the workflow has no sink, so its results would go nowhere")
            .help("add [sinks.results] with kind = \"jsonl\" and from = \"..\"");
        return;
    }
    // A name that leads nowhere probably meant one of those that no table names.
    let all_lead_somewhere = reads.iter().chain(sinks).flatten().all(Option::is_some)
        && workflow.stages.iter().all(|s| !s.upstreams.is_empty() && names_its_model(workflow, s))
        && workflow.sinks.iter().all(|s| !s.from.is_empty());
    if !all_lead_somewhere {
        return;
    }
    let read = |target: Origin| reads.iter().chain(sinks).any(|links| names_it(links, target));
    let mut warn = |what: &str, name: &At<String>| {
        diags
            .warning(name.span, format!("nothing uses {what} `{}`", name.value))
            .label("it is left out of the plan");
    };
    for (i, source) in workflow.sources.iter().enumerate() {
        if !read(Origin::Source(SourceId(i as u16))) {
            warn("source", &source.name);
        }
    }
    for model in &workflow.models {
        if !workflow.stages.iter().any(|s| s.batch().is_some_and(|batch| names_model(batch, model))) {
            warn("model", &model.name);
        }
    }
    for (i, stage) in workflow.stages.iter().enumerate() {
        if !read(Origin::Stage(StageId(i as u16))) {
            warn("stage", &stage.name);
        }
    }
}
