//! Who may use which device: leases of GPUs, shares of GPUs and cores. A slot, and a core that a lease names, belong to one lease at a time.

use std::collections::BTreeSet;

use serde::Serialize;

/// Shares of a GPU and of the cores are counted in thousandths: this many are all of one.
pub const WHOLE: u32 = 1000;
/// The same, to count with.
const ALL: i64 = WHOLE as i64;

/// The GPUs that a task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// None.
    None,
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

/// What is free of a GPU: less than nothing where leases of an earlier start hold more than there is now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gpu {
    share: i64,
    memory: i64,
    /// Bytes that leases may take together, where it is known.
    most: i64,
}

/// The devices of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    gpus: Vec<Gpu>,
    cpu: i64,
    most_cpu: i64,
    free_cores: BTreeSet<usize>,
    taken_slots: BTreeSet<usize>,
    /// GPUs that something else uses, too: none has them alone.
    shared: BTreeSet<usize>,
}

impl Leases {
    /// `gpu_memory`: for each GPU the bytes that leases may take of it. `cpu_slots`: how many commands share the CPU. `cores`: how many there are.
    #[must_use]
    pub fn new(gpu_memory: &[u64], cpu_slots: usize, cores: usize) -> Self {
        let gpu = |&memory: &u64| Gpu { share: ALL, memory: signed(memory), most: signed(memory) };
        let cpu = i64::from(u32::try_from(cpu_slots.max(1)).unwrap_or(u32::MAX)) * ALL;
        Self {
            gpus: gpu_memory.iter().map(gpu).collect(),
            cpu,
            most_cpu: cpu,
            free_cores: (0..cores).collect(),
            taken_slots: BTreeSet::new(),
            shared: BTreeSet::new(),
        }
    }

    /// From now on something else uses a GPU, too: a demand for a GPU alone does not get this one. Shares are given as before.
    pub fn share(&mut self, gpu: usize) {
        self.shared.insert(gpu);
    }

    /// Nothing else uses the GPU any more.
    pub fn unshare(&mut self, gpu: usize) {
        self.shared.remove(&gpu);
    }

    /// A lease, if all that is asked for is free.
    pub fn take(&mut self, demand: &Demand) -> Option<Lease> {
        let gpus = self.choose(demand)?;
        // What asks for nothing waits for nothing, also where leases of an earlier start hold more than there is.
        if demand.cpu > 0 && self.cpu < self.cpu_of(demand) {
            return None;
        }
        // Where more slots than cores were asked for there may be too few: then the command may run on any.
        let cores: Vec<usize> = match self.free_cores.len() >= demand.cores {
            true => self.free_cores.iter().copied().take(demand.cores).collect(),
            false => Vec::new(),
        };
        let slot =
            (0..).find(|slot| !self.taken_slots.contains(slot)).expect("there are fewer leases than numbers");
        Some(self.hold(demand, slot, gpus, cores))
    }

    /// The lease of a command that an earlier start has begun and that still runs: it has what it has, free or not. GPUs and cores that are not
    /// there are none of these.
    pub fn go_on(&mut self, demand: &Demand, slot: usize, gpus: &[usize], cores: &[usize]) -> Lease {
        let gpus = gpus.iter().copied().filter(|gpu| *gpu < self.gpus.len()).collect();
        let cores = cores.iter().copied().filter(|core| self.free_cores.contains(core)).collect();
        self.hold(demand, slot, gpus, cores)
    }

    fn hold(&mut self, demand: &Demand, slot: usize, gpus: Vec<usize>, cores: Vec<usize>) -> Lease {
        for core in &cores {
            self.free_cores.remove(core);
        }
        self.cpu -= self.cpu_of(demand);
        for &gpu in &gpus {
            self.gpus[gpu].share -= share_of(demand);
            self.gpus[gpu].memory -= signed(demand.gpu_memory);
        }
        self.taken_slots.insert(slot);
        Lease { slot, gpus, cores, demand: *demand }
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
        }
    }

    /// The most bytes that a lease may have of a GPU.
    pub fn most_memory(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.most.unsigned_abs()).max().unwrap_or(0)
    }

    /// Whether there would be a lease if nothing was taken.
    pub fn could_take(&self, demand: &Demand) -> bool {
        let mut all = Self { shared: BTreeSet::new(), ..self.clone() };
        for gpu in &mut all.gpus {
            (gpu.share, gpu.memory) = (ALL, gpu.most);
        }
        all.choose(demand).is_some()
    }

    /// The GPUs with the most room, so that shares spread.
    fn choose(&self, demand: &Demand) -> Option<Vec<usize>> {
        let share = share_of(demand);
        let has_memory = |gpu: &Gpu| demand.gpu_memory == 0 || gpu.memory >= signed(demand.gpu_memory);
        let has_room = |gpu: &usize| {
            !(share == ALL && self.shared.contains(gpu))
                && self.gpus.get(*gpu).is_some_and(|gpu| gpu.share >= share && has_memory(gpu))
        };
        let count = match demand.gpus {
            Gpus::None => 0,
            Gpus::Share(_) => 1,
            Gpus::Count(count) => count,
            Gpus::This(gpu) => return has_room(&gpu).then(|| vec![gpu]),
        };
        let mut gpus: Vec<usize> = (0..self.gpus.len()).filter(has_room).collect();
        gpus.sort_by_key(|gpu| std::cmp::Reverse(self.gpus[*gpu].share));
        (gpus.len() >= count).then(|| {
            gpus.truncate(count);
            gpus
        })
    }
}

fn share_of(demand: &Demand) -> i64 {
    match demand.gpus {
        Gpus::None => 0,
        Gpus::Share(share) => share.into(),
        Gpus::Count(_) | Gpus::This(_) => ALL,
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
