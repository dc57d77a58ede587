//! A run below the supervisor of a host: the supervisor kills it, starts it again, and each item has one record.

use crate::common::{AS_IT_IS, Workplace, all_are_read, audited, bounded, until};
use crate::orchestra;
use ::orchestra::Workflow;
use ::orchestra::actor::ractor::{
    Actor, ActorProcessingErr, ActorRef, SupervisionEvent, call_t, concurrency::oneshot,
};
use ::orchestra::actor::{RunActor, RunArguments, RunMessage};
use tokio::sync::oneshot::Sender;

const ITEMS: u64 = 120;
/// Results after which the run is killed.
const SOME: usize = 24;

/// Starts the run again as often as it is killed.
struct Host;

struct HostState {
    run: ActorRef<RunMessage>,
    arguments: Box<dyn Fn() -> RunArguments + Send>,
    n_ended: u32,
    told: Option<Sender<(u32, u64)>>,
}

impl Actor for Host {
    type Msg = Sender<ActorRef<RunMessage>>;
    type State = HostState;
    type Arguments = (Box<dyn Fn() -> RunArguments + Send>, Sender<(u32, u64)>);

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        (arguments, told): Self::Arguments,
    ) -> Result<HostState, ActorProcessingErr> {
        let (run, _) = RunActor::spawn_linked(None, RunActor, arguments(), myself.get_cell()).await?;
        Ok(HostState { run, arguments, n_ended: 0, told: Some(told) })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        reply: Self::Msg,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        drop(reply.send(state.run.clone()));
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        let done = match event {
            SupervisionEvent::ActorTerminated(_, Some(mut run), _) => {
                let run = run.take::<<RunActor as Actor>::State>()?;
                run.report().map(|report| report.items().done)
            }
            SupervisionEvent::ActorTerminated(_, None, _) | SupervisionEvent::ActorFailed(..) => None,
            _ => return Ok(()),
        };
        match done {
            Some(done) => drop(state.told.take().map(|told| told.send((state.n_ended, done)))),
            None => {
                state.n_ended += 1;
                let again = (state.arguments)();
                (state.run, _) = RunActor::spawn_linked(None, RunActor, again, myself.get_cell()).await?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_run_that_its_supervisor_kills_and_starts_again_has_each_item_once() {
    audited(async {
        let mut place = Workplace::with_pictures(ITEMS);
        place
            .gated("slow", 2)
            .image("pixels", "scans", AS_IT_IS)
            .infer("read", "pixels", "slow", 4)
            .sink("all", "read", "")
            .devices(1);
        place.write_workflow();
        let orchestra = orchestra(place.options()).build().await.unwrap();
        let workflow = Workflow::open(place.path("workflow.toml")).unwrap().output(place.out());
        let arguments =
            Box::new(move || RunArguments { orchestra: orchestra.clone(), workflow: workflow.clone() });
        let (tell, told) = oneshot();
        place.gate().close_after(SOME).unwrap();
        let (host, host_ended) = Actor::spawn(None, Host, (arguments as Box<_>, tell)).await.unwrap();
        for n in 1..=3 {
            until("there are results", || place.n_lines("all.jsonl") >= SOME * n).await;
            let (reply, run) = oneshot();
            host.cast(reply).unwrap();
            let run = run.await.unwrap();
            let status = call_t!(run, RunMessage::Status, 10_000).unwrap();
            assert!(status.is_none_or(|status| status.items().done <= ITEMS));
            run.kill();
            place.gate().raise_to(SOME * (n + 1) + 64 * n).unwrap();
        }
        place.gate().open().unwrap();
        let (n_ended, done) = bounded("the run ends", told).await.unwrap();
        assert_eq!((n_ended, done), (3, ITEMS));
        all_are_read(&place, ITEMS);
        host.stop(None);
        bounded("the host ends", host_ended).await.unwrap();
        until("its workers are gone", || place.workers().is_empty()).await;
    });
}
