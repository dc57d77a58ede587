//! Who reads from whom: names to tables, cycles, order, what is used, and which tables are connected. Knows no shapes.

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::kind::Draft;
use crate::nearest::suggestion;
use crate::raw::{RawStage, RawWorkflow};

/// What a `from` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Source(usize),
    Stage(usize),
}

/// A resolved `from`.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub target: Target,
    /// `stage.tensor`
    pub tensor: Option<String>,
    pub span: Span,
}

impl Link {
    pub fn stage(&self) -> Option<usize> {
        match self.target {
            Target::Stage(stage) => Some(stage),
            Target::Source(_) => None,
        }
    }
}

/// The topology. Indices are places in the tables of the file.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Per stage, per entry of its `reads`; `None` was reported.
    pub reads: Vec<Vec<Option<Link>>>,
    /// Per sink, per entry of its `from`; `None` was reported.
    pub sinks: Vec<Vec<Option<Link>>>,
    /// Stages, each after what it reads from. Those on a cycle are absent.
    pub order: Vec<usize>,
    /// Stages from which some sink is reached.
    pub used: Vec<bool>,
}

impl Graph {
    /// Resolves every `from` and reports what is wrong with any.
    pub fn new(workflow: &RawWorkflow, diags: &mut Diagnostics) -> Self {
        let names = Names { workflow };
        names.report_doubles(diags);
        let reads: Vec<Vec<Option<Link>>> = workflow
            .stages
            .iter()
            .map(|stage| stage.reads.iter().map(|(_, from)| names.stage_link(stage, from, diags)).collect())
            .collect();
        let sinks: Vec<Vec<Option<Link>>> = workflow
            .sinks
            .iter()
            .map(|sink| sink.from.iter().map(|from| names.sink_link(&sink.name.value, from, diags)).collect())
            .collect();
        let order = order(workflow, &reads, diags);
        let used = used(&reads, &sinks);
        report_unused(workflow, &reads, &sinks, diags);
        Self { reads, sinks, order, used }
    }

    /// The stages that `stage` reads from.
    pub fn upstream(&self, stage: usize) -> impl Iterator<Item = usize> {
        self.reads[stage].iter().flatten().filter_map(Link::stage)
    }

    /// The sources that `stage` reads from itself.
    pub fn sources(&self, stage: usize) -> impl Iterator<Item = usize> {
        self.reads[stage].iter().flatten().filter_map(|l| match l.target {
            Target::Source(source) => Some(source),
            Target::Stage(_) => None,
        })
    }
}

struct Names<'a> {
    workflow: &'a RawWorkflow,
}

impl Names<'_> {
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
            Some(source) => Target::Source(source),
            None => match stages().position(|s| s == name) {
                Some(stage) => Target::Stage(stage),
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

    fn stage_link(&self, stage: &RawStage, from: &At<String>, diags: &mut Diagnostics) -> Option<Link> {
        self.resolve(&format!("stage `{}`", stage.name.value), from, diags)
    }

    fn sink_link(&self, name: &str, from: &At<String>, diags: &mut Diagnostics) -> Option<Link> {
        let link = self.resolve(&format!("sink `{name}`"), from, diags)?;
        match link.target {
            Target::Source(source) => {
                let source = &self.workflow.sources[source].name.value;
                diags
                    .error(from.span, format!("sink `{name}` cannot read from source `{source}`"))
                    .help("a sink writes the results of a stage");
                None
            }
            Target::Stage(_) => Some(link),
        }
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
                Some(Some(Link { target: Target::Stage(up), span, .. })) => match marks[*up] {
                    Mark::New => {
                        marks[*up] = Mark::OnPath;
                        path.push((*up, 0));
                    }
                    Mark::OnPath => {
                        let from = path.iter().position(|(s, _)| s == up).unwrap_or(0);
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
        Some(Draft::Batch(batch)) => {
            let model = batch.model.as_ref();
            model.is_some_and(|model| workflow.models.iter().any(|m| m.name.value == model.value))
        }
        Some(Draft::Stage(_)) => true,
        // A wrong setting was reported.
        None => stage.kind.is_some(),
    }
}

/// Whatever nobody names.
fn report_unused(
    workflow: &RawWorkflow,
    reads: &[Vec<Option<Link>>],
    sinks: &[Vec<Option<Link>>],
    diags: &mut Diagnostics,
) {
    if workflow.sinks.is_empty() {
        diags
            .error(None, "the workflow has no sink, so its results would go nowhere")
            .help("add [sinks.results] with kind = \"jsonl\" and from = \"..\"");
        return;
    }
    // A name that leads nowhere probably meant one of those that nobody names.
    let all_lead_somewhere = reads.iter().chain(sinks).flatten().all(Option::is_some)
        && workflow.stages.iter().all(|s| !s.reads.is_empty() && names_its_model(workflow, s))
        && workflow.sinks.iter().all(|s| !s.from.is_empty());
    if !all_lead_somewhere {
        return;
    }
    let read = |target: Target| reads.iter().chain(sinks).flatten().flatten().any(|l| l.target == target);
    let mut warn = |what: &str, name: &At<String>| {
        diags
            .warning(name.span, format!("nothing uses {what} `{}`", name.value))
            .label("it is left out of the plan");
    };
    for (i, source) in workflow.sources.iter().enumerate() {
        if !read(Target::Source(i)) {
            warn("source", &source.name);
        }
    }
    for model in &workflow.models {
        let named = |s: &RawStage| s.batch().and_then(|batch| batch.model.clone());
        let names_it = |s: &RawStage| named(s).is_some_and(|m| m.value == model.name.value);
        if !workflow.stages.iter().any(names_it) {
            warn("model", &model.name);
        }
    }
    for (i, stage) in workflow.stages.iter().enumerate() {
        if !read(Target::Stage(i)) {
            warn("stage", &stage.name);
        }
    }
}
