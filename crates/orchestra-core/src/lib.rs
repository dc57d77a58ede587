//! Ids, tensors, errors and every decision orchestra takes, as pure code.
//!
//! Nothing here reads a clock, a file or a socket, and nothing here knows tokio, ractor or ONNX Runtime: time comes in as an
//! argument, effects go out as return values. What this crate decides can therefore be tested without a process. Only `slot_claims` is shared by
//! threads, and blocks those that ask for it.

mod batch_events;
pub mod batch_layout;
mod batch_queue;
pub mod batching;
pub mod blame;
pub mod bottleneck;
mod ceiling;
mod choices;
pub mod collect;
pub mod core_growth;
pub mod credentials;
pub mod data;
pub mod device;
mod device_history;
pub mod device_share;
mod element;
pub mod failure;
pub mod failure_causes;
pub mod first_items;
pub mod ids;
pub mod image_spec;
pub mod iteration;
pub mod kernel;
pub mod ledger;
mod left_out;
pub mod lineage;
pub mod load_order;
mod lock;
pub mod model_input;
pub mod model_output;
mod named_enum;
pub mod oldest_first;
pub mod onnx_file;
pub mod pixel_placement;
pub mod probing;
pub mod program;
pub mod restart;
pub mod row_bytes;
pub mod sandbox;
pub mod session_tuning;
pub mod shapes;
pub mod slot_claims;
mod sync;
pub mod tasks;
pub mod tensor;
mod visible;
pub mod wire;
pub mod worker_exit;
pub mod worker_places;

pub use choices::{Choice, Word};
pub use device::{DeviceKind, DeviceSpec};
pub use element::{Element, OutOfRange, compare_numbers};
pub use failure::{ErrorClass, Failure, FailureKind};
pub use ids::{
    BatchId, ColumnRef, DeviceId, ItemId, ModelId, Origin, OutputSlotId, PipelineId, SinkId, SlotId,
    SourceId, StageId, WorkerId,
};
pub use image_spec::{Channels, Fit, ImageSpec, Layout, PixelInput, ResizeFilter};
pub use iteration::Iteration;
pub use kernel::{Code, Kernel};
pub use left_out::{LeftOut, LeftOutCount};
pub use lock::locked;
pub use model_input::{ConstantElements, InputConstant};
pub use model_output::{BatchAxis, Mixing, ProbedAlone, ProbedModel, ProbedOutput, ReadOutput, SizeLimit};
pub use pixel_placement::{Placement, Trim};
pub use program::{Program, ScriptProgram};
pub use sandbox::{SandboxMode, SandboxRules};
pub use session_tuning::{ConvSearch, Provider, SessionTuning, TensorRt};
pub use tensor::{DType, Dim, MAX_RANK, TensorSpec, TextInput};
pub use visible::{steers, visible, visible_in_line};
pub use worker_exit::WorkerExit;
