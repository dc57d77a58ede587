//! Devices and worker processes: starts, deadlines, exits, restarts and what each process takes. It knows batches by their numbers only.

pub mod device_manager;
pub mod device_use;
pub mod device_watch;
pub mod handshake;
pub mod launcher;
pub mod link_start;
pub mod live_workers;
pub mod unanswered_runs;
pub mod worker_deadlines;
mod worker_end;
pub mod worker_link;
pub mod worker_port;
pub mod worker_process;
pub mod worker_stderr;
