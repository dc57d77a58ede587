//! Devices and worker processes: starts, deadlines, exits, restarts and what each process takes. It knows batches by their numbers only.

pub mod device_manager;
pub mod device_use;
pub mod device_watch;
pub mod handshake;
pub mod launcher;
pub mod live_workers;
pub mod unanswered_runs;
pub mod worker;
pub mod worker_deadlines;
