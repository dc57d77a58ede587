//! A run below the supervisor of a host: an actor of the host's own tree, which starts the run again when that dies.
//!
//!     cargo run -p orchestra --example embed-actor -- OUTPUT
//!
//! It kills its run once, so that the restart can be seen: each of the 400 pictures has one record all the same.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use orchestra::actor::ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent, call_t};
use orchestra::actor::{RunActor, RunArguments, RunMessage, RunState};
use orchestra::{Orchestra, Workflow};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/workflow.toml");
/// Starts in all, before the host gives up.
const MOST_STARTS: u32 = 3;

/// Has one child, the run.
struct Host;

struct HostState {
    orchestra: Orchestra,
    workflow: Workflow,
    run: ActorRef<RunMessage>,
    n_starts: u32,
}

enum HostMessage {
    /// Kill the run once it has started.
    KillOnce,
}

async fn start(
    orchestra: &Orchestra,
    workflow: &Workflow,
    host: &ActorRef<HostMessage>,
) -> Result<ActorRef<RunMessage>, ActorProcessingErr> {
    let arguments = RunArguments { orchestra: orchestra.clone(), workflow: workflow.clone() };
    Ok(RunActor::spawn_linked(None, RunActor, arguments, host.get_cell()).await?.0)
}

impl Actor for Host {
    type Msg = HostMessage;
    type State = HostState;
    type Arguments = (Orchestra, Workflow);

    async fn pre_start(
        &self,
        myself: ActorRef<HostMessage>,
        (orchestra, workflow): Self::Arguments,
    ) -> Result<HostState, ActorProcessingErr> {
        let run = start(&orchestra, &workflow, &myself).await?;
        myself.cast(HostMessage::KillOnce)?;
        Ok(HostState { orchestra, workflow, run, n_starts: 1 })
    }

    async fn handle(
        &self,
        myself: ActorRef<HostMessage>,
        _: HostMessage,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        let status = call_t!(state.run, RunMessage::Status, 1000)?;
        if status.is_some() {
            println!("killed after start {}", state.n_starts);
            state.run.kill();
        } else {
            myself.send_after(Duration::from_millis(5), || HostMessage::KillOnce);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<HostMessage>,
        event: SupervisionEvent,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        let report = match event {
            SupervisionEvent::ActorTerminated(_, Some(mut run), _) => {
                run.take::<RunState>()?.report().cloned()
            }
            SupervisionEvent::ActorTerminated(_, None, _) => None,
            SupervisionEvent::ActorFailed(_, error) => {
                eprintln!("the run has failed: {error}");
                None
            }
            _ => return Ok(()),
        };
        match report {
            Some(report) => {
                println!("{} done, {} failed", report.items().done, report.items().failed);
                myself.stop(None);
            }
            None if state.n_starts == MOST_STARTS => return Err("the run dies again and again".into()),
            // It goes on where it was.
            None => {
                state.run = start(&state.orchestra, &state.workflow, &myself).await?;
                state.n_starts += 1;
            }
        }
        Ok(())
    }
}

async fn host(output: PathBuf) -> Result<(), Box<dyn Error>> {
    let orchestra = Orchestra::builder().build().await?;
    let workflow = Workflow::open(DIGITS)?.output(output).devices(["cpu"]);
    let (_, ended) = Host::spawn(None, Host, (orchestra, workflow)).await?;
    ended.await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    orchestra::run_if_worker(); // workers are copies of this program
    let output = std::env::args_os().nth(1).ok_or("name a folder for the results")?;
    tokio::runtime::Runtime::new()?.block_on(host(output.into()))
}
