//! Which workers of a GPU are started, and what must hold while other processes come and go on it.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
const HEADROOM: u64 = 2 * GIB;
/// Of each worker of a stage, in GiB.
const TAKES: [u64; 3] = [5, 2, 9];

fn unknown(stage: u16, most: usize) -> StageCandidate {
    StageCandidate { stage: StageId(stage), at_first: 1, most, is_asked: false, declared: None, priority: 10 }
}

/// A GPU, and a manager that carries steps out at once. Workers load when they are told to.
struct World {
    order: LoadOrder,
    total: u64,
    others: u64,
    /// The stage of each worker that holds memory.
    loaded: Vec<u16>,
    /// The stage of each worker that was started and holds nothing yet.
    loading: Vec<u16>,
    answers: bool,
    is_warm: bool,
    looks: Vec<u64>,
    begun: Vec<u16>,
    added: Vec<u16>,
    measured: Vec<(u16, Option<u64>)>,
    now: Duration,
}

impl World {
    fn new(total: u64, candidates: &[StageCandidate]) -> Self {
        let mut world = Self {
            order: LoadOrder::new(candidates.iter().copied(), HEADROOM),
            total: total * GIB,
            others: 0,
            loaded: Vec::new(),
            loading: Vec::new(),
            answers: true,
            is_warm: true,
            looks: Vec::new(),
            begun: Vec::new(),
            added: Vec::new(),
            measured: Vec::new(),
            now: Duration::from_secs(1),
        };
        for c in candidates {
            world.order.served(c.stage);
        }
        world.next();
        world
    }

    fn next(&mut self) {
        loop {
            let steps = self.order.next(self.now, self.loading.is_empty());
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    LoadStep::Look(number) => self.looks.push(number),
                    LoadStep::WakeAfter(_) => {}
                    LoadStep::Begin(stage) => {
                        self.begun.push(stage.0);
                        self.start(stage);
                    }
                    LoadStep::Add(stage) => {
                        self.added.push(stage.0);
                        self.start(stage);
                    }
                    LoadStep::Measured { stage, bytes } => {
                        self.measured.push((stage.0, bytes.map(|bytes| bytes / GIB)));
                    }
                }
            }
        }
    }

    fn start(&mut self, stage: StageId) {
        self.loading.push(stage.0);
        self.order.moved(Some(stage));
    }

    fn free(&self) -> u64 {
        let ours: u64 = self.loaded.iter().map(|stage| TAKES[*stage as usize] * GIB).sum();
        self.total.saturating_sub(ours + self.others)
    }

    /// The driver answers all that it was asked.
    fn look(&mut self) {
        for number in std::mem::take(&mut self.looks) {
            self.order.looked(number, self.answers.then(|| self.free()));
        }
        self.next();
    }

    /// The worker of the stage that was started first is loaded now.
    fn load(&mut self, stage: u16) {
        let Some(at) = self.loading.iter().position(|of| *of == stage) else { return };
        self.loading.remove(at);
        self.loaded.push(stage);
        if !self.loading.contains(&stage) {
            self.order.loaded(StageId(stage), self.is_warm);
        }
        self.next();
    }

    /// Whatever is asked is answered, and whatever was started loads, until nothing more happens.
    fn settle(&mut self) {
        while !self.looks.is_empty() || !self.loading.is_empty() {
            self.look();
            if let Some(stage) = self.loading.first() {
                self.load(*stage);
            }
        }
    }
}

#[test]
fn every_stage_has_its_first_worker_before_one_more_is_started_by_priority() {
    let mut world = World::new(40, &[unknown(0, 4), StageCandidate { priority: 30, ..unknown(1, 3) }]);
    world.settle();
    assert_eq!(world.begun, [0, 1]);
    assert_eq!(world.added, [1, 1, 0, 0, 0]);
    // Room for one of the smaller model only.
    let mut world = World::new(12, &[unknown(0, 4), unknown(1, 4)]);
    world.settle();
    assert_eq!(world.added, [1]);
}

#[test]
fn what_is_declared_is_believed_and_not_measured() {
    let declared = StageCandidate { declared: Some(9 * GIB), ..unknown(0, 4) };
    let mut world = World::new(24, &[declared]);
    world.settle();
    assert_eq!((world.added.len(), world.measured.len()), (2, 0), "3 would fit by what they take");
}

#[test]
fn memory_that_another_process_takes_meanwhile_is_not_given_to_a_worker() {
    let mut world = World::new(24, &[unknown(0, 4)]);
    world.look();
    world.load(0);
    world.look();
    world.others = 10 * GIB;
    world.settle();
    assert_eq!(world.added, [0], "started before the other process came");
}

