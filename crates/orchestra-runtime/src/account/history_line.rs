//! The lines of the history of a run, and how they are read. Writes none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use orchestra_core::{DeviceId, StageId, WorkerId};
use orchestra_machine::MachineUse;
use orchestra_plan::{GraphView, Plan, TaskPlan};
use orchestra_store::OutputFolder;
use serde::{Deserialize, Serialize};

use crate::account::status::RunStatus;
use crate::context::RunContext;
use crate::events::WorkerEvent;

/// The file in the private folder.
pub(super) const HISTORY: &str = "history.jsonl";

/// Names and fields are part of the contract with users.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HistoryLine {
    /// Seconds since 1970.
    pub at: f64,
    /// The whole machine then; with a status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineUse>,
    #[serde(flatten)]
    pub event: HistoryEvent,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum HistoryEvent {
    Start {
        run_id: String,
        workflow: String,
        orchestra: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<Box<PlannedRun>>,
    },
    Status(Box<RunStatus>),
    WorkerStarted {
        worker: WorkerId,
        device: String,
        stage: String,
        pid: Option<u32>,
    },
    WorkerReady {
        worker: WorkerId,
        seconds: f64,
    },
    WorkerEnded {
        worker: WorkerId,
        exit: String,
    },
    DeviceLost {
        device: String,
        why: String,
    },
    End {
        exit_code: i32,
    },
}

/// What a start was planned to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedRun {
    /// The workflow file.
    pub file: PathBuf,
    pub pipelines: Vec<orchestra_plan::PipelineView>,
    /// The second part of a start: its items, which are planned by what its tasks have come to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_second_part: bool,
    /// Decisions of the planner, in words.
    pub reasons: Vec<String>,
    /// Cores that the run may keep busy.
    pub cores: usize,
    /// ONNX Runtime and its version, where it runs models.
    pub engine: Option<String>,
    /// What bounds each task of a table, by the table's name; tables without a bound are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub task_limits: BTreeMap<String, TaskLimits>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskLimits {
    pub seconds: Option<f64>,
    /// Bytes.
    pub memory: Option<u64>,
}

impl PlannedRun {
    pub(super) fn of(context: &RunContext) -> Self {
        let plan = &context.plan;
        let limits = |task: &TaskPlan| TaskLimits {
            seconds: task.timeout.map(|timeout| timeout.as_secs_f64()),
            memory: task.memory,
        };
        let limits = plan.tasks.tasks.iter().map(|task| (task.name.clone(), limits(task)));
        let engine = context.options.engine.as_ref();
        Self {
            file: plan.file.clone(),
            pipelines: GraphView::new(plan).pipelines,
            is_second_part: context.options.first_part.is_some(),
            reasons: plan.reasons.clone(),
            cores: context.cores,
            engine: engine.map(|of| format!("{} {}", of.name, of.version.as_deref().unwrap_or("unknown"))),
            task_limits: limits.filter(|(_, limits)| *limits != TaskLimits::default()).collect(),
        }
    }
}

impl HistoryEvent {
    pub(super) fn of(event: &WorkerEvent, plan: &Plan) -> Option<Self> {
        let device_name = |device: DeviceId| plan.devices[device.index()].spec.name.clone();
        let stage_name = |stage: StageId| plan.stages[stage.index()].name.clone();
        Some(match event {
            &WorkerEvent::Started { worker, device, stage, pid } => {
                Self::WorkerStarted { worker, device: device_name(device), stage: stage_name(stage), pid }
            }
            WorkerEvent::Ready { worker, after } => {
                Self::WorkerReady { worker: *worker, seconds: after.as_secs_f64() }
            }
            WorkerEvent::Ended { worker, exit } => {
                Self::WorkerEnded { worker: *worker, exit: exit.to_string() }
            }
            WorkerEvent::DeviceLost { device, why } => {
                Self::DeviceLost { device: device_name(*device), why: why.clone() }
            }
            WorkerEvent::BatchDone { .. } => return None,
        })
    }
}

/// Visits the lines of the history of an output folder, in their order. What is no line of it, such as the last one of a run that was killed, is passed
/// over. A folder without a history has no lines.
pub fn each_history_line(output: &Path, mut visit: impl FnMut(HistoryLine)) -> io::Result<()> {
    let file = match File::open(output.join(OutputFolder::private_file(HISTORY))) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Ok(line) = serde_json::from_slice(&line) {
            visit(line);
        }
        line.clear();
    }
    Ok(())
}
