//! Test models, test images and faults. Only ever a dev-dependency, never part of what is shipped.
//!
//! - [`models`]: small ONNX files of every kind that matters, written in milliseconds; [`onnx`] is the builder behind them.
//! - [`images`]: pictures that carry their index in their pixels, and pictures that are broken.
//! - [`bait`]: what hostile code is after, and what it may get at where nothing confines it.
//! - [`trap_operator`]: an operator of ONNX Runtime that crashes and hangs on demand.
//! - [`faulty`]: a worker that misbehaves on purpose; [`gate`]: makes a run wait for the test; [`hold`]: stops a thread.
//! - [`leaks`]: whether anything is left behind; [`processes`]: what `/proc` shows; [`production`]: the sources without their tests.
//! - [`records`]: what lies in an output folder; [`striker`]: kills and stops workers;
//!   [`worker_client`]: speaks to one; [`workflow_file`]: a table after the other.
//! - [`size`]: how large a test is, and whose turn it is to storm the machine; [`skip`]: the only way in which a test is skipped.

pub mod bait;
pub mod faulty;
pub mod gate;
pub mod hold;
pub mod hostile_images;
pub mod images;
pub mod leaks;
pub mod models;
pub mod onnx;
pub mod processes;
pub mod production;
pub mod programs;
pub mod records;
pub mod size;
pub mod skip;
pub mod striker;
pub mod trap_operator;
pub mod trap_stage;
pub mod worker_client;
pub mod workflow_file;

pub use programs::{faulty_worker, trap_library};
pub use trap_operator::{
    ATTEMPTS, DEADLY, FLOOD, FLOOD_IN_RUN, FLOOD_LINES, GATE, GOT_THROUGH, IN_LOAD, IN_RUN, INHERITED_FD,
    INTRUDE, LAST_WORDS, SCRIBBLES, SECRET_VARIABLE, Trap,
};
