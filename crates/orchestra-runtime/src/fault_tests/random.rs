//! Random lives of many workers over hundreds of batches: whatever they do, every item has exactly one end, nothing hangs and nothing is
//! left. A failure names its seed; the same seed is the same run. `ORCHESTRA_FAULT_SEEDS=0..1000` tries others than the usual ones.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use orchestra_core::{ErrorClass, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::fake_process::Launch;
use super::script::*;
use super::stage::{Stage, Stop};

/// The seeds of the usual runs.
const SEEDS: Range<u64> = 40..80;
/// Workers started after so many others are honest, so that every run ends.
const FAULTS_END_AFTER: usize = 150;

/// Numbers that are the same everywhere for a seed.
struct Random(Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// From 0 to `n`, without `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }

    fn millis(&mut self, below: u64) -> Duration {
        ms(self.below(below))
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn exit(&mut self) -> WorkerExit {
        self.pick(&[KILLED, SEGFAULT, WorkerExit::Signal(6), WorkerExit::Code(0), WorkerExit::Code(3)])
    }

    fn run_fault(&mut self) -> RunFault {
        match self.below(12) {
            0..=3 => RunFault::Die(self.pick(&Point::ALL), self.exit()),
            4 => RunFault::Hang,
            5 => RunFault::Freeze,
            6 => RunFault::Slow(ms(9_000) + self.millis(2_000)),
            7 => RunFault::HalfAnswerThenSilence,
            8 => RunFault::AnswersFor(self.pick(&[Other::Unknown, Other::Earlier, Other::Next])),
            9 => self.pick(&[
                RunFault::AnswersTwice,
                RunFault::Garbage,
                RunFault::SecondHello,
                RunFault::SecondHelloThenRight,
            ]),
            10 => RunFault::Fails(self.pick(&[
                RunErrorKind::Model,
                RunErrorKind::OutOfMemory,
                RunErrorKind::Device,
            ])),
            _ => RunFault::BreaksAndStays,
        }
    }

    fn start(&mut self) -> Start {
        let exit = self.exit();
        self.pick(&[
            Start::CannotBeStarted,
            Start::Dies(exit),
            Start::Silent,
            Start::OtherBuild,
            Start::Garbage,
            Start::LoadedFirst,
        ])
    }

    fn load(&mut self) -> Load {
        let exit = self.exit();
        self.pick(&[
            Load::Fails(ErrorClass::Transient),
            Load::Fails(ErrorClass::Permanent),
            Load::Dies(exit.clone()),
            Load::Dies(exit),
            Load::NeverEnds,
            Load::Freezes,
        ])
    }

    fn later(&mut self) -> (Duration, TimedFault) {
        let what = match self.below(4) {
            0 | 1 => TimedFault::Dies(self.exit()),
            2 => TimedFault::Freezes,
            _ => TimedFault::AnswersUnasked,
        };
        (self.millis(2_000), what)
    }

    /// Mostly a worker that does some work first.
    fn script(&mut self) -> Script {
        let mut script = Script {
            load_takes: self.millis(300),
            run_takes: self.millis(20),
            kill_takes: self.pick(&[ms(0), ms(0), ms(0), ms(40), secs(6)]),
            ending: self.pick(&[Ending::AtOnce, Ending::AtOnce, Ending::After(ms(700)), Ending::Never]),
            ..Script::honest()
        };
        match self.below(16) {
            0 => script.start = self.start(),
            1 => script.load = self.load(),
            2..=9 => drop(script.at_run.insert(1 + self.below(12), self.run_fault())),
            10..=12 => script.later = Some(self.later()),
            13 => script.memory = vec![(secs(0), self.below(8) as usize), (secs(2), 100)],
            _ => {}
        }
        script
    }

    /// Killed or stopped from outside, at any time.
    fn struck(&mut self) -> Script {
        let strikes = [TimedFault::Dies(KILLED), TimedFault::Dies(KILLED), TimedFault::Freezes];
        let mut script = Script {
            load_takes: self.millis(300),
            run_takes: self.millis(20),
            later: Some((self.millis(400), self.pick(&strikes))),
            ..Script::honest()
        };
        match self.below(8) {
            0 => script.start = Start::Dies(KILLED),
            1 => script.load = self.pick(&[Load::Dies(KILLED), Load::Freezes]),
            _ => {}
        }
        script
    }

    fn stage(&mut self, label: String) -> Stage {
        let mut stage = Stage::of(200 + self.below(600)).named(label);
        stage.max_batch = self.pick(&[1, 2, 4, 7, 16]);
        stage.devices = 1 + self.below(3) as usize;
        stage.workers = 1 + self.below(3) as usize;
        stage.streams = self.pick(&[1, 1, 2, 3, 4]);
        stage.dynamic = self.below(4) == 0;
        stage.recycle_after = self.pick(&[None, None, Some(1), Some(5), Some(20)]);
        stage.pause = self.pick(&[ms(0), ms(0), ms(1), ms(30)]);
        stage.bound = secs(6 * 3600);
        stage
    }
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("ORCHESTRA_FAULT_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("seeds are given as `from..to`");
    from.parse().unwrap()..to.parse().unwrap()
}

/// The life of a worker depends on the seed and on which start it is, and on nothing else.
fn of_launch(seed: u64, launch: Launch) -> Random {
    Random::new(Rng::with_seed(seed).u64(..) ^ launch.nth as u64)
}

async fn any_faults(seed: u64) -> Outcome {
    run(seed, Random::new(seed).stage(format!("seed {seed}")), Random::script).await
}

/// Workers that live as `script` says, until faults end.
async fn run(seed: u64, stage: Stage, script: fn(&mut Random) -> Script) -> Outcome {
    let honest = |_: &mut Random| Script::honest();
    stage.run(move |l| if l.nth > FAULTS_END_AFTER { honest } else { script }(&mut of_launch(seed, l))).await
}

#[tokio::test(start_paused = true)]
async fn whatever_workers_do_every_item_has_exactly_one_end_and_nothing_is_left() {
    let (mut restarts, mut failed, mut no_device) = (0, 0, 0);
    for seed in seeds() {
        // What must hold is checked at the end of every run.
        let run = any_faults(seed).await;
        restarts += run.restarts;
        failed += run.account.failed.len();
        no_device += usize::from(run.account.no_device.is_some());
    }
    let all_kinds = restarts > 100 && failed > 0 && no_device > 0;
    assert!(
        all_kinds || seeds() != SEEDS,
        "{restarts} restarts, {failed} failed, {no_device} without devices"
    );
}

#[tokio::test(start_paused = true)]
async fn kills_and_stops_at_any_time_fail_no_item() {
    for seed in seeds() {
        let stage = Random::new(seed).stage(format!("seed {seed}"));
        run(seed, stage, Random::struck).await.all_done();
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_in_the_midst_of_faults_leaves_nothing_behind() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let mut stage = random.stage(format!("seed {seed}"));
        let how = random.pick(&[Stop::Politely, Stop::AtOnce]);
        stage.stop = Some((random.millis(4_000), how));
        stage.run(move |l| of_launch(seed, l).script()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 16] {
        let [a, b] = [any_faults(seed).await, any_faults(seed).await];
        let lives = |run: &Outcome| run.lives.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(lives(&a), lives(&b), "seed {seed}");
    }
}
