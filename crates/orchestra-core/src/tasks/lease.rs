//! Who may use which device: leases of GPUs, shares of GPUs and cores. A slot, and a core that a lease names, belong to one lease at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Shares of a GPU and of the cores are counted in thousandths: this many are all of one.
pub const WHOLE: u32 = 1000;
/// Losses of a GPU in a row after which it is left out, while enough others are there.
const MOST_LOSSES: u32 = 2;
/// The same, to count with.
const ALL: i64 = WHOLE as i64;

/// The GPUs that a task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// It uses no GPU.
    None,
    /// It asks for GPUs, and the machine has none: its slots of the CPU stand for them.
    Instead,
    /// So many thousandths of one of them.
    Share(u32),
    /// So many, each alone.
    Count(usize),
    /// This one, alone.
    This(usize),
}

/// What a task needs to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Demand {
    /// GPUs, or a share of one.
    pub gpus: Gpus,
    /// Bytes of each of these GPUs; 0 where it is not said.
    pub gpu_memory: u64,
    /// Of the slots of the CPU: [`WHOLE`] is one. What asks for more than there are gets all of them.
    pub cpu: u32,
    /// Cores that it is kept on; 0: any.
    pub cores: usize,
    /// Beside models and other tasks: what is higher has a device first.
    pub priority: u32,
    /// A command of it has lost its GPU: one lost GPU in a row is enough to leave that out.
    #[serde(skip)]
    pub after_loss: bool,
}

/// Models of the same run, which use devices, too. They have a device from when it is handed over until they have ended there, but for shares,
/// which are leased beside them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Models {
    /// One for all of them: a pipeline that has one device must not wait for another one that waits for it.
    priority: u32,
    /// Devices that they wait for: places of GPUs, or 0, the CPU, where there are none.
    waiting: BTreeSet<usize>,
    /// Those that they have.
    having: BTreeSet<usize>,
    /// Bytes of GPUs that are theirs for as long as they wait for these or have them.
    memory: BTreeMap<usize, i64>,
}

impl Models {
    fn are_on(&self, device: usize) -> bool {
        self.waiting.contains(&device) || self.having.contains(&device)
    }

    fn memory_on(&self, gpu: usize) -> i64 {
        self.memory.get(&gpu).copied().filter(|_| self.are_on(gpu)).unwrap_or(0)
    }

    /// Whether this demand cannot have the device beside them. Slots of the CPU are shares of it, so at the same priority both go on together.
    fn exclude(&self, demand: &Demand) -> bool {
        match demand.gpus {
            Gpus::None => false,
            Gpus::Instead => demand.priority != self.priority,
            Gpus::Share(_) | Gpus::Count(_) | Gpus::This(_) => share_of(demand) == ALL,
        }
    }

    /// Whether a device is not to be had for this demand: they have it, or come first.
    fn refuse(&self, device: usize, demand: &Demand) -> bool {
        let is_first = self.waiting.contains(&device) && demand.priority <= self.priority;
        self.exclude(demand) && (is_first || self.having.contains(&device))
    }
}

/// What a running task has to itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Its index: the lowest that no other lease has.
    pub slot: usize,
    /// Its GPUs, by their places in the plan.
    pub gpus: Vec<usize>,
    /// Its cores, by their places among those of this process; empty where it may run on any.
    pub cores: Vec<usize>,
    demand: Demand,
}

#[cfg(test)]
impl Lease {
    /// Whether it may have its GPU beside others.
    pub(crate) fn is_share(&self) -> bool {
        share_of(&self.demand) < ALL
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GpuCapacity {
    share: i64,
    memory: i64,
    /// Bytes that leases may take together, where it is known.
    most: i64,
    /// Bytes that were free at the last look, whichever process has the others.
    seen: Option<i64>,
    /// Commands in a row that have lost it.
    losses: u32,
}

impl GpuCapacity {
    fn is_full(&self) -> bool {
        self.seen.is_some_and(|free| free <= 0)
    }
}

/// The devices of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    gpus: Vec<GpuCapacity>,
    cpu: i64,
    most_cpu: i64,
    free_cores: BTreeSet<usize>,
    taken_slots: BTreeSet<usize>,
    models: Models,
}

impl Leases {
    /// `gpu_memory`: for each GPU the bytes that leases may take of it. `cpu_slots`: how many commands share the CPU. `cores`: how many there are.
    pub fn new(gpu_memory: &[u64], cpu_slots: usize, cores: usize) -> Self {
        let gpu = |&memory: &u64| GpuCapacity {
            share: ALL,
            memory: signed(memory),
            most: signed(memory),
            seen: None,
            losses: 0,
        };
        let cpu = i64::from(u32::try_from(cpu_slots.max(1)).unwrap_or(u32::MAX)) * ALL;
        Self {
            gpus: gpu_memory.iter().map(gpu).collect(),
            cpu,
            most_cpu: cpu,
            free_cores: (0..cores).collect(),
            taken_slots: BTreeSet::new(),
            models: Models::default(),
        }
    }

