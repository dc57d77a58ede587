//! The threads that look at the devices of a run, one for each: a driver that hangs over one of them blinds nobody to the others. What is
//! seen is `device_watch`'s business.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use orchestra_core::DeviceId;

use crate::account::stats::Stats;
use crate::context::{RunClock, RunContext};
use crate::fleet::device_watch::{DeviceOptions, DeviceWatch};

/// See the module. Dropping it ends the threads, each after the look at which it is.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl Watcher {
    pub(crate) fn start(context: &RunContext) -> io::Result<Self> {
        let mut watcher = Self { stop: Arc::default(), threads: Vec::new() };
        for (device, plan) in (0..).map(DeviceId).zip(&context.plan.devices) {
            let looker = Looker {
                device,
                watch: Arc::clone(&context.watch),
                stats: Arc::clone(&context.stats),
                clock: context.clock,
                options: context.options.devices.clone(),
                stop: Arc::clone(&watcher.stop),
            };
            let name = format!("look {}", plan.spec.name);
            let thread = thread::Builder::new().name(name).spawn(move || looker.look_on())?.thread().clone();
            context.watch.looked_at_by(device, thread.clone());
            watcher.threads.push(thread);
        }
        Ok(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.threads.iter().for_each(Thread::unpark);
    }
}

struct Looker {
    device: DeviceId,
    watch: Arc<DeviceWatch>,
    stats: Arc<Stats>,
    clock: RunClock,
    options: DeviceOptions,
    stop: Arc<AtomicBool>,
}

impl Looker {
    fn look_on(&self) {
        let stats = self.stats.device(self.device);
        let is_settled = || stats.ready.get() > 0 && stats.starting() == 0;
        while !self.stop.load(Ordering::Acquire) {
            let live = self.stats.workers.all();
            self.watch.look(self.device, self.options.probe.as_deref(), &live, is_settled, self.clock.now());
            thread::park_timeout(self.options.look_every);
        }
    }
}
