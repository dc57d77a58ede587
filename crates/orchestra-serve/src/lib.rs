//! Models and graphs of orchestra behind the [Open Inference Protocol], over HTTP and gRPC: routers that a program mounts where it likes.
//!
//! ```no_run
//! # async fn program(orchestra: orchestra::Orchestra) -> Result<(), Box<dyn std::error::Error>> {
//! let service = orchestra_serve::Service::builder()
//!     .model("digits", orchestra.model("digits.onnx"))
//!     .start()
//!     .await?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
//! axum::serve(listener, service.http()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [Open Inference Protocol]: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol

#![warn(missing_docs)]

mod call;
mod datatype;
mod error;
mod graph;
mod grpc;
mod http;
mod json;
mod metrics;
mod protocol;
mod repository;
mod service;
mod timed_body;
mod trace;
mod whole_body;

pub use service::{Service, ServiceBuilder, ServiceLimits};
pub use trace::item_parents;
