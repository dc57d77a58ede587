//! How many spare workers each batch stage gets on each device. Arithmetic only.
//!
//! A spare is loaded like a worker and idle until one dies. It costs the memory of a worker and, once, the time of a core that loads
//! it. On the CPU that is cheap for a small model, so there it is the default; on a GPU memory is dear, so there it has to be asked for.

use crate::bytes::format_bytes;
use crate::devices::Device;
use crate::plan::WorkerPlan;
use crate::worker_placement::{Demand, plural};

/// Largest model, with its weights, that gets a spare unasked. It loads within a few tenths of a second, and a second copy of it is no
/// burden to a machine that runs it at all; what is larger is the user's choice.
const LARGEST: u64 = 64 << 20;
/// A worker process but for its model: the runtime's library and its arena.
const PROCESS: u64 = 96 << 20;
/// A session holds its weights, for a moment the file as well, and buffers that are seldom larger than either.
const COPIES: u64 = 3;
/// All workers on the CPU may take this part of the machine's memory for a spare to be added unasked; half of it are batch slots.
const PART: u64 = 4;

/// Gives the workers of every stage their spares, and says why.
pub(crate) fn assign(
    demands: &[Demand<'_>],
    workers: &mut [Vec<WorkerPlan>],
    devices: &[Device],
    memory: u64,
    reasons: &mut Vec<String>,
) {
    let mut room = Room { memory, taken: 0 };
    for (demand, workers) in demands.iter().zip(workers.iter()) {
        for placed in workers.iter().filter(|w| !devices[w.device.index()].is_cuda()) {
            room.take(per_worker(demand).saturating_mul(placed.count as u64));
        }
    }
    for (demand, workers) in demands.iter().zip(workers) {
        for placed in workers {
            let device = &devices[placed.device.index()];
            let (spares, why) = decide(demand, device, &mut room);
            placed.spares = spares;
            let what = match spares {
                0 => "no spare".to_owned(),
                n => format!("{}, loaded and idle", plural(n, "spare")),
            };
            reasons.push(format!("stage `{}` on {}: {what}: {why}", demand.stage, device.name));
        }
    }
}

fn decide(demand: &Demand<'_>, device: &Device, room: &mut Room) -> (usize, String) {
    if let Some(asked) = &demand.model.spare {
        let asked = asked.value;
        if !device.is_cuda() {
            room.take(per_worker(demand).saturating_mul(asked));
        }
        return (asked as usize, "as asked".into());
    }
    let by_hand = "`spare = 1` of the model adds one";
    if device.is_cuda() {
        return (0, format!("it would take a worker's memory on the GPU; {by_hand}"));
    }
    if demand.model_bytes > LARGEST {
        let size = format_bytes(demand.model_bytes);
        return (0, format!("the model is larger than {} ({size}); {by_hand}", format_bytes(LARGEST)));
    }
    match room.memory {
        0 => (0, format!("the memory of the machine is not known; {by_hand}")),
        memory if room.taken.saturating_add(per_worker(demand)) > memory / PART => (
            0,
            format!(
                "workers and spare could take more than a quarter of {}; {by_hand}",
                format_bytes(memory)
            ),
        ),
        _ => {
            room.take(per_worker(demand));
            (1, "it stands in when a worker dies, and a small model costs little twice".into())
        }
    }
}

/// What a worker may take at most, in bytes, for a model without large activations.
fn per_worker(demand: &Demand<'_>) -> u64 {
    demand.model_bytes.saturating_mul(COPIES).saturating_add(PROCESS)
}

/// Memory of the machine for workers on the CPU.
struct Room {
    /// All of it; 0 where unknown.
    memory: u64,
    taken: u64,
}

impl Room {
    fn take(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
    }
}