#[test]
fn a_driver_without_an_answer_leaves_one_worker_unless_the_file_asks_for_more() {
    for (is_asked, more) in [(false, 0), (true, 3)] {
        let mut world = World::new(24, &[StageCandidate { is_asked, ..unknown(0, 4) }]);
        world.answers = false;
        world.settle();
        assert_eq!((world.added.len(), &world.measured[0]), (more, &(0, None)));
    }
}

#[test]
fn a_driver_that_hangs_delays_a_start_by_seconds_only() {
    let mut world = World::new(24, &[unknown(0, 4)]);
    world.now += LOOK_PATIENCE;
    world.next();
    assert_eq!(world.begun, [0]);
    // An answer that comes late belongs to a look that was given up.
    world.look();
    world.load(0);
    world.settle();
    assert_eq!((world.added.len(), &world.measured[..]), (0, &[(0, None)][..]));
}

#[test]
fn a_worker_that_has_not_run_its_largest_batch_is_no_measure() {
    let mut world = World::new(24, &[unknown(0, 4)]);
    world.is_warm = false;
    world.settle();
    assert_eq!((world.added.len(), &world.measured[..]), (0, &[(0, None)][..]));
}

#[test]
fn nothing_is_added_while_a_worker_that_died_is_started_again() {
    let mut world = World::new(13, &[unknown(0, 1), unknown(1, 4)]);
    world.look();
    world.load(0);
    world.look();
    world.load(1);
    // The first model's worker dies; its memory is free until the next one has loaded.
    world.loaded.retain(|stage| *stage != 0);
    world.start(StageId(0));
    world.next();
    world.settle();
    assert_eq!(world.loaded.iter().filter(|stage| **stage == 0).count(), 1);
    assert!(world.free() >= HEADROOM);
}

#[test]
fn a_stage_that_loads_for_long_holds_no_other_up_and_one_that_is_over_leaves_its_room() {
    let mut world = World::new(40, &[unknown(0, 4), unknown(1, 4)]);
    world.look();
    world.now += LOAD_PATIENCE;
    world.next();
    assert_eq!(world.begun, [0, 1]);
    world.load(1);
    world.look();
    assert_eq!(world.measured, [(1, None)], "two loaded at once");
    world.loading.clear();
    world.order.complete(StageId(0));
    world.next();
    world.settle();
    assert_eq!(world.added, [] as [u16; 0], "nothing is known of the other one");
    // A pipeline that is built anew starts again, and is measured then.
    world.order.served(StageId(1));
    world.next();
    world.settle();
    assert_eq!((world.begun.len(), world.added.len()), (3, 3));
}

#[derive(Debug, Clone)]
enum Event {
    Look,
    Load(u16),
    Wait(u64),
    Stranger(u64),
    Dies,
    Gone(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Look),
        5 => (0u16..3).prop_map(Event::Load),
        2 => (0u64..40).prop_map(Event::Wait),
        1 => (1u64..4).prop_map(Event::Stranger),
        1 => Just(Event::Dies),
        1 => (0u16..3).prop_map(Event::Gone),
    ]
}

impl World {
    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Look => self.look(),
            Event::Load(stage) => self.load(stage),
            Event::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Event::Stranger(gib) => self.others += gib * GIB,
            Event::Dies => {
                if let Some(stage) = self.loaded.pop() {
                    self.order.moved(Some(StageId(stage)));
                    self.start(StageId(stage));
                }
            }
            Event::Gone(stage) => {
                self.loading.retain(|of| *of != stage);
                self.loaded.retain(|of| *of != stage);
                self.order.complete(StageId(stage));
            }
        }
        self.next();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_happens_no_worker_is_added_where_memory_lacks_and_every_stage_begins(
        total in 8u64..60,
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut world = World::new(total, &[unknown(0, 4), unknown(1, 3), unknown(2, 4)]);
        for event in &events {
            let before = world.added.len();
            // What the GPU has when a look is answered is what the order has to go by.
            let free = world.free();
            world.happens(event);
            for stage in &world.added[before..] {
                let takes = TAKES[*stage as usize] * GIB;
                prop_assert!(takes <= free.saturating_sub(HEADROOM), "{event:?}: {takes} of {free}");
            }
        }
        for _ in 0..20 {
            world.now += LOAD_PATIENCE;
            world.next();
            world.settle();
        }
        prop_assert!(world.order.entries.iter().all(|e| matches!(e.phase, StagePhase::Serving(_) | StagePhase::Complete)));
        prop_assert_eq!(world.order.next(world.now, true), []);
    }
}
