//! The service: what it serves, its limits, and the answers that both protocols give alike.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures::future::join_all;
use orchestra::{FlowBuilder, ModelBuilder, StartError, Status};

use crate::call::{Call, NamedData};
use crate::error::{ErrorKind, ServeError};
use crate::protocol::{ModelIndex, ServerMetadata, Statistics};
use crate::repository::{Entry, ServedEntries, Starts, VERSION};
use crate::{grpc, http};

/// The bounds of requests.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceLimits {
    /// Bytes of a request, and of an answer over gRPC; 64 MiB where nothing is said.
    pub message_bytes: usize,
    /// Without an answer in this time, a request fails; a request may ask for less. None where nothing is said.
    pub deadline: Option<Duration>,
    /// How long the body of a request may take to arrive; of a stream, which may pause, nothing. None where nothing is said.
    pub read_timeout: Option<Duration>,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self { message_bytes: 64 << 20, deadline: None, read_timeout: None }
    }
}

/// What a service is made of.
#[must_use]
#[derive(Default)]
pub struct ServiceBuilder {
    entries: Vec<(String, Starts)>,
    limits: ServiceLimits,
    token: Option<String>,
}

impl ServiceBuilder {
    /// Serves a model under this name.
    pub fn model(mut self, name: impl Into<String>, model: ModelBuilder) -> Self {
        self.entries.push((name.into(), Starts::Model(Box::new(model))));
        self
    }

    /// Serves a graph under this name: one item a request.
    pub fn graph(mut self, name: impl Into<String>, graph: FlowBuilder) -> Self {
        self.entries.push((name.into(), Starts::Graph(Box::new(graph))));
        self
    }

    /// The bounds of requests.
    pub fn limits(mut self, limits: ServiceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Requests other than those for the health of the service must bring it: `Authorization: Bearer TOKEN`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Starts all models and graphs. Returns once each has a worker.
    ///
    /// # Errors
    /// What the first one says that does not start; or two have one name. Then all are ended.
    pub async fn start(self) -> Result<Service, StartError> {
        let Self { entries, limits, token } = self;
        let mut names = HashSet::new();
        if let Some((name, _)) = entries.iter().find(|(name, _)| !names.insert(name.clone())) {
            return Err(StartError::Options(format!("two models or graphs are called `{name}`")));
        }
        let entries: ServedEntries =
            entries.into_iter().map(|(name, starts)| Arc::new(Entry::new(name, starts))).collect();
        let loads = join_all(entries.iter().map(|entry| entry.load())).await;
        loads.into_iter().collect::<Result<(), StartError>>()?;
        Ok(Service(Arc::new(Inner { entries, limits, token, is_draining: AtomicBool::new(false) })))
    }
}

/// Models and graphs that are served. Clones share them; dropping the last one, and the routers, ends their workers.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    entries: ServedEntries,
    limits: ServiceLimits,
    token: Option<String>,
    is_draining: AtomicBool,
}

impl Service {
    /// What can be said before.
    pub fn builder() -> ServiceBuilder {
        ServiceBuilder::default()
    }

    /// The routes of the protocol over HTTP: `/v2/...`.
    pub fn http(&self) -> Router {
        http::router(self.clone())
    }

    /// The service of the protocol over gRPC, `/inference.GRPCInferenceService/...`: for a listener that speaks HTTP/2.
    pub fn grpc(&self) -> Router {
        grpc::router(self.clone())
    }

    /// The names of what it serves.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.entries.iter().map(|entry| &*entry.name).collect()
    }

    /// How far one of them is; `None` while it is not loaded.
    #[must_use]
    pub fn status(&self, name: &str) -> Option<Status> {
        self.0.entries.iter().find(|entry| entry.name == name)?.status()
    }

    /// Reads all files again, and replaces what runs: no request fails for that. What does not start anew goes on as it is.
    ///
    /// # Errors
    /// All that did not, with their names.
    pub async fn reload(&self) -> Result<(), StartError> {
        let loads = join_all(self.0.entries.iter().map(|entry| entry.load())).await;
        let failed = self.0.entries.iter().zip(loads);
        let failed: Vec<String> =
            failed.filter_map(|(entry, load)| Some(format!("`{}`: {}", entry.name, load.err()?))).collect();
        if failed.is_empty() { Ok(()) } else { Err(StartError::Options(failed.join("\n"))) }
    }

    /// Is not ready any more, answers the requests that there are, and ends all processes.
    pub async fn drain(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
        join_all(self.0.entries.iter().map(|entry| entry.unload("the service ends"))).await;
    }

    pub(crate) fn limits(&self) -> &ServiceLimits {
        &self.0.limits
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.0.token.as_deref()
    }

    /// Whether all that is served takes requests. What was unloaded on demand does not count.
    pub(crate) fn is_ready(&self) -> bool {
        !self.0.is_draining.load(Ordering::Relaxed)
    }

    pub(crate) fn entry(&self, name: &str, version: &str) -> Result<Arc<Entry>, ServeError> {
        let found = self.0.entries.iter().find(|entry| entry.name == name);
        let entry = found.ok_or_else(|| {
            let names = self.names().join("`, `");
            ServeError::new(
                ErrorKind::NotFound,
                // Clients of Triton look at its first words.
                format!("Request for unknown model: `{name}`; this server has `{names}`"),
            )
        })?;
        if !version.is_empty() && version != VERSION {
            let what = format!("model `{name}` has no version `{version}`, only {VERSION}");
            return Err(ServeError::new(ErrorKind::NotFound, what));
        }
        Ok(Arc::clone(entry))
    }

    pub(crate) fn metadata(&self) -> ServerMetadata {
        let extensions =
            ["binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics"];
        ServerMetadata {
            name: "orchestra".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: extensions.map(str::to_owned).to_vec(),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics::of(&self.0.entries)
    }

    pub(crate) fn index(&self, only_ready: bool) -> Vec<ModelIndex> {
        let all = self.0.entries.iter().filter(|entry| !only_ready || entry.is_ready());
        all.map(|entry| entry.index()).collect()
    }

    pub(crate) async fn infer(&self, entry: &Entry, call: Call) -> Result<Vec<NamedData>, ServeError> {
        let within = [call.within, self.0.limits.deadline].into_iter().flatten().min();
        entry.infer(Call { within, ..call }).await
    }
}
