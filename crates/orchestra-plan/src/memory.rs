//! Divides memory: the slots of batches, what is carried with them, and what is left for loaders.

use orchestra_core::PipelineId;
use orchestra_core::data::ColumnType;

use crate::batches::{BatchRows, batch_rows};
use crate::bytes::format_bytes;
use crate::cx::Cx;
use crate::devices::{Device, is_on_cuda};
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::host::MachineView;
use crate::plan::{LEAST_LOADER_BYTES, Plan, StagePlan, WorkerGrowth, WorkerPlan};
use crate::slots::{SlotDemand, SlotError, allot, ready_batches};
use crate::workflow::{StageNode, WorkflowTables};

/// The most that pictures carried along by the stages of a pipeline may take.
const CARRIED_BYTES: u64 = 512 << 20;

/// What outputs of open shape and values that are carried past a stage may take, those of all stages together, where the memory of the machine is not known. Where it is, they may take a quarter.
const OPEN_BYTES: u64 = 2 << 30;

/// The least that a batch may have of them, and that the rows which are carried past a stage may take.
const LEAST_ANSWER: u64 = 1 << 20;
const LEAST_CARRIED: u64 = 16 << 20;

/// The most that the rows which are carried to a program or a model may take: all values of a batch are one frame, in which pictures find room beside them.
const MOST_TOLD: u64 = 256 << 20;

/// What loaders may take for decoding where the memory of the machine is not known.
pub(crate) const LOADER_BYTES: u64 = 4 << 30;

/// What all batch slots together may take.
pub(crate) struct SlotMemory {
    limit: Option<u64>,
    span: Option<Span>,
    /// In messages.
    called: &'static str,
}

impl SlotMemory {
    /// As the file says, else half of the memory of the machine.
    pub fn of(workflow: &WorkflowTables, machine: Option<&MachineView>) -> Self {
        match &workflow.limits.memory {
            Some(limit) => {
                Self { limit: Some(limit.value.0), span: Some(limit.span), called: "`limits.memory`" }
            }
            None => {
                let memory = machine.map_or(0, |m| m.memory);
                let limit = (memory > 0).then_some(memory / 2);
                Self { limit, span: None, called: "half of this machine's memory" }
            }
        }
    }

    /// What outputs of open shape and carried values may take of it.
    fn open_bytes(&self) -> u64 {
        self.limit.map_or(OPEN_BYTES, |limit| limit / 4)
    }

    /// Completes the batches of all stages: their sizes, and where their rows lie.
    pub fn lay_out(
        &self,
        workflow: &mut WorkflowTables,
        devices: &[Device],
        cx: &mut Cx<'_>,
    ) -> Result<(), Reported> {
        let sizes = workflow.batch_stages().map(|(stage, model)| batch_rows(stage, model, devices, cx));
        let sizes: Vec<BatchRows> = sizes.collect::<Result<_, _>>()?;
        let demand = |((stage, _), size): (_, &BatchRows)| demand(stage, size.max, devices).ok_or(Reported);
        let demands = workflow.batch_stages().zip(&sizes).map(demand).collect::<Result<Vec<_>, _>>()?;
        let has_open = |demand: &SlotDemand<'_>| demand.outputs.iter().any(|of| of.row_bytes().is_none());
        let open = if demands.iter().any(has_open) { self.open_bytes() } else { 0 };
        let limit = self.limit.map(|limit| limit.saturating_sub(open));
        let layouts = match allot(&demands, limit, &mut cx.reasons) {
            Ok(layouts) => layouts,
            Err(SlotError::Layout { stage, error }) => {
                let name = demands[stage].stage;
                return cx
                    .error(name.span, format!("batches of stage `{}` are too large: {error}", name.value))
                    .help("lower `batch.max` or the size of the images")
                    .fail();
            }
            Err(SlotError::TooLittleMemory { needed }) => {
                let (needed, limit) = (format_bytes(needed), format_bytes(self.limit.unwrap_or_default()));
                let open = if open > 0 { ", of which outputs of open shape take a quarter" } else { "" };
                let message =
                    format!("one batch slot per worker takes {needed}, but {} is {limit}{open}", self.called);
                let help = "lower `batch.max` or `workers`, or raise `limits.memory`";
                return cx.error(self.span, message).help(help).fail();
            }
        };
        let stages =
            workflow.stages[..workflow.n_stages].iter_mut().filter_map(|stage| stage.connected.as_mut());
        let batches =
            stages.filter_map(|connected| Some((connected.plan.batch_mut()?, connected.slots.as_ref()?)));
        for ((batch, slots), (layout, rows)) in batches.zip(layouts.into_iter().zip(sizes)) {
            let on_cuda = is_on_cuda(batch, devices);
            batch.grows_from = rows.grows_from.filter(|first| *first < rows.max);
            batch.max_batch = layout.slot_rows;
            // A convolution of ONNX Runtime keeps the plan of cuDNN for one shape, and makes it anew whenever the shape changes.
            batch.padded_to = on_cuda.then_some(batch.max_batch);
            batch.ready = ready_batches(&layout, !on_cuda);
            batch.outputs = slots.given.iter().map(|output| output.read.clone()).collect();
            cut_growth(&mut batch.workers, layout.slots);
            batch.layout = layout;
        }
        Ok(())
    }

