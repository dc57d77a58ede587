//! Commands of `[tasks.*]`: which one starts on what, and what its end means. It starts nothing and reads no clock.

mod best;
mod end;
mod gpu_use;
mod lease;
mod metric;
mod order;
mod schedule;
#[cfg(test)]
mod schedule_tests;

pub use best::{CurveValue, Goal, Objective, best};
pub(crate) use end::signal_name;
pub use end::{EndClass, Exit, Retries, TaskEnd, judge};
pub use gpu_use::{CommandOnGpu, GpuUse};
pub use lease::{Demand, Gpus, Lease, Leases, WHOLE};
pub use metric::{MetricValues, TaskMetric, TaskMetrics};
pub use order::{in_order, with_earlier};
pub use schedule::{After, Schedule, Start, TaskSpec, TaskState};
