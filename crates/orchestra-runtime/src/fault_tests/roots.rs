//! A whole run whose devices or commands lose their actor to a bug: it ends by itself, says so, and leaves nothing at work.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orchestra_testkit::workflow_file::WorkflowFile;
use ractor::{ActorCell, ActorStatus, Message};
use tempfile::TempDir;
use tokio::time::timeout;

use super::fake_plan::plan_of_text;
use super::fake_process::{FakeEngine, options_with};
use super::log::Log;
use super::script::*;
use crate::child::spawn::ProcessLauncher;
use crate::context::RunOptions;
use crate::messages::{DeviceMsg, PipelineMsg};
use crate::start::{Earlier, RunHandle, RunOutcome, prepare};
use crate::tasks::actor::TasksMsg;

/// What of the workflow is run.
#[derive(PartialEq)]
enum Only {
    Pipelines,
    Tasks,
}

/// A run that would go on for ever: its workers hang, and its commands never begin.
async fn start(only: Only, output: &Path) -> RunHandle {
    let mut flow = WorkflowFile::new()
        .source("numbers", "random", "items = 100\nshape = [1, 1, 1]")
        .model("fake", "fake.onnx")
        .infer("read", "numbers", "fake")
        .sink("all", "jsonl", "read");
    if only == Only::Tasks {
        flow = flow.table("tasks.one", "command = ['true']");
    }
    let plan = plan_of_text(&flow, output).unwrap();
    let engine = FakeEngine::new(Log::start(), |_| Script::at_every_run(RunFault::Hang));
    let keeper = ProcessLauncher { program: "sleep".into(), args: vec!["1000".into()], env: Vec::new() };
    let options = options_with(&plan, engine);
    let options = RunOptions { keepers: Some(keeper), tasks_only: only == Only::Tasks, ..options };
    let prepared = prepare(Arc::new(plan), Earlier::GoOn, None, None).unwrap();
    prepared.start(options).await.unwrap()
}

/// The actor below the root that takes these messages.
fn below_root<M: Message>(run: &RunHandle) -> ActorCell {
    let children = run.root.0.get_children();
    let takes = |child: &ActorCell| child.is_message_type_of::<M>() == Some(true);
    children.into_iter().find(takes).expect("the run has such an actor")
}

pub async fn end_of(run: RunHandle) -> RunOutcome {
    timeout(Duration::from_secs(60), run.wait()).await.expect("the run ends by itself")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_device_manager_falls_over_ends_with_70_once_its_pipelines_have_ended() {
    let folder = TempDir::new().unwrap();
    let run = start(Only::Pipelines, folder.path()).await;
    let pipeline = below_root::<PipelineMsg>(&run);
    // There is no such place.
    below_root::<DeviceMsg>(&run).send_message(DeviceMsg::StartWorker { post: 999, place: 0 }).unwrap();
    let outcome = end_of(run).await;
    assert_eq!((outcome.exit_code, pipeline.get_status()), (70, ActorStatus::Stopped));
    assert!(outcome.problems[0].contains("a device manager"), "{:?}", outcome.problems);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_commands_alone_ends_with_70_when_their_owner_falls_over() {
    let folder = TempDir::new().unwrap();
    let run = start(Only::Tasks, folder.path()).await;
    // There is no such task.
    let ended = TasksMsg::Ended(999, Box::new(Err(io::Error::other("no such task"))));
    below_root::<TasksMsg>(&run).send_message(ended).unwrap();
    let outcome = end_of(run).await;
    assert_eq!(outcome.exit_code, 70);
    assert!(outcome.problems[0].contains("the owner of the commands fell over"), "{:?}", outcome.problems);
}
