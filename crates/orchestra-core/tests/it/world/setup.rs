//! What a world is made of, and what may happen in it, as values that shrink.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

/// What an item does to those who run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    Segfault,
    Exit,
    Hang,
    /// The worker reports a broken device, and exits.
    BreaksDevice,
    /// The model refuses it; no worker dies.
    Refused,
    /// The code rejects its row by name.
    Rejected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// Whatever runs there dies.
    Kills,
    /// It is healthy until `Op::LoseDevice`.
    WillBeLost,
    /// Each worker dies at its n-th batch, from 2.
    BreaksAt(u32),
    NeverLoads {
        permanent: bool,
    },
    /// There is no memory for a single row.
    NoMemory,
}

#[derive(Debug, Clone)]
pub struct DeviceSetup {
    pub health: Health,
    pub workers: usize,
    pub load: Duration,
    /// The largest batch for which there is memory.
    pub room: usize,
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub max_batch: usize,
    pub wait: Duration,
    pub slots: u32,
    pub sinks: usize,
    pub ordered: bool,
    pub items: u64,
    pub poison: BTreeMap<u64, Poison>,
    /// At least one is healthy.
    pub devices: Vec<DeviceSetup>,
    /// Workers that may be killed from outside: fewer than it takes to fail an item.
    pub kills: u32,
    /// Batches that a worker runs at once.
    pub streams: usize,
    /// Batches that wait at a worker beyond those.
    pub ready: usize,
}

impl Setup {
    /// The same with so many items and slots that there is always a harmless batch.
    pub fn with_plenty_of_work(self) -> Self {
        let more = 12 * self.max_batch as u64;
        let poison = self.poison.into_iter().map(|(item, p)| (item + more / 2, p)).collect();
        Self { items: self.items + more, slots: self.slots + 8, poison, ..self }
    }
}

#[derive(Debug, Clone)]
pub enum Op {
    Arrive(usize),
    /// A worker comes on with one of its batches, or answers for its second one first.
    Step {
        worker: usize,
        second: bool,
    },
    Report(usize),
    /// An answer that counts no more.
    Stale(usize),
    Kill {
        worker: usize,
        frozen: bool,
    },
    Recycle(usize),
    Wait(u64),
    LoseDevice,
    Room {
        device: usize,
        rows: usize,
    },
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1usize..12).prop_map(Op::Arrive),
        12 => (0usize..8, proptest::bool::weighted(0.2)).prop_map(|(worker, second)| Op::Step { worker, second }),
        3 => (0usize..8).prop_map(Op::Report),
        1 => (0usize..32).prop_map(Op::Stale),
        1 => (0usize..8, any::<bool>()).prop_map(|(worker, frozen)| Op::Kill { worker, frozen }),
        1 => (0usize..8).prop_map(Op::Recycle),
        6 => prop_oneof![0u64..20, 50u64..500, 1000u64..20_000].prop_map(Op::Wait),
        1 => Just(Op::LoseDevice),
        1 => (0usize..4, 1usize..17).prop_map(|(device, rows)| Op::Room { device, rows }),
    ];
    proptest::collection::vec(op, 0..120)
}

fn devices() -> impl Strategy<Value = Vec<DeviceSetup>> {
    let healthy = Just(Health::Healthy);
    let sick = prop_oneof![
        2 => Just(Health::Healthy),
        3 => Just(Health::Kills),
        1 => any::<bool>().prop_map(|permanent| Health::NeverLoads { permanent }),
        1 => Just(Health::NoMemory),
    ];
    let breaks = prop_oneof![Just(Health::Healthy), (2u32..4).prop_map(Health::BreaksAt)];
    let lost = prop_oneof![Just(Health::Healthy), Just(Health::WillBeLost)];
    // One kind of fault in each world: what dies of two at once may be blamed for either.
    let mut healths = prop_oneof![
        3 => (healthy, proptest::collection::vec(healthy, 0..3)),
        3 => (healthy, proptest::collection::vec(sick, 1..3)),
        1 => (healthy, proptest::collection::vec(breaks, 1..3)),
        2 => (healthy, proptest::collection::vec(lost, 1..2)),
    ]
    .prop_map(|(one, more)| std::iter::once(one).chain(more).collect::<Vec<_>>())
    .boxed();
    healths = healths.prop_shuffle().boxed();
    healths.prop_flat_map(|healths| healths.into_iter().map(device).collect::<Vec<_>>())
}

fn device(health: Health) -> impl Strategy<Value = DeviceSetup> {
    let load = prop_oneof![Just(1u64), 10u64..200, 1000u64..5000];
    let room = prop_oneof![3 => Just(usize::MAX), 1 => 1usize..9];
    (1usize..4, load, room).prop_map(move |(workers, load, room)| DeviceSetup {
        health,
        workers,
        load: Duration::from_millis(load),
        room: if health == Health::NoMemory { 0 } else { room },
    })
}

fn poison() -> impl Strategy<Value = Poison> {
    prop_oneof![
        4 => Just(Poison::Segfault),
        1 => Just(Poison::Exit),
        1 => Just(Poison::Hang),
        1 => Just(Poison::BreaksDevice),
        1 => Just(Poison::Refused),
        1 => Just(Poison::Rejected),
    ]
}

pub fn setups() -> impl Strategy<Value = Setup> {
    let size = prop_oneof![Just(1usize), Just(2), Just(4), Just(7), Just(8), Just(16)];
    let shape = (size, 0u64..30, 2u32..7, 1usize..4, any::<bool>(), 1u64..90);
    // Anywhere, next to each other, and at both ends.
    let place = prop_oneof![3 => 0.0f64..1.0, 1 => Just(0.0), 1 => Just(1.0), 1 => 0.5f64..0.52];
    let poison = proptest::collection::vec((place, poison()), 0..4);
    (shape, poison, devices(), prop_oneof![Just(0u32), 0u32..13], 1usize..=2).prop_map(
        |((max_batch, wait, slots, sinks, ordered, items), poison, devices, kills, ready)| Setup {
            max_batch,
            wait: Duration::from_millis(wait),
            slots,
            sinks,
            ordered,
            items,
            poison: poison.into_iter().map(|(at, p)| (((items - 1) as f64 * at) as u64, p)).collect(),
            devices,
            kills,
            streams: 1,
            ready,
        },
    )
}
