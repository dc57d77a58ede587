//! What is found out about the workers of a GPU, by name, and what must hold while other processes come and go on it.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
const NOW: Duration = Duration::from_secs(1);
/// Of each worker of a stage, in GiB.
const TAKES: [u64; 3] = [5, 2, 9];

fn unknown(stage: u16, most: usize) -> Candidate {
    Candidate { stage: StageId(stage), at_first: 1, most, is_asked: false, each: None, priority: 10 }
}

/// A GPU, and a manager that carries steps out at once. Workers load when they are told to.
struct World {
    survey: Survey,
    total: u64,
    others: Vec<(u32, u64)>,
    /// The stage of each worker that holds memory; its process id is its place, plus 100.
    workers: Vec<u16>,
    /// The driver says what a process holds.
    counts: bool,
    answers: bool,
    looks: Vec<u64>,
    begun: Vec<u16>,
    measured: Vec<(u16, u64)>,
    unmeasured: Vec<(u16, Unmeasured)>,
    grown: Vec<(u16, usize)>,
    now: Duration,
}

impl World {
    fn new(total: u64, candidates: &[Candidate]) -> Self {
        Self::with_most(u64::MAX, total, candidates)
    }

    fn with_most(most: u64, total: u64, candidates: &[Candidate]) -> Self {
        let mut world = Self {
            survey: Survey::new(candidates.iter().copied(), 2 * GIB, most.saturating_mul(GIB)),
            total: total * GIB,
            others: Vec::new(),
            workers: Vec::new(),
            counts: true,
            answers: true,
            looks: Vec::new(),
            begun: Vec::new(),
            measured: Vec::new(),
            unmeasured: Vec::new(),
            grown: Vec::new(),
            now: NOW,
        };
        for c in candidates {
            world.survey.served(c.stage);
        }
        world.next();
        world
    }

    fn next(&mut self) {
        loop {
            let steps = self.survey.next(self.now);
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    Step::Look(number) => self.looks.push(number),
                    Step::LookAfter(_) => {}
                    Step::Begin(stage) => {
                        self.survey.moved(stage);
                        self.begun.push(stage.0);
                    }
                    Step::Measured { stage, each } => self.measured.push((stage.0, each / GIB)),
                    Step::NotMeasured { stage, why } => self.unmeasured.push((stage.0, why)),
                    Step::Grow { stage, more } => self.grown.push((stage.0, more)),
                }
            }
        }
    }

    fn reading(&self) -> Reading {
        let of_worker = |stage: &u16| TAKES[*stage as usize] * GIB;
        let ours = (100..).zip(&self.workers).map(|(pid, w)| (pid, of_worker(w)));
        let all: Vec<(u32, u64)> = ours.chain(self.others.iter().copied()).collect();
        let used: u64 = all.iter().map(|(_, bytes)| bytes).sum();
        let shown = |(pid, bytes): (u32, u64)| (pid, self.counts.then_some(bytes));
        Reading {
            used,
            free: self.total.saturating_sub(used),
            processes: all.into_iter().map(shown).collect(),
        }
    }

    /// The driver answers all that it was asked.
    fn look(&mut self) {
        for number in std::mem::take(&mut self.looks) {
            let reading = self.answers.then(|| self.reading());
            self.survey.looked(number, reading, self.now);
        }
        self.next();
    }

    fn load(&mut self, stage: u16) {
        self.workers.push(stage);
        let pid = 99 + self.workers.len() as u32;
        self.survey.loaded(StageId(stage), FirstWorker { pid: Some(pid), is_warm: true });
        self.next();
    }

    /// The usual course of the first worker of a stage.
    fn measure(&mut self, stage: u16) {
        self.look();
        self.load(stage);
        self.look();
    }
}

#[test]
fn one_worker_is_measured_and_as_many_more_are_started_as_fit() {
    for (total, most, more) in
        [(24, 4, Some(3)), (24, 2, Some(1)), (16, 4, Some(1)), (11, 4, None), (24, 9, Some(3))]
    {
        for counts in [true, false] {
            let mut world = World::new(total, &[unknown(0, most)]);
            world.counts = counts;
            assert_eq!(world.begun, [] as [u16; 0], "the GPU is looked at first");
            world.measure(0);
            assert_eq!((&world.begun[..], &world.measured[..]), (&[0][..], &[(0, 5)][..]));
            assert_eq!(world.grown, more.map(|n| (0, n)).into_iter().collect::<Vec<_>>(), "{total} {most}");
            assert!(world.survey.is_over() && world.looks.is_empty());
        }
    }
}

#[test]
fn workers_are_added_as_far_as_they_leave_commands_their_memory() {
    for (most, more) in [(9, None), (10, Some(1)), (16, Some(2)), (40, Some(3))] {
        let mut world = World::with_most(most, 24, &[unknown(0, 4)]);
        world.measure(0);
        assert_eq!(world.grown.first().map(|(_, more)| *more), more, "{most}");
    }
}