    /// What the slots leave of the memory: a quarter for outputs of open shape and for values that are carried, a quarter at most for pictures that are carried, the same for each pipeline
    /// that carries some, and half at most for loaders.
    pub fn share_rest(&self, plan: &mut Plan) {
        let at_first = plan.pipelines.iter().filter(|pipeline| pipeline.after.is_empty());
        let pipelines = at_first.count().max(1) as u64;
        let each = self.limit.map_or(CARRIED_BYTES, |limit| (limit / 4 / pipelines).min(CARRIED_BYTES));
        let carrying: Vec<PipelineId> = plan
            .stages
            .iter()
            .filter(|stage| {
                stage.passthrough_columns().any(|read| plan.column(*read).ty == ColumnType::Picture)
            })
            .map(|stage| stage.pipeline)
            .collect();
        for (id, pipeline) in (0..).map(PipelineId).zip(&mut plan.pipelines) {
            pipeline.carried_bytes = if carrying.contains(&id) { each } else { 0 };
        }
        let n_open = plan.batch_stages().filter(|(_, batch)| batch.open_answers().is_some()).count();
        let n_carry = plan.batch_stages().filter(|(_, batch)| !batch.passthrough_columns.is_empty()).count();
        let open = if n_open + n_carry > 0 { self.open_bytes() } else { 0 };
        let share = open / (n_open + n_carry).max(1) as u64;
        let bytes = |share: u64, least: u64| usize::try_from(share.max(least)).unwrap_or(usize::MAX);
        for batch in plan.stages.iter_mut().filter_map(StagePlan::batch_mut) {
            if let Some(answers) = batch.open_answers() {
                batch.answer_bytes = bytes(share / answers as u64, LEAST_ANSWER);
            }
            if !batch.passthrough_columns.is_empty() {
                let most = if batch.values.is_empty() { u64::MAX } else { MOST_TOLD };
                batch.carried_bytes = bytes(share.min(most), LEAST_CARRIED);
            }
        }
        if let Some(limit) = self.limit {
            let carried: u64 = plan.pipelines.iter().map(|pipeline| pipeline.carried_bytes).sum();
            let slots: u64 = plan.batch_stages().map(|(_, batch)| batch.layout.total_bytes() as u64).sum();
            plan.bytes_left = limit.saturating_sub(carried + slots + open);
            plan.loader_bytes = plan.bytes_left.min(limit / 2);
        }
    }
}

fn demand<'a>(stage: &'a StageNode, max_batch: usize, devices: &[Device]) -> Option<SlotDemand<'a>> {
    let (batch, slots) = (stage.batch_plan()?, stage.connected.as_ref()?.slots.as_ref()?);
    Some(SlotDemand {
        stage: &stage.name,
        inputs: &slots.inputs,
        outputs: &slots.outputs,
        max_batch,
        workers: batch.workers.iter().map(|w| w.count).sum(),
        most: batch.workers.iter().map(WorkerPlan::most).sum(),
        streams: batch.streams,
        on_cpu: !is_on_cuda(batch, devices),
    })
}

/// Each worker needs a slot: where memory for slots is short, fewer may come.
fn cut_growth(workers: &mut [WorkerPlan], slots: usize) {
    while workers.iter().map(WorkerPlan::most).sum::<usize>() > slots {
        let Some(largest) = workers.iter_mut().filter(|s| s.growth.is_some()).max_by_key(|s| s.most()) else {
            return;
        };
        largest.growth =
            largest.growth.map(|g| WorkerGrowth { most: g.most - 1, ..g }).filter(|g| g.most > largest.count);
    }
}

/// Takes loaders away until each can have what a loader needs at least, or each source has one. Warns where the file asks for more, in
/// `limits`.
pub(crate) fn fewer_loaders(plan: &mut Plan, limits: Option<&Spanned<u64>>, cx: &mut Cx<'_>) {
    let before = plan.n_loaders();
    while plan.loader_share() < LEAST_LOADER_BYTES
        && let Some(largest) = plan.pipelines.iter_mut().max_by_key(|pipeline| pipeline.loaders)
        && largest.loaders > 1
    {
        largest.loaders -= 1;
    }
    let after = plan.n_loaders();
    if after == before {
        return;
    }
    plan.loader_threads = plan.loader_threads.min(after);
    plan.reasons.push(format!(
        "loaders: {after} instead of {before}: {} are left for them, of which one takes {}, and one that has an item alone {}; `limits.memory` gives them more",
        format_bytes(plan.bytes_left),
        format_bytes(LEAST_LOADER_BYTES),
        format_bytes(plan.least_alone()),
    ));
    if let Some(asked) = limits.filter(|n| n.value > after as u64) {
        let message = format!("`limits.loaders` is {}, but memory has room for {after}", asked.value);
        let warning = cx.warning(asked.span, message).label(format!("{after} start"));
        warning.help("lower it, or raise `limits.memory`");
    }
}
