//! Test models, test images, faults and audits. Only ever a dev-dependency, never part of what is shipped.
//!
//! - [`models`]: small ONNX files of every kind that matters, written in milliseconds; [`onnx`] is the builder behind them.
//! - [`images`]: pictures that carry their index in their pixels, and pictures that are broken.
//! - [`audit`]: whether an output folder holds exactly the items it should; [`leaks`]: whether anything is left behind.
//! - [`chaos`]: kills or freezes workers while a run goes on; [`faulty`]: a worker that misbehaves on purpose; [`gate`]: makes a run
//!   wait for the test; [`hold`]: stops a thread.
//! - [`worker_process`]: starts any worker executable and speaks to it frame by frame; [`processes`]: what `/proc` shows.

pub mod audit;
pub mod chaos;
pub mod faulty;
pub mod gate;
pub mod hold;
pub mod images;
pub mod leaks;
pub mod models;
pub mod onnx;
pub mod processes;
pub mod programs;
pub mod worker_process;

pub use orchestra_testkit_ops::{
    DEADLY, FLOOD, FLOOD_IN_RUN, FLOOD_LINES, GATE, IN_LOAD, IN_RUN, LAST_WORDS, Trap,
};
pub use programs::{faulty_worker, trap_library};
