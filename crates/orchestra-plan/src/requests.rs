//! Files whose items are requests: all that they read is asked for, and all that they give is a reply. Knows no kind.

use crate::cx::Cx;
use crate::plan::{FoldPlan, Shape};
use crate::workflow::{SinkNode, SourceNode, StageNode, WorkflowTables};

/// Reports tables that only a run can have in a file whose items are requests, and reply sinks in a file without requests.
pub(crate) fn check(workflow: &WorkflowTables, cx: &mut Cx<'_>) {
    let used = &workflow.sources[..workflow.n_sources];
    let is_asked = |source: &&SourceNode| source.plan.as_ref().is_some_and(|plan| plan.request.is_some());
    let Some(asked) = used.iter().find(is_asked) else {
        // A source without a plan has an error, and may be the one.
        let all_known = used.iter().all(|source| source.plan.is_some());
        for sink in workflow.sinks.iter().filter(|sink| all_known && sink.replies()) {
            cx.error(sink.name.span, format!("sink `{}` answers requests, and there are none", sink.name.value))
                .label("no source takes requests")
                .help("read from a source of `kind = \"request\"`, or let the sink write a file, `kind = \"jsonl\"`");
        }
        return;
    };
    let asked = &asked.name.value;
    for source in used.iter().filter(|source| source.plan.is_some() && !is_asked(source)) {
        let name = &source.name.value;
        let message = format!("source `{name}` lists its items, and those of source `{asked}` are requests");
        cx.error(source.name.span, message).help("a file has one or the other: make two files of it");
    }
    for sink in workflow.sinks.iter().filter(|sink| sink.kind.is_some()) {
        refuse_file(sink, asked, cx);
    }
    let reduces = |stage: &&StageNode| {
        matches!(stage.plan().map(|plan| &plan.runs), Some(Shape::Fold(FoldPlan::Reduce(_))))
    };
    for stage in workflow.stages[..workflow.n_stages].iter().filter(reduces) {
        let name = &stage.name.value;
        let message =
            format!("stage `{name}` waits for the last item, and requests of source `{asked}` never end");
        cx.error(stage.name.span, message).help(
            "a stage `gather` brings the parts of one item together; all items are for a run to reduce",
        );
    }
    if let Some(task) = workflow.tasks.first() {
        let message = format!(
            "task `{}` belongs to a run, and items of source `{asked}` are requests",
            task.name.value
        );
        cx.error(task.name.span, message).help("put commands into a file of their own");
    }
}

fn refuse_file(sink: &SinkNode, asked: &str, cx: &mut Cx<'_>) {
    let name = &sink.name.value;
    if sink.is_of_failures {
        cx.error(
            sink.name.span,
            format!("sink `{name}` writes failures, and a request that fails is told so"),
        )
        .help("leave it out");
    } else if !sink.replies() {
        let message = format!("sink `{name}` writes a file, and items of source `{asked}` are requests");
        cx.error(sink.name.span, message)
            .help("records go back to those who asked: kind = \"reply\"; or name files with a source of another kind");
    }
}
