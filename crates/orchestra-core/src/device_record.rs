//! What one stage has learnt about its devices: which are left, which have ever got anything right, and where something has died
//! since. It judges no item; `blame` does that.

use std::collections::BTreeMap;

use crate::ids::DeviceId;

#[derive(Debug, Clone, Copy, Default)]
struct Device {
    is_gone: bool,
    /// Something went well there in this run.
    is_proven: bool,
    /// Strong deaths since something last went well there.
    deaths: u32,
    /// Workers that are gone and whose replacements have not come yet.
    coming: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct DeviceRecord {
    devices: BTreeMap<DeviceId, Device>,
}

impl DeviceRecord {
    /// The stage has workers there, or will have.
    pub fn expect(&mut self, device: DeviceId) {
        self.devices.entry(device).or_default();
    }

    /// The device was given up.
    pub fn gone(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.is_gone = true;
        of.coming = 0;
    }

    /// A worker is ready there.
    pub fn worker_came(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.is_gone = false;
        of.coming = of.coming.saturating_sub(1);
    }

    /// A worker is gone that will be replaced, unless its place is given up.
    pub fn worker_went(&mut self, device: DeviceId) {
        self.devices.entry(device).or_default().coming += 1;
    }

    /// Whatever was to come has had its time.
    pub fn expect_no_more_workers(&mut self) {
        self.devices.values_mut().for_each(|d| d.coming = 0);
    }

    /// A batch went well there.
    pub fn succeeded(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.is_proven = true;
        of.deaths = 0;
    }

    /// A worker died there of strong evidence while it ran a batch.
    pub fn died(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.deaths = of.deaths.saturating_add(1);
    }

    /// Devices that are not given up.
    pub fn left(&self) -> impl Iterator<Item = DeviceId> {
        self.devices.iter().filter(|(_, d)| !d.is_gone).map(|(id, _)| *id)
    }

    /// Whether a worker is to be expected somewhere.
    #[must_use]
    pub fn expects_workers(&self) -> bool {
        self.devices.values().any(|d| d.coming > 0)
    }

    /// Strong deaths since something last went well there.
    #[must_use]
    pub fn deaths_in_a_row(&self, device: DeviceId) -> u32 {
        self.devices.get(&device).map_or(0, |d| d.deaths)
    }

    /// Nothing has died there since the last success.
    #[must_use]
    pub fn is_sound(&self, device: DeviceId) -> bool {
        self.deaths_in_a_row(device) == 0
    }

    /// Something went well there in this run.
    #[must_use]
    pub fn is_proven(&self, device: DeviceId) -> bool {
        self.devices.get(&device).is_some_and(|d| d.is_proven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: DeviceId = DeviceId(0);

    #[test]
    fn a_death_puts_a_device_in_doubt_until_something_succeeds_there() {
        let mut record = DeviceRecord::default();
        record.expect(HERE);
        assert!(record.is_sound(HERE) && !record.is_proven(HERE));
        record.died(HERE);
        record.died(HERE);
        assert_eq!((record.is_sound(HERE), record.deaths_in_a_row(HERE)), (false, 2));
        record.succeeded(HERE);
        assert!(record.is_sound(HERE) && record.is_proven(HERE));
        record.died(HERE);
        assert!(!record.is_sound(HERE) && record.is_proven(HERE), "it has worked once, whatever comes");
    }

    #[test]
    fn a_device_that_was_given_up_is_not_left_and_nobody_is_expected_there() {
        let mut record = DeviceRecord::default();
        record.expect(HERE);
        record.expect(DeviceId(1));
        record.worker_went(HERE);
        assert!(record.expects_workers());
        record.gone(HERE);
        assert!(!record.expects_workers());
        assert_eq!(record.left().collect::<Vec<_>>(), [DeviceId(1)]);
    }
}
