//! orchestra in a program of one's own: run workflows, ask models and whole graphs.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use orchestra::{Item, Orchestra, Tensor, Workflow};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     orchestra::run_if_worker(); // the first line of `main`
//!     tokio_main()
//! }
//!
//! # fn tokio_main() -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//! # async fn program(pixels: Vec<f32>, jpeg: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
//! let orchestra = Orchestra::builder().build().await?;
//!
//! // A workflow over files.
//! let report = orchestra.run(Workflow::open("workflow.toml")?.output("out")).await?;
//! println!("{} done, {} failed", report.items().done, report.items().failed);
//!
//! // A model that answers requests: f32 [rows, 1, 28, 28].
//! let model = orchestra.model("digits.onnx").max_batch(64).max_delay(Duration::from_millis(5)).start().await?;
//! let answer = model.infer([("pixels", Tensor::new([1, 1, 28, 28], pixels)?)]).await?;
//! println!("{:?}", answer["logits"].as_slice::<f32>()?);
//!
//! // A whole graph, for one item.
//! let flow = orchestra.flow(Workflow::open("read.toml")?).start().await?;
//! for record in flow.process(Item::bytes(jpeg)).deadline(Duration::from_millis(200)).await? {
//!     println!("{} {}", record.sink(), record.json()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Models, scripts and decoders run in processes of their own, which are copies of the running program: [`run_if_worker`] makes them what they are. A
//! crash there costs no request and no item.
//!
//! Nothing here prints, and no subscriber or tracer provider is installed: logs go to the program's `tracing`. All futures are to be awaited on a
//! tokio runtime with time and I/O.

#![deny(missing_docs)]

pub mod actor;
mod blocking;
mod environment;
mod error;
mod flow;
mod model;
mod run;
mod served;
#[cfg(feature = "tower")]
mod service;
mod tensor;
#[cfg(feature = "testing")]
pub mod testing;
mod workflow;

pub use blocking::Blocking;
pub use environment::{Orchestra, OrchestraBuilder};
pub use error::{ItemFailure, RequestError, StartError, StartErrorSource};
pub use flow::{Flow, FlowBuilder, Item, ProcessRequest, Record};
pub use model::{InferRequest, Model, ModelBuilder};
pub use orchestra_core::DType;
#[cfg(feature = "telemetry")]
pub use orchestra_launch::telemetry;
pub use orchestra_launch::{
    Tracer, WorkerEvent, kind, run_if_worker, run_if_worker_with, worker_main, worker_main_with,
    workflow_schema,
};
pub use run::{ItemTotals, Report, Run, RunError, Status, Stopper};
pub use tensor::{Tensor, TensorElement, TensorError, TensorInfo, Tensors};
pub use workflow::{SettingValue, Workflow, WorkflowError};
