//! What a worker or loader process ends with.

/// The process was not started by a parent that speaks the protocol.
pub const EXIT_USAGE: i32 = 2;
/// The model could not be loaded; a `LoadFailed` frame says why.
pub const EXIT_LOAD_FAILED: i32 = 69;
/// The device or its provider is broken; a `Failed` frame says how.
pub const EXIT_DEVICE: i32 = 71;
/// A loader was refused memory; its last words say by what.
pub const EXIT_NO_MEMORY: i32 = 72;
/// The parent sent what is no frame, or a frame out of order or out of range.
pub const EXIT_PROTOCOL: i32 = 76;