#[test]
fn two_models_are_measured_one_after_the_other_and_share_what_is_left() {
    for counts in [true, false] {
        let mut world = World::new(24, &[unknown(0, 4), unknown(1, 4)]);
        world.counts = counts;
        world.measure(0);
        assert_eq!((&world.begun[..], world.grown.len()), (&[0][..], 0));
        world.measure(1);
        assert_eq!((&world.measured[..], &world.begun[..]), (&[(0, 5), (1, 2)][..], &[0, 1][..]));
        // 15 GiB are left beyond the headroom.
        assert_eq!(world.grown, [(0, 2), (1, 2)]);
    }
}

#[test]
fn what_is_known_is_not_measured() {
    let known = Candidate { each: Some(5 * GIB), ..unknown(0, 4) };
    let mut world = World::new(21, &[known, unknown(1, 4)]);
    assert_eq!((&world.begun[..], world.looks.len()), (&[0][..], 0));
    world.load(0);
    world.measure(1);
    // 21 - 2 headroom - 5 - 2 = 12.
    assert_eq!((&world.measured[..], &world.grown[..]), (&[(1, 2)][..], &[(0, 2), (1, 1)][..]));
}

#[test]
fn a_loss_is_not_believed_where_others_came_went_or_changed_and_the_drivers_own_count_is() {
    type Change = fn(&mut World);
    let changes: [Change; 5] = [
        |w| w.others.push((7, GIB)),
        |w| w.others.clear(),
        |w| w.others[0].1 += GIB,
        |w| w.survey.moved(StageId(9)),
        |w| w.survey.ended(None),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        for counts in [true, false] {
            let mut world = World::new(24, &[unknown(0, 4)]);
            world.others.push((6, 3 * GIB));
            world.counts = counts || n == 2;
            let hide = n == 2 && !counts;
            world.look();
            change(&mut world);
            world.workers.push(0);
            let pid = if hide { 4_000 } else { 100 };
            world.survey.loaded(StageId(0), FirstWorker { pid: Some(pid), is_warm: true });
            world.next();
            world.look();
            if counts {
                assert_eq!(world.measured, [(0, 5)], "change {n}");
            } else {
                assert_eq!(world.unmeasured, [(0, Unmeasured::Disturbed)], "change {n}");
                assert!(world.grown.is_empty() && world.survey.is_over());
            }
        }
    }
}

#[test]
fn in_a_container_that_numbers_or_hides_processes_the_loss_counts() {
    let reading = |used: u64, pids: &[u32]| Reading {
        used: used * GIB,
        free: 0,
        processes: pids.iter().map(|p| (*p, None)).collect(),
    };
    let lost = |before, after| taken_by(Some(100), Some(&before), &after).map(|bytes| bytes / GIB);
    assert_eq!(lost(reading(1, &[]), reading(6, &[])), Ok(5));
    assert_eq!(lost(reading(1, &[3]), reading(6, &[3, 70_001])), Ok(5));
    assert_eq!(lost(reading(1, &[3]), reading(6, &[3, 100])), Ok(5));
    assert_eq!(lost(reading(1, &[3]), reading(6, &[3, 100, 4])), Err(Unmeasured::Disturbed));
    assert_eq!(lost(reading(1, &[3]), reading(6, &[3, 4, 5])), Err(Unmeasured::Disturbed));
    assert_eq!(lost(reading(6, &[]), reading(6, &[])), Err(Unmeasured::NothingLost));
    assert_eq!(taken_by(None, None, &reading(6, &[])), Err(Unmeasured::Disturbed));
}

#[test]
fn another_process_that_has_the_number_of_our_worker_is_not_taken_for_it() {
    let mut world = World::new(24, &[unknown(0, 3)]);
    // As the driver of the machine calls it; our worker is number 7 in its container, and 100 there.
    world.others = vec![(7, 3 * GIB)];
    world.look();
    world.workers.push(0);
    world.survey.loaded(StageId(0), FirstWorker { pid: Some(7), is_warm: true });
    world.next();
    world.look();
    assert_eq!(world.measured, [(0, TAKES[0])]);
}

#[test]
fn where_nothing_can_be_measured_who_asked_is_believed_and_the_rest_stay_as_they_are() {
    for (is_asked, grown) in [(true, vec![(0, 2)]), (false, vec![])] {
        let mut world = World::new(24, &[Candidate { is_asked, ..unknown(0, 3) }, unknown(1, 4)]);
        world.answers = false;
        world.measure(0);
        world.measure(1);
        assert_eq!(world.unmeasured, [(0, Unmeasured::NoAnswer), (1, Unmeasured::NoAnswer)]);
        assert_eq!(world.grown, grown);
        assert!(world.survey.is_over());
    }
}

#[test]
fn who_asked_and_was_measured_is_not_held_back_by_one_that_was_not() {
    // The second one refuses what it is warmed with, so nothing is known of it.
    let mut world = World::new(24, &[Candidate { is_asked: true, ..unknown(0, 3) }, unknown(1, 4)]);
    world.measure(0);
    world.answers = false;
    world.measure(1);
    assert_eq!(world.measured.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(), [0]);
    assert_eq!(world.grown, [(0, 2)]);
}

