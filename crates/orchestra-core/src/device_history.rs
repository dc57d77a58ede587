//! What one stage has learnt about its devices: which are left, which have ever got anything right, and where something has died or
//! was refused since. Which item is to blame, `blame` decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::DeviceId;

/// So often in a row may a device refuse what it is given; then it rests. An item that deserves it is cut out of its batch by fewer, since
/// its neighbours succeed in between.
const REFUSALS_BEFORE_REST: u32 = 4;
/// Its first rest; each further one, for as long as nothing succeeds, is twice as long.
const REST: Duration = Duration::from_millis(100);
/// A rest is doubled so often, and no more.
const REST_DOUBLINGS: u32 = 6;

#[derive(Debug, Clone, Copy, Default)]
struct DeviceHealth {
    is_gone: bool,
    /// Something went well there in this run.
    is_proven: bool,
    /// Strong deaths since something last went well there.
    deaths: u32,
    /// How often a worker that lives had no result for what it was given there, since something last went well.
    refusals: u32,
    rests_until: Duration,
    /// Workers that are gone and whose replacements have not come yet.
    coming: u32,
}

#[derive(Debug, Default)]
pub struct DeviceHistory {
    devices: BTreeMap<DeviceId, DeviceHealth>,
}

impl DeviceHistory {
    pub fn expect(&mut self, device: DeviceId) {
        self.devices.entry(device).or_default();
    }

    pub fn gone(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.is_gone = true;
        of.coming = 0;
    }

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

    pub fn succeeded(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.is_proven = true;
        (of.deaths, of.refusals, of.rests_until) = (0, 0, Duration::ZERO);
    }

    /// A worker there lives and has no result for what it was given.
    pub fn refused(&mut self, device: DeviceId, now: Duration) {
        let of = self.devices.entry(device).or_default();
        of.refusals = of.refusals.saturating_add(1);
        if let Some(rests) = of.refusals.checked_sub(REFUSALS_BEFORE_REST) {
            of.rests_until = now + REST * 2u32.pow(rests.min(REST_DOUBLINGS));
        }
    }

    /// It refuses whatever it is given, and is left alone for a while.
    pub fn is_resting(&self, device: DeviceId, now: Duration) -> bool {
        self.devices.get(&device).is_some_and(|d| now < d.rests_until)
    }

    pub fn next_rested(&self, now: Duration) -> Option<Duration> {
        self.devices.values().filter(|d| !d.is_gone).map(|d| d.rests_until).filter(|end| *end > now).min()
    }

    /// A worker died there of strong evidence while it ran a batch.
    pub fn died(&mut self, device: DeviceId) {
        let of = self.devices.entry(device).or_default();
        of.deaths = of.deaths.saturating_add(1);
    }

    pub fn left(&self) -> impl Iterator<Item = DeviceId> {
        self.devices.iter().filter(|(_, d)| !d.is_gone).map(|(id, _)| *id)
    }

    pub fn expects_workers(&self) -> bool {
        self.devices.values().any(|d| d.coming > 0)
    }

    pub fn deaths_in_a_row(&self, device: DeviceId) -> u32 {
        self.devices.get(&device).map_or(0, |d| d.deaths)
    }

    /// Nothing has died there since the last success.
    pub fn is_sound(&self, device: DeviceId) -> bool {
        self.deaths_in_a_row(device) == 0
    }

    /// Since the last success something has died there, or so much was refused that it had to rest.
    pub fn is_in_doubt(&self, device: DeviceId) -> bool {
        self.devices.get(&device).is_some_and(|d| d.deaths > 0 || d.refusals >= REFUSALS_BEFORE_REST)
    }

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
        let mut history = DeviceHistory::default();
        history.expect(HERE);
        assert!(history.is_sound(HERE) && !history.is_proven(HERE));
        history.died(HERE);
        history.died(HERE);
        assert_eq!((history.is_sound(HERE), history.deaths_in_a_row(HERE)), (false, 2));
        history.succeeded(HERE);
        assert!(history.is_sound(HERE) && history.is_proven(HERE));
        history.died(HERE);
        assert!(!history.is_sound(HERE) && history.is_proven(HERE), "it has worked once, whatever comes");
    }

    #[test]
    fn a_device_that_refuses_everything_rests_longer_and_longer_until_something_succeeds_there() {
        let mut history = DeviceHistory::default();
        let at = Duration::from_millis;
        for _ in 1..REFUSALS_BEFORE_REST {
            history.refused(HERE, at(0));
        }
        assert!(!history.is_resting(HERE, at(0)) && !history.is_in_doubt(HERE), "an item may deserve that");
        for (now, end) in [(10, 110), (110, 310), (310, 710)] {
            history.refused(HERE, at(now));
            assert!(history.is_resting(HERE, at(end - 1)) && !history.is_resting(HERE, at(end)));
            assert_eq!((history.next_rested(at(now)), history.next_rested(at(end))), (Some(at(end)), None));
            assert!(history.is_in_doubt(HERE) && history.is_sound(HERE), "nothing has died");
        }
        (0..100).for_each(|_| history.refused(HERE, at(1_000)));
        assert_eq!(history.next_rested(at(1_000)), Some(at(1_000) + REST * 64), "a rest is bounded");
        history.succeeded(HERE);
        assert!(!history.is_resting(HERE, at(1_000)) && !history.is_in_doubt(HERE));
        history.refused(HERE, at(1_000));
        assert!(!history.is_resting(HERE, at(1_000)), "counted from the success");
    }

    #[test]
    fn a_device_that_was_given_up_is_not_left_and_no_worker_is_expected_there() {
        let mut history = DeviceHistory::default();
        history.expect(HERE);
        history.expect(DeviceId(1));
        history.worker_went(HERE);
        assert!(history.expects_workers());
        history.gone(HERE);
        assert!(!history.expects_workers());
        assert_eq!(history.left().collect::<Vec<_>>(), [DeviceId(1)]);
    }
}
