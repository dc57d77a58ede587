//! How busy a GPU is while a worker is measured on it, by its driver's account. It starts nothing.

use std::time::Duration;

use orchestra_machine::{Gpu, GpuProbe};

/// Time between two looks. The driver's account is of its last sample period, a sixth of a second to one second.
const BETWEEN: Duration = Duration::from_millis(100);

/// Looks at one GPU now and then.
pub struct Meter<'a> {
    probe: &'a dyn GpuProbe,
    uuid: &'a str,
    /// When to look again, from the beginning of the measurement.
    next: Duration,
    percents: Vec<u8>,
}

impl<'a> Meter<'a> {
    /// For a measurement that lasts so long. Looks in its second half, whose sample periods began after it did.
    pub fn new(probe: &'a dyn GpuProbe, uuid: &'a str, lasting: Duration) -> Self {
        Self { probe, uuid, next: lasting / 2, percents: Vec::new() }
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, elapsed: Duration) {
        if elapsed < self.next {
            return;
        }
        self.next = elapsed + BETWEEN;
        if let Ok(Gpu { utilization: Some(percent), .. }) = self.probe.gpu_by_uuid(self.uuid) {
            self.percents.push(percent);
        }
    }

    /// The part of the time in which a kernel ran, as a median of what was seen; `None` where the driver does not tell.
    pub fn busy(mut self) -> Option<f64> {
        self.percents.sort_unstable();
        self.percents.get(self.percents.len() / 2).map(|percent| f64::from(*percent) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_machine::FakeProbe;

    use super::*;

    #[test]
    fn a_gpu_is_as_busy_as_the_driver_says_in_the_second_half() {
        let gpu = Gpu { uuid: "GPU-1".into(), utilization: Some(10), ..Gpu::default() };
        let probe = FakeProbe::new(vec![gpu]);
        let ms = Duration::from_millis;
        let mut meter = Meter::new(&probe, "GPU-1", ms(1000));
        for (at, percent) in [(400, 10), (499, 10), (510, 90), (520, 20), (600, 30), (620, 96), (730, 98)] {
            probe.change("GPU-1", |gpu| gpu.utilization = Some(percent));
            meter.look(ms(at));
        }
        // Those of 510, 620 and 730 ms.
        assert_eq!(meter.busy(), Some(0.96));
        probe.change("GPU-1", |gpu| gpu.utilization = None);
        let mut meter = Meter::new(&probe, "GPU-1", ms(0));
        meter.look(ms(1));
        assert_eq!(meter.busy(), None, "an instance of a GPU that is cut has no account");
    }
}
