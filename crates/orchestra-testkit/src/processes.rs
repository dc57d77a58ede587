//! What `/proc` shows of processes: children, command lines, environments, open files. See `orchestra_machine::processes`.

pub use orchestra_machine::processes::*;
