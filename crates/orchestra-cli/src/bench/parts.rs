//! The parts of a workflow as plans of their own, which the runtime runs like any other: loading without a model, and each model with its rows ready.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use orchestra_core::{PipelineId, SinkId, SourceId, StageId, locked};
use orchestra_launch::Plan;
use orchestra_launch::kind::{
    Column, Emit, Encoder, Expand, Fetch, FetchRun, Found, ItemError, ItemInfo, ListError, Map, MapRun,
    OwnedRow, OwnedValue, PushFound, Schema, Value,
};
use orchestra_plan::{ColumnRef, Origin, PipelinePlan, Shape, SinkPlan, SourcePlan, StagePlan};
use orchestra_store::ListingSpec;

/// Rows that are kept of what a stage reads; more would not change what a row costs.
const MOST_ROWS: usize = 64;

/// The rows that a batch stage reads. As a sink it keeps the first of them, as a source it gives these again and again.
#[derive(Debug, Default)]
pub struct ReadyRows(Mutex<Vec<OwnedRow>>);

impl ReadyRows {
    pub fn is_empty(&self) -> bool {
        locked(&self.0).is_empty()
    }
}

/// The plan with a sink more for each batch stage, in the order of the stages, which keeps rows that the stage reads.
pub fn recording(plan: &Plan) -> (Plan, Vec<(StageId, Arc<ReadyRows>)>) {
    let (mut recording, mut all) = (plan.clone(), Vec::new());
    for (id, _) in plan.batch_stages() {
        let rows = Arc::new(ReadyRows::default());
        let sink = sink_before(plan, id, &rows);
        let pipeline = &mut recording.pipelines[sink.pipeline.index()];
        pipeline.sinks.push(SinkId(u16::try_from(recording.sinks.len()).unwrap_or(u16::MAX)));
        pipeline.linear = None;
        recording.sinks.push(sink);
        all.push((id, rows));
    }
    (recording, all)
}

/// Reading, decoding and preparing: what comes before the first batches, which end in sinks that write nothing, as what else comes first does.
pub fn loading(plan: &Plan) -> Plan {
    let is_batch =
        |origin: &Origin| origin.stage().is_some_and(|stage| plan.stages[stage.index()].batch().is_some());
    let is_first = |from: &[Origin]| !from.iter().any(|from| all_before(plan, *from).iter().any(is_batch));
    let batches = plan.batch_stages().filter(|(id, _)| is_first(&plan.stages[id.index()].from));
    let rows = Arc::new(ReadyRows::default());
    let batches = batches.map(|(id, _)| sink_before(plan, id, &rows));
    let sinks = plan.sinks.iter().filter(|sink| !sink.is_of_failures && is_first(&sink.from));
    let sinks = sinks.map(|sink| SinkPlan {
        encoder: Arc::clone(&rows) as _,
        files: None,
        part_files: None,
        ..sink.clone()
    });
    cut(plan, batches.chain(sinks).collect())
}

/// A batch stage alone, with rows that are ready; `over` says how many.
pub fn alone(plan: &Plan, id: StageId, rows: &Arc<ReadyRows>) -> Plan {
    let stage = &plan.stages[id.index()];
    let source = Origin::Source(SourceId(0));
    let gives = stage.reads.iter().zip(0..).map(|(read, at)| {
        let ty = plan.column(*read).ty.clone();
        Column { name: format!("input-{at}"), ty }
    });
    let source_plan = SourcePlan {
        name: stage.name.clone(),
        pipeline: PipelineId(0),
        kind: "rows".into(),
        listing: ListingSpec::Generated,
        request: None,
        expand: None,
        reduced: None,
        lister: None,
        names_repeat: false,
        n_items: None,
        gives: Schema(gives.collect()),
        fetch: Arc::new(ReplayRows(Arc::clone(rows))),
        sandbox_read: Vec::new(),
        settings: serde_json::Value::Null,
        decoders: None,
    };
    let sink = SinkPlan {
        from: vec![Origin::Stage(id)],
        reads: Vec::new(),
        columns: Vec::new(),
        home: Some(Origin::Stage(id)),
        ..sink_before(plan, id, &Arc::default())
    };
    let mut alone = cut(plan, vec![SinkPlan { pipeline: PipelineId(0), ..sink }]);
    let pipeline = &plan.pipelines[stage.pipeline.index()];
    alone.pipelines = vec![PipelinePlan {
        sources: vec![SourceId(0)],
        stages: vec![id],
        sinks: vec![SinkId(0)],
        after: Vec::new(),
        linear: Some(SinkId(0)),
        carried_bytes: 0,
        ..pipeline.clone()
    }];
    alone.sources = vec![source_plan];
    for (other, stage) in (0..).map(StageId).zip(&mut alone.stages) {
        stage.pipeline = PipelineId(0);
        match &mut stage.runs {
            Shape::Batch(batch) if other == id => {
                let reads = (0..stage.reads.len()).map(|column| ColumnRef { from: source, column });
                (stage.reads, stage.from) = (reads.collect(), vec![source]);
                batch.passthrough_columns = stage.reads[stage.reads.len() - batch.values.len()..].to_vec();
                (stage.home, stage.enclosing_splits) = (source, Vec::new());
                // Alone it comes to have all that it may have.
                batch.workers.iter_mut().for_each(|w| (w.count, w.growth) = (w.most(), None));
            }
            _ => nothing(stage),
        }
    }
    alone
}