#[test]
fn a_driver_that_hangs_delays_a_start_by_seconds_only() {
    let mut world = World::new(24, &[Candidate { is_asked: true, ..unknown(0, 2) }]);
    world.now += LOOK_PATIENCE;
    world.next();
    assert_eq!(world.begun, [0]);
    let late = std::mem::take(&mut world.looks);
    world.load(0);
    for number in late {
        world.survey.looked(number, Some(world.reading()), world.now);
    }
    world.now += LOOK_PATIENCE;
    world.next();
    assert_eq!((&world.unmeasured[..], &world.grown[..]), (&[(0, Unmeasured::NoAnswer)][..], &[(0, 1)][..]));
}

#[test]
fn a_worker_that_has_not_run_its_largest_batch_is_no_measure() {
    let mut world = World::new(24, &[unknown(0, 4)]);
    world.look();
    world.workers.push(0);
    world.survey.loaded(StageId(0), FirstWorker { pid: Some(100), is_warm: false });
    world.next();
    world.look();
    assert_eq!(world.unmeasured, [(0, Unmeasured::NotWarm)]);
    assert!(world.grown.is_empty());
}

#[test]
fn a_worker_that_dies_before_it_is_measured_is_followed_by_the_next_one() {
    let mut world = World::new(24, &[unknown(0, 4)]);
    world.counts = false;
    world.look();
    world.load(0);
    world.survey.ended(Some(StageId(0)));
    world.workers.clear();
    world.look();
    assert!(world.measured.is_empty() && !world.survey.is_over());
    world.load(0);
    world.look();
    assert_eq!((&world.measured[..], &world.grown[..]), (&[(0, 5)][..], &[(0, 3)][..]));
}

#[test]
fn a_successor_that_starts_before_its_worker_is_measured_is_no_part_of_what_that_takes() {
    for counts in [true, false] {
        let mut world = World::new(24, &[unknown(0, 4)]);
        world.counts = counts;
        world.look();
        world.load(0);
        world.survey.moved(StageId(0));
        world.workers.push(0);
        world.look();
        assert_eq!((world.measured.len(), world.unmeasured.len()), if counts { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn a_stage_that_never_loads_holds_no_other_up_and_one_that_is_over_leaves_its_room() {
    let mut world = World::new(24, &[unknown(0, 4), unknown(1, 4)]);
    world.look();
    world.next();
    assert_eq!(world.begun, [0]);
    world.now += LOAD_PATIENCE;
    world.next();
    world.look();
    assert_eq!(world.begun, [0, 1]);
    world.load(1);
    world.look();
    assert_eq!(
        (&world.measured[..], world.grown.len()),
        (&[(1, 2)][..], 0),
        "the other one may still need room"
    );
    world.survey.gone(StageId(0));
    world.next();
    world.look();
    assert_eq!(world.grown, [(1, 3)]);
    assert!(world.survey.is_over());
    // A pipeline that is built anew starts again, with what is known.
    world.survey.served(StageId(1));
    world.next();
    assert_eq!(world.begun, [0, 1, 1]);
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
    fn happens(&mut self, event: Event, stranger: u32) {
        match event {
            Event::Look => self.look(),
            Event::Load(stage) => {
                let is_meant = |e: &&Entry| e.of.stage == StageId(stage);
                let entry = self.survey.entries.iter().find(is_meant);
                if entry.is_some_and(|e| matches!(e.phase, Phase::Loading(_))) {
                    self.load(stage);
                }
            }
            Event::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Event::Stranger(gib) => self.others.push((stranger, gib * GIB)),
            Event::Dies => {
                let loaded = self.survey.entries.iter().find(|e| matches!(e.phase, Phase::Loaded(..)));
                // It is the last one that took memory, or another one would move up to its process id.
                let last = self.workers.last().copied();
                if let Some(stage) = loaded.map(|e| e.of.stage).filter(|stage| last == Some(stage.0)) {
                    self.workers.pop();
                    self.survey.ended(Some(stage));
                }
            }
            Event::Gone(stage) => self.survey.gone(StageId(stage)),
        }
        self.next();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_happens_no_stage_is_measured_wrongly_started_beyond_the_room_or_forgotten(
        total in 8u64..60,
        counts: bool,
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut world = World::new(total, &[unknown(0, 4), unknown(1, 3), unknown(2, 4)]);
        world.counts = counts;
        for (n, event) in (1..).zip(events) {
            let before = world.grown.len();
            world.happens(event, n);
            let grown = world.grown[before..].iter();
            let new: u64 = grown.map(|(s, more)| TAKES[*s as usize] * GIB * *more as u64).sum();
            let room = world.reading().free.saturating_sub(2 * GIB);
            prop_assert!(new <= room, "{} of {}", new, room);
        }
        for (stage, gib) in &world.measured {
            prop_assert_eq!(*gib, TAKES[*stage as usize]);
        }
        // With time and a driver that answers, everybody is through.
        for _ in 0..20 {
            world.now += LOAD_PATIENCE;
            world.next();
            world.look();
            (0..3).for_each(|stage| world.happens(Event::Load(stage), 0));
        }
        prop_assert!(world.survey.is_over(), "{:?}", world.survey);
    }
}
