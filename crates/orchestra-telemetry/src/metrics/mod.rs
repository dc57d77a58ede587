//! Metrics of a run: a page for Prometheus. Its numbers are read when it is asked for; nothing here counts, and nothing here can hold up what counts.
//!
//! ```no_run
//! use std::sync::Arc;
//! use orchestra_telemetry::metrics::{Metrics, Reading, names, page_address};
//!
//! let metrics = Metrics::start(page_address("127.0.0.1:9464")?)?;
//! metrics.observe(Arc::new(|| {
//!     let mut reading = Reading::new();
//!     reading.add(&names::ITEMS_DONE, &["scans"], 17_u64);
//!     reading
//! }));
//! # Ok::<_, orchestra_telemetry::TelemetryError>(())
//! ```

pub mod names;
mod page;
mod reading;
mod server;
mod settings;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

pub use names::{Instrument, InstrumentKind};
pub use reading::{Buckets, MetricValue, Point, Reading};
pub use server::names_this_machine;
pub use settings::page_address;

#[doc(hidden)]
pub use server::answer_to;

use crate::TelemetryError;
use orchestra_core::locked;
use server::PageServer;

/// Reads all numbers at one moment. Called whenever the page is asked for, by threads of this module; it should take no longer than some
/// milliseconds, or the page is late.
pub type MetricSource = Arc<dyn Fn() -> Reading + Send + Sync>;

/// Metrics that are being served. Dropping it ends the page.
pub struct Metrics {
    source: Arc<Mutex<Option<MetricSource>>>,
    page: PageServer,
}

impl Metrics {
    /// Listens at the address, and starts the thread that serves.
    ///
    /// # Errors
    /// The address is taken or not of this machine, or no thread could be started.
    pub fn start(address: SocketAddr) -> Result<Self, TelemetryError> {
        let source = Arc::default();
        Ok(Self { page: PageServer::start(address, reader(&source))?, source })
    }

    pub fn page_address(&self) -> SocketAddr {
        self.page.address
    }

    /// Where the numbers come from. Until this is called, only the version of the program is known. The last call counts.
    pub fn observe(&self, source: MetricSource) {
        *locked(&self.source) = Some(source);
    }
}

/// What `source` gives once it is known, which is long after the page was asked for, and the version of the program.
fn reader(source: &Arc<Mutex<Option<MetricSource>>>) -> MetricSource {
    let source = Arc::clone(source);
    Arc::new(move || {
        let now = locked(&source).clone();
        let mut reading = now.map_or_else(Reading::new, |source| source());
        reading.add(&names::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1_u64);
        reading
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_run_begins_the_version_is_known_and_nothing_else() {
        let source = Arc::<Mutex<Option<MetricSource>>>::default();
        let names = |reading: Reading| reading.families().map(|(i, _)| i.name).collect::<Vec<_>>();
        let read = reader(&source);
        assert_eq!(names(read()), [names::BUILD_INFO.name]);
        *locked(&source) = Some(Arc::new(|| {
            let mut reading = Reading::new();
            reading.add(&names::PROCESS_CPU, &[], 1_u64);
            reading
        }));
        assert_eq!(names(read()), [names::BUILD_INFO.name, names::PROCESS_CPU.name]);
    }
}
