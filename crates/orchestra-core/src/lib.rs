//! Ids, tensors, errors and every decision orchestra takes, as pure code.
//!
//! Nothing here reads a clock, a file or a socket, and nothing here knows tokio, ractor or ONNX Runtime: time comes in as an
//! argument, effects go out as return values. What this crate decides can therefore be tested without a process.

pub mod batch_events;
pub mod batch_layout;
pub mod batch_queue;
pub mod batching;
pub mod blame;
pub mod bottleneck;
pub mod ceiling;
pub mod collect;
pub mod data;
pub mod device;
pub mod device_record;
pub mod device_share;
pub mod failure;
pub mod ids;
pub mod image_spec;
pub mod ledger;
pub mod lineage;
pub mod restart;
pub mod sandbox;
pub mod session_tuning;
pub mod shapes;
pub mod survey;
pub mod tensor;
pub mod together;
pub mod worker_exit;
pub mod worker_places;

pub use device::{DeviceKind, DeviceSpec};
pub use failure::{ErrorClass, Failure, FailureKind};
pub use ids::{BatchId, DeviceId, ItemId, ModelId, PipelineId, SinkId, SlotId, SourceId, StageId, WorkerId};
pub use image_spec::{Channels, Fit, ImageSpec, Layout, PixelInput, ResizeFilter};
pub use sandbox::{SandboxMode, SandboxRules};
pub use session_tuning::{Provider, SessionTuning, TensorRt};
pub use tensor::{DType, Dim, TensorSpec};
pub use worker_exit::WorkerExit;