    /// Models of this priority wait for these devices: places of GPUs, or 0, the CPU, where there are none.
    pub fn await_models(&mut self, priority: u32, devices: impl IntoIterator<Item = usize>) {
        let (waiting, memory) = (devices.into_iter().collect(), std::mem::take(&mut self.models.memory));
        self.models = Models { priority, waiting, memory, having: BTreeSet::new() };
    }

    /// The models take so many bytes of this GPU, at most.
    pub fn models_take(&mut self, gpu: usize, bytes: u64) {
        self.models.memory.insert(gpu, signed(bytes));
    }

    /// So many bytes of this GPU were free for leases at a look since the last lease of it was given back; `None`: nothing is known.
    pub fn saw_free(&mut self, gpu: usize, bytes: Option<u64>) {
        if let Some(gpu) = self.gpus.get_mut(gpu) {
            gpu.seen = bytes.map(signed);
        }
    }

    /// Devices that models wait for.
    pub fn awaited(&self) -> impl Iterator<Item = usize> {
        self.models.waiting.iter().copied()
    }

    /// Models have a device that they have waited for.
    pub fn hand_over(&mut self, device: usize) {
        if self.models.waiting.remove(&device) {
            self.models.having.insert(device);
        }
    }

    /// No model uses the device any more.
    pub fn models_ended(&mut self, device: usize) {
        self.models.waiting.remove(&device);
        self.models.having.remove(&device);
    }

    /// Whether models wait for this device until what has the lease has ended.
    pub fn holds_up(&self, lease: &Lease, device: usize) -> bool {
        let is_on = lease.demand.gpus == Gpus::Instead || lease.gpus.contains(&device);
        is_on && self.models.exclude(&lease.demand)
    }

    /// Whether models wait for this device until what asks for this has had it: it comes first, and devices that they do not have are enough for it.
    pub fn comes_first(&self, demand: &Demand, device: usize) -> bool {
        let one = match demand.gpus {
            Gpus::Count(_) => Demand { gpus: Gpus::Count(1), ..*demand },
            _ => *demand,
        };
        let all = self.all_free();
        let has_this = |demand: &Demand| all.has_room(device, demand);
        let is_meant = match demand.gpus {
            Gpus::This(gpu) => gpu == device,
            Gpus::Instead => true,
            _ => has_this(&one),
        };
        demand.priority > self.models.priority
            && self.models.exclude(demand)
            && is_meant
            && all.choose(demand).is_some()
    }

    /// A lease, if all that is asked for is free.
    pub fn take(&mut self, demand: &Demand) -> Option<Lease> {
        if demand.gpus == Gpus::Instead && self.models.refuse(0, demand) {
            return None;
        }
        let gpus = self.choose(demand)?;
        if self.cpu < self.cpu_of(demand) {
            return None;
        }
        // Where more slots than cores were asked for there may be too few: then the command may run on any.
        let cores: Vec<usize> = match self.free_cores.len() >= demand.cores {
            true => self.free_cores.iter().copied().take(demand.cores).collect(),
            false => Vec::new(),
        };
        let slot =
            (0..).find(|slot| !self.taken_slots.contains(slot)).expect("there are fewer leases than numbers");
        for core in &cores {
            self.free_cores.remove(core);
        }
        self.cpu -= self.cpu_of(demand);
        for gpu in &gpus {
            let gpu = &mut self.gpus[*gpu];
            gpu.share -= share_of(demand);
            gpu.memory -= signed(demand.gpu_memory);
            // The last look was before it, so it holds none of what is taken there.
            gpu.seen = gpu.seen.map(|free| free - signed(demand.gpu_memory));
        }
        self.taken_slots.insert(slot);
        Some(Lease { slot, gpus, cores, demand: *demand })
    }

    /// What asks for more than there is gets all of it.
    fn cpu_of(&self, demand: &Demand) -> i64 {
        i64::from(demand.cpu).min(self.most_cpu)
    }

    pub fn give_back(&mut self, lease: Lease) {
        let Lease { slot, gpus, cores, demand } = lease;
        let had = self.taken_slots.remove(&slot);
        debug_assert!(had, "slot {slot} was given back twice");
        self.free_cores.extend(cores);
        self.cpu += self.cpu_of(&demand);
        for gpu in gpus {
            self.gpus[gpu].share += share_of(&demand);
            self.gpus[gpu].memory += signed(demand.gpu_memory);
            // What it held was no part of what was seen to be free.
            self.gpus[gpu].seen = None;
        }
    }

