//! A moment as collectors are told it. A run's clock counts from its start; this is the time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wall(u64);

impl Wall {
    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(time)))
    }

    pub(super) fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.0)
    }
}

impl From<SystemTime> for Wall {
    /// 0 for what was before 1970, which only a clock that is set wrong shows.
    fn from(time: SystemTime) -> Self {
        Self(nanoseconds(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
