//! The threads that look at the devices of a run, one for each: a driver that hangs over one of them blinds nobody to the others. What is
//! seen is `device_watch`'s business.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use orchestra_core::DeviceId;

use crate::context::RunContext;

/// See the module. Dropping it ends the threads, each after the look at which it is.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl Watcher {
    pub(crate) fn start(context: &RunContext) -> io::Result<Self> {
        let mut watcher = Self { stop: Arc::default(), threads: Vec::new() };
        for (device, plan) in (0..).map(DeviceId).zip(&context.plan.devices) {
            let (watch, stats) = (Arc::clone(&context.watch), Arc::clone(&context.stats));
            let (clock, options, stop) =
                (context.clock, context.options.devices.clone(), Arc::clone(&watcher.stop));
            let look_on = move || {
                let on = stats.device(device);
                let is_settled = || on.ready.get() > 0 && on.starting() == 0;
                while !stop.load(Ordering::Acquire) {
                    watch.look(
                        device,
                        options.probe.as_deref(),
                        &stats.workers.all(),
                        is_settled,
                        clock.now(),
                    );
                    thread::park_timeout(options.look_every);
                }
            };
            let name = format!("look {}", plan.spec.name);
            let thread = thread::Builder::new().name(name).spawn(look_on)?.thread().clone();
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