/// A plan of [`alone`] over `n` items.
pub fn over(plan: &Plan, n: u64) -> Plan {
    let mut plan = plan.clone();
    plan.sources[0].expand = Some(Arc::new(NumberedItems(n)));
    plan
}

/// Everything that `from` is made of, also before the stages that make the items of its source.
fn all_before(plan: &Plan, from: Origin) -> BTreeSet<Origin> {
    let mut all = plan.ancestors(from);
    let source = |origin: &Origin| match origin {
        Origin::Source(source) => plan.sources[source.index()].reduced,
        Origin::Stage(_) => None,
    };
    for stage in all.iter().filter_map(source).collect::<Vec<_>>() {
        all.extend(all_before(plan, Origin::Stage(stage)));
    }
    all
}

/// Only what the sinks are made of. Ids stay as they are: what is left out stays in its table as a stage that nothing reads.
fn cut(plan: &Plan, sinks: Vec<SinkPlan>) -> Plan {
    let from = sinks.iter().flat_map(|sink| &sink.from);
    let kept: BTreeSet<Origin> = from.flat_map(|from| all_before(plan, *from)).collect();
    let mut cut = Plan { sinks, ..plan.clone() };
    for (id, stage) in (0..).map(StageId).zip(&mut cut.stages) {
        if !kept.contains(&Origin::Stage(id)) {
            nothing(stage);
        }
    }
    for (id, pipeline) in (0..).map(PipelineId).zip(&mut cut.pipelines) {
        pipeline.stages.retain(|stage| kept.contains(&Origin::Stage(*stage)));
        let here = (0..).map(SinkId).zip(&cut.sinks).filter(|(_, sink)| sink.pipeline == id);
        (pipeline.sinks, pipeline.linear) = (here.map(|(id, _)| id).collect(), None);
    }
    cut
}

fn nothing(stage: &mut StagePlan) {
    stage.runs = Shape::Map(Arc::new(LeftOutStage));
    (stage.from, stage.reads) = (Vec::new(), Vec::new());
}

/// A sink that reads what a stage reads, and writes nothing.
fn sink_before(plan: &Plan, id: StageId, rows: &Arc<ReadyRows>) -> SinkPlan {
    let stage = &plan.stages[id.index()];
    let name = format!("before-{}", stage.name);
    SinkPlan {
        pipeline: stage.pipeline,
        kind: "rows".into(),
        from: stage.from.clone(),
        is_of_failures: false,
        reads: stage.reads.clone(),
        columns: (0..stage.reads.len()).map(|at| format!("input-{at}")).collect(),
        home: Some(stage.home),
        encoder: Arc::clone(rows) as _,
        path: plan.output.join(&name),
        files: None,
        part_files: None,
        bucket: None,
        script: None,
        ordered: false,
        replies: false,
        name,
    }
}

impl Encoder for ReadyRows {
    /// Keeps the first rows. Of all further ones tensors are written, as into a slot.
    fn encode(&self, _: &ItemInfo<'_>, row: &[Value<'_>], _: &mut Vec<u8>) -> Result<(), ItemError> {
        if locked(&self.0).len() < MOST_ROWS && !row.iter().any(|value| matches!(value, Value::Picture(_))) {
            let kept = row.iter().map(OwnedValue::copy_of).collect::<Result<_, _>>()?;
            locked(&self.0).push(kept);
            return Ok(());
        }
        let mut unwritten = row.iter().filter(|value| matches!(value, Value::Unwritten(_)));
        unwritten.try_for_each(|value| value.with_tensor(|_| Ok(())))
    }
}

/// Items that are rows which were kept, one after the other.
#[derive(Debug)]
struct ReplayRows(Arc<ReadyRows>);

struct ReplayRun {
    rows: Vec<OwnedRow>,
    next: usize,
}

impl Fetch for ReplayRows {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(ReplayRun { rows: locked(&self.0.0).clone(), next: 0 })
    }
}

impl FetchRun for ReplayRun {
    fn fetch(&mut self, _: &[u8]) -> Result<u64, ItemError> {
        self.next = (self.next + 1) % self.rows.len().max(1);
        Ok(0)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        // A batch takes tensors alone.
        let row: Vec<Value<'_>> = self.rows[self.next].iter().map(|value| value.borrowed(&[])).collect();
        show(&row);
    }
}

/// So many items, without files.
#[derive(Debug)]
struct NumberedItems(u64);

impl Expand for NumberedItems {
    fn expand(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        (0..self.0).map(|n| n.to_string()).try_for_each(|name| push(Found::Item(&name, name.as_bytes())))
    }
}

/// In the place of a stage that is left out: no row comes here.
#[derive(Debug)]
struct LeftOutStage;

impl Map for LeftOutStage {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(Self)
    }

    fn cost(&self) -> usize {
        0
    }
}

impl MapRun for LeftOutStage {
    fn apply(&mut self, _: &[Value<'_>], _: &mut dyn Emit) -> Result<(), ItemError> {
        Ok(())
    }
}
