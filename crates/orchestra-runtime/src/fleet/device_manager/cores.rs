//! The part of a device manager that starts more workers on the cores where a stage has work for them (`orchestra_core::core_growth`). It
//! ends none.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::StageId;
use orchestra_core::core_growth::{CoreUse, more_workers};
use orchestra_machine::Memory;
use orchestra_machine::processes::process_memory;
use ractor::ActorRef;

use super::{DeviceState, loads};
use crate::messages::DeviceMsg;

/// How often a device is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl DeviceState {
    /// Looks at once in a while, if some stage may get more workers of the cores.
    pub(super) fn look_at_cores_later(&self, me: &ActorRef<DeviceMsg>) {
        let (plan, device) = (&self.args.context.plan, self.args.device);
        let of_stages = plan.batch_stages().flat_map(|(_, batch)| &batch.workers);
        let mut here = of_stages.filter(|workers| workers.device == device);
        let cores = plan.devices[device.index()].cores;
        if cores > 0 && here.any(|workers| workers.growth.is_some()) && !self.shutting_down {
            me.send_after(LOOK_EVERY, || DeviceMsg::LookAtCores);
        }
    }

    /// Starts more workers of a stage that has work for them, if it is time.
    pub(super) fn look_at_cores(&mut self, me: &ActorRef<DeviceMsg>) {
        let (now, device) = (self.args.context.clock.now(), self.args.device);
        let context = Arc::clone(&self.args.context);
        let behind = context.plan.batch_stages_behind();
        let (mut stages, mut uses) = (Vec::new(), Vec::new());
        for (at, served) in self.served.iter_mut().enumerate().filter(|(_, served)| served.serve.is_some()) {
            let Some((streams, plan)) = loads::worker_plan(&context.plan, device, served.stage) else {
                continue;
            };
            let stats = context.stats.stage(served.stage);
            let batches = stats.on(device).map_or(0, |on| on.run_time.count());
            let serving = self.workers.values().filter(|w| w.at == at && w.ready_since.is_some()).count();
            let may_grow = if !served.worker_places.is_served() {
                served.busy.begin(now, stats.busy.time(), batches);
                false
            } else {
                served.busy.ends(now, serving, (stats.busy.time(), batches)) && !served.is_refused
            };
            stages.push(served.stage);
            uses.push(CoreUse {
                stages_behind: behind[served.stage.index()],
                workers: serving,
                most: if may_grow { plan.most() } else { serving },
                cores_each: plan.threads + streams - 1,
                busy: served.busy.share(),
            });
        }
        let cores = context.plan.devices[device.index()].cores;
        if let Some((at, more)) = more_workers(cores, &uses) {
            let stage = stages[at];
            self.grow(me, stage, more.min(self.fitting(stage)));
        }
        self.look_at_cores_later(me);
    }

    /// Workers of a stage that half of the free memory has room for, by what those hold that are there.
    fn fitting(&self, stage: StageId) -> usize {
        let live = self.args.context.stats.workers.all().into_iter().filter(|live| live.stage == stage);
        let each = live.filter_map(|live| process_memory(live.pid)).map(|memory| memory.private).max();
        let free = Memory::read(Path::new("/")).available / 2;
        usize::try_from(free / each.unwrap_or(1).max(1)).unwrap_or(usize::MAX)
    }
}