    /// The command that had these GPUs has lost its device, and did not say which.
    pub fn lost(&mut self, gpus: &[usize]) {
        for gpu in gpus {
            let losses = &mut self.gpus[*gpu].losses;
            *losses = losses.saturating_add(1);
        }
    }

    /// A command on these GPUs has ended well.
    pub fn works(&mut self, gpus: &[usize]) {
        gpus.iter().for_each(|gpu| self.gpus[*gpu].losses = 0);
    }

    /// Whether commands have this GPU only where too few others are there.
    pub fn is_left_out(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(|gpu| gpu.losses >= MOST_LOSSES)
    }

    /// Whether this would have a lease but for what others than these leases hold of the GPUs.
    pub fn waits_for_others(&self, demand: &Demand) -> bool {
        if self.gpus.iter().all(|gpu| gpu.seen.is_none()) {
            return false;
        }
        let mut without = self.clone();
        without.gpus.iter_mut().for_each(|gpu| gpu.seen = None);
        self.choose(demand).is_none() && without.choose(demand).is_some()
    }

    /// Whether there would be a lease if nothing was taken.
    pub fn could_take(&self, demand: &Demand) -> bool {
        Self { models: Models::default(), ..self.all_free() }.choose(demand).is_some()
    }

    /// The same without leases: models have what they have, and GPUs that were lost are known.
    fn all_free(&self) -> Self {
        let mut all = self.clone();
        for gpu in &mut all.gpus {
            *gpu = GpuCapacity { share: ALL, memory: gpu.most, seen: None, ..*gpu };
        }
        all
    }

    /// Bytes for one more lease: what neither leases nor models have been given, as far as others leave it.
    fn memory_left(&self, gpu: usize) -> i64 {
        let given = self.gpus[gpu].memory - self.models.memory_on(gpu);
        self.gpus[gpu].seen.map_or(given, |free| free.min(given))
    }

    fn has_room(&self, gpu: usize, demand: &Demand) -> bool {
        let has_memory = || demand.gpu_memory == 0 || self.memory_left(gpu) >= signed(demand.gpu_memory);
        self.gpus.get(gpu).is_some_and(|gpu| gpu.share >= share_of(demand))
            && has_memory()
            && !self.models.refuse(gpu, demand)
    }

    /// Whether there would be room without leases and others.
    fn could_have_room(&self, gpu: usize, demand: &Demand) -> bool {
        let left = self.gpus[gpu].most - self.models.memory_on(gpu);
        (demand.gpu_memory == 0 || left >= signed(demand.gpu_memory)) && !self.models.refuse(gpu, demand)
    }

    /// The GPUs without those that were lost too often; all, where too few others could ever have room. So none waits for a GPU that it cannot have.
    fn trusted(&self, demand: &Demand, count: usize) -> Vec<usize> {
        let with_fewer = |losses: u32| -> Vec<usize> {
            (0..self.gpus.len()).filter(|gpu| self.gpus[*gpu].losses < losses).collect()
        };
        let are_enough = |gpus: &Vec<usize>| {
            gpus.iter().filter(|gpu| self.could_have_room(**gpu, demand)).count() >= count
        };
        let bounds = [demand.after_loss.then_some(1), Some(MOST_LOSSES)];
        let mut trusted = bounds.into_iter().flatten().map(with_fewer);
        trusted.find(are_enough).unwrap_or_else(|| (0..self.gpus.len()).collect())
    }

    /// The GPUs that were lost least, those without models and those with the most room first, so that shares spread. One that is full, or was lost,
    /// is taken only where there are too few others.
    fn choose(&self, demand: &Demand) -> Option<Vec<usize>> {
        let has_room = |gpu: &usize| self.has_room(*gpu, demand);
        let count = match demand.gpus {
            Gpus::None | Gpus::Instead => 0,
            Gpus::Share(_) => 1,
            Gpus::Count(count) => count,
            Gpus::This(gpu) => return has_room(&gpu).then(|| vec![gpu]),
        };
        let mut gpus = self.trusted(demand, count);
        let are_enough = gpus.iter().filter(|gpu| !self.gpus[**gpu].is_full()).count() >= count;
        gpus.retain(|gpu| !(are_enough && self.gpus[*gpu].is_full()) && has_room(gpu));
        gpus.sort_by_key(|gpu| {
            let GpuCapacity { share, losses, .. } = self.gpus[*gpu];
            (losses, self.models.are_on(*gpu), Reverse(share), Reverse(self.memory_left(*gpu)))
        });
        (gpus.len() >= count).then(|| {
            gpus.truncate(count);
            gpus
        })
    }
}

fn share_of(demand: &Demand) -> i64 {
    match demand.gpus {
        Gpus::None | Gpus::Instead => 0,
        Gpus::Share(share) => share.into(),
        Gpus::Count(_) | Gpus::This(_) => ALL,
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
