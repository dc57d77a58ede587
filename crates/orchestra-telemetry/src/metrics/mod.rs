//! Metrics of a run: a page for Prometheus, and requests to a collector. Both show the same numbers, which are read when the page is
//! asked for or a request is due; nothing here counts, and nothing here can hold up what counts.
//!
//! ```no_run
//! use std::sync::Arc;
//! use orchestra_telemetry::metrics::{MetricSettings, Metrics, PageAddress, Reading, names};
//!
//! let page = Some(PageAddress::read("127.0.0.1:9464", "the example")?);
//! let metrics = Metrics::start(&MetricSettings { page, otlp: None })?;
//! metrics.observe(Arc::new(|| {
//!     let mut reading = Reading::new();
//!     reading.add(&names::ITEMS_DONE, &["scans"], 17_u64);
//!     reading
//! }));
//! # Ok::<_, orchestra_telemetry::TelemetryError>(())
//! ```

mod export;
pub mod names;
mod page;
mod reading;
mod server;
mod settings;
mod wire;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

pub use names::{Instrument, Kind};
pub use reading::{Buckets, Point, Reading, Value};
pub use settings::{MetricExport, MetricSettings, PageAddress, ResolvedMetrics};

#[doc(hidden)]
pub use server::answer_to;

use crate::TelemetryError;
use export::Export;
use orchestra_core::locked;
use server::Server;

/// Reads all numbers at one moment. Called whenever the page is asked for or a request is due, by threads of this module; it should take
/// no longer than some milliseconds, or the page is late.
pub type Source = Arc<dyn Fn() -> Reading + Send + Sync>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricReport {
    pub delivered: u64,
    /// Those that it did not get or did not take.
    pub lost: u64,
    /// The collector takes no metrics, as one that is for traces alone; it was asked once.
    pub unsupported: bool,
    pub words: Option<String>,
}

/// Metrics that are being served and sent. Dropping it ends both, without the last request.
pub struct Metrics {
    source: Arc<Mutex<Option<Source>>>,
    page: Option<Server>,
    export: Option<Export>,
}

impl Metrics {
    /// Listens where the settings say, and starts the threads that serve and send.
    ///
    /// # Errors
    /// The address is taken or not of this machine, the collector's address cannot be used, or no thread could be started.
    pub fn start(settings: &MetricSettings) -> Result<Self, TelemetryError> {
        let source = Arc::default();
        let page = settings.page.as_ref().map(|page| Server::start(page, reader(&source))).transpose()?;
        let export =
            settings.otlp.as_ref().map(|export| Export::start(export, reader(&source))).transpose()?;
        Ok(Self { source, page, export })
    }

    pub fn page_address(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(|page| page.address)
    }

    /// Whether the numbers are read at all.
    pub fn is_wanted(&self) -> bool {
        self.page.is_some() || self.export.is_some()
    }

    /// Where the numbers come from. Until this is called, only the version of the program is known. The last call counts.
    pub fn observe(&self, source: Source) {
        *locked(&self.source) = Some(source);
    }

    /// Nothing will change any more: the last request is sent now. Waits for nothing; the page goes on.
    pub fn finish(&self) {
        if let Some(export) = &self.export {
            export.finish();
        }
    }

    /// Waits for the last request, not much longer than 3 seconds after [`Metrics::finish`], and ends the page. `None`: nothing was to be
    /// sent.
    pub fn shutdown(self) -> Option<MetricReport> {
        self.export.map(Export::shutdown)
    }
}

/// What `source` gives once it is known, which is long after the page was asked for, and the version of the program.
fn reader(source: &Arc<Mutex<Option<Source>>>) -> Source {
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
    use std::net::TcpListener;

    use super::*;

    fn page(address: SocketAddr) -> MetricSettings {
        MetricSettings { page: Some(PageAddress { address, origin: "a test" }), otlp: None }
    }

    #[test]
    fn an_address_that_is_taken_is_named_with_its_origin() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Metrics::start(&page(address)).err().unwrap().to_string();
        for part in [&format!("`{address}`") as &str, "a test", "port 0"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn before_the_run_begins_the_version_is_known_and_nothing_else() {
        let source = Arc::default();
        let names = |reading: Reading| reading.families().map(|(i, _)| i.name).collect::<Vec<_>>();
        let read = reader(&source);
        assert_eq!(names(read()), [names::BUILD_INFO.name]);
        let metrics = Metrics { source, page: None, export: None };
        metrics.observe(Arc::new(|| {
            let mut reading = Reading::new();
            reading.add(&names::PROCESS_CPU, &[], 1_u64);
            reading
        }));
        assert_eq!(names(read()), [names::BUILD_INFO.name, names::PROCESS_CPU.name]);
        assert!(!metrics.is_wanted());
    }
}
