//! Observer: looks at the counters a few times a second, and once at the end, and publishes what it sees. It changes nothing, but says
//! which devices give no answer, and now and then what all of them took.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

use crate::account::snapshot::Snapshot;
use crate::context::RunContext;

const INTERVAL: Duration = Duration::from_millis(200);
/// How often the log says what devices and pipelines took up to then.
const LOG_EVERY: Duration = Duration::from_secs(60);

pub struct Observer;

pub struct ObserverArgs {
    pub context: Arc<RunContext>,
    pub publish: watch::Sender<Snapshot>,
}

impl ObserverArgs {
    fn look(&self) {
        self.context.watch.note_silence(self.context.clock.now());
        self.publish.send_replace(Snapshot::take(&self.context));
    }
}

/// The end of a run: its root takes the observer with it, without a last message.
impl Drop for ObserverArgs {
    fn drop(&mut self) {
        self.look();
    }
}

pub struct Observing {
    args: ObserverArgs,
    log_at: Duration,
}

pub struct Look;

impl Actor for Observer {
    type Msg = Look;
    type State = Observing;
    type Arguments = ObserverArgs;

    async fn pre_start(
        &self,
        me: ActorRef<Look>,
        args: ObserverArgs,
    ) -> Result<Observing, ActorProcessingErr> {
        me.send_interval(INTERVAL, || Look);
        Ok(Observing { args, log_at: LOG_EVERY })
    }

    async fn handle(
        &self,
        _: ActorRef<Look>,
        _: Look,
        state: &mut Observing,
    ) -> Result<(), ActorProcessingErr> {
        state.args.look();
        let context = &state.args.context;
        if context.clock.now() >= state.log_at {
            state.log_at = context.clock.now() + LOG_EVERY;
            context.watch.log(&context.plan);
        }
        Ok(())
    }
}
