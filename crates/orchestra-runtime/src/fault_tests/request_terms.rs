//! What callers ask for beside an answer: a place or none, a priority, a deadline, and to be forgotten. Random callers of one slow worker, judged by rules that
//! know nothing of actors. A failure names its seed; the same seed is the same run.

use std::time::Duration;

use fastrand::Rng;
use futures::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::log::{Begun, Log};
use super::requests::{all_is_home, is_answer, request, start_with};
use super::script::{Script, ms};
use super::stage::Stage;
use crate::requests::{ProcessError, RequestFlow, RequestTerms};

const SEEDS: u64 = 40;
const REQUESTS: u64 = 150;
/// Places; the stage has as many rows, so that a request with a place waits for its batches alone.
const MOST: usize = 4;
const RUN_TAKES: Duration = ms(10);

/// A request, as its caller asks it. Times but `at` are counted from there.
#[derive(Debug, Clone, Copy)]
struct AskedFor {
    item: u64,
    at: Duration,
    priority: u8,
    waits: bool,
    deadline: Option<Duration>,
    dropped_after: Option<Duration>,
}

/// What became of it.
#[derive(Debug)]
struct CallerEnd {
    asked: AskedFor,
    /// Requests with a place when it came.
    n_before: usize,
    at: Duration,
    /// `None`: its caller dropped it.
    answer: Option<Result<bool, ProcessError>>,
}

impl AskedFor {
    /// More of them than the worker can answer.
    fn all(random: &mut Rng) -> Vec<Self> {
        let mut at = Duration::ZERO;
        let mut asked = |item| {
            at += ms(random.u64(..14));
            let mut sometimes = |within| (random.u8(..3) == 0).then(|| ms(random.u64(1..within)));
            let (deadline, dropped_after) = (sometimes(80), sometimes(60));
            Self { item, at, priority: random.u8(..3), waits: random.bool(), deadline, dropped_after }
        };
        (0..REQUESTS).map(&mut asked).collect()
    }

    async fn ask(self, flow: &RequestFlow, began: Instant) -> CallerEnd {
        sleep_until(began + self.at).await;
        let n_before = flow.waiting();
        let Self { priority, waits, deadline, .. } = self;
        let terms = RequestTerms { deadline: deadline.map(|after| began + self.at + after), priority, waits };
        let request = request(self.item);
        let asked = flow.process(&request, terms);
        let answer = match self.dropped_after {
            Some(after) => timeout(after, asked).await.ok(),
            None => Some(asked.await),
        };
        let answer = answer.map(|end| end.map(|records| is_answer(&records, self.item)));
        assert!(flow.waiting() <= MOST, "no more than have places");
        CallerEnd { asked: self, n_before, at: began.elapsed(), answer }
    }
}

impl CallerEnd {
    /// The rules for one request, and for what the worker did of it.
    fn must_be_due(&self, begun: &[Begun], held: u32) {
        let Self { asked, n_before, at, answer } = self;
        let own: Vec<&Begun> = begun.iter().filter(|run| run.items == [asked.item]).collect();
        assert!(own.len() <= 1, "begun once: {self:?}");
        let is_refused = *n_before == MOST && !asked.waits;
        match answer {
            Some(Err(ProcessError::Overloaded(most))) => {
                assert!(is_refused && (*most, *at) == (MOST, asked.at), "{self:?}");
                assert!(own.is_empty(), "{self:?}");
                return;
            }
            Some(Ok(is_own)) => {
                assert!(*is_own && own[0].answered == Some(*at), "{self:?} {own:?}");
                assert!(asked.deadline.is_none_or(|deadline| *at <= asked.at + deadline), "{self:?}");
            }
            Some(Err(ProcessError::Deadline)) => {
                assert_eq!(Some(*at - asked.at), asked.deadline, "{self:?}");
            }
            None => assert_eq!(Some(*at - asked.at), asked.dropped_after, "{self:?}"),
            Some(Err(other)) => panic!("{other}: {self:?}"),
        }
        assert!(!is_refused, "it is refused at once: {self:?}");
        // What the worker has is finished: what it runs, and what waits there.
        let is_withdrawn = !matches!(answer, Some(Ok(_)));
        let last = *at + RUN_TAKES * (held - 1);
        assert!(!is_withdrawn || own.iter().all(|run| run.at <= last), "{self:?} {own:?}");
    }
}

/// Of two requests that wait, the one of the higher priority goes first, then the one that came first.
fn must_be_in_order(ends: &[CallerEnd], begun: &[Begun]) {
    let of = |run: &Begun| &ends[run.items[0] as usize];
    for (nth, run) in begun.iter().enumerate().skip(MOST) {
        // No earlier did it get its place: as many as have one were in front of it.
        let Some(placed) = begun[nth - MOST].answered else { continue };
        for later in begun[nth + 1..].iter().map(of) {
            let first = of(run);
            let outranks =
                (later.asked.priority, first.asked.item) > (first.asked.priority, later.asked.item);
            assert!(!outranks || later.asked.at >= placed, "{later:?} waited when {first:?} was taken");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_callers_get_what_their_terms_say_and_what_is_withdrawn_is_not_begun() {
    let (mut n_refused, mut n_late, mut n_dropped, mut n_waited) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let log = Log::start();
        let slow = |_| Script { run_takes: RUN_TAKES, ..Script::honest() };
        let flow = start_with(&Stage { max_batch: 1, ..Stage::of(0) }, &log, MOST, slow).await.unwrap();
        let began = Instant::now();
        let since = log.now();
        let asked = AskedFor::all(&mut Rng::with_seed(seed)).into_iter();
        let ends = join_all(asked.map(|asked| asked.ask(&flow, began))).await;
        while flow.waiting() > 0 {
            sleep(ms(1)).await;
        }
        all_is_home(&flow);
        let mut begun: Vec<Begun> = log.lives().into_iter().flat_map(|life| life.runs).collect();
        for run in &mut begun {
            run.at -= since;
            run.answered = run.answered.map(|at| at - since);
        }
        begun.sort_by_key(|run| run.at);
        let (_, batch) = flow.plan().batch_stages().next().unwrap();
        let held = batch.held_by_workers() as u32;
        ends.iter().for_each(|end| end.must_be_due(&begun, held));
        must_be_in_order(&ends, &begun);
        let count = |is: &dyn Fn(&CallerEnd) -> bool| ends.iter().filter(|end| is(end)).count();
        n_refused += count(&|end| matches!(end.answer, Some(Err(ProcessError::Overloaded(_)))));
        n_late += count(&|end| matches!(end.answer, Some(Err(ProcessError::Deadline))));
        n_dropped += count(&|end| end.answer.is_none());
        n_waited += count(&|end| end.n_before == MOST && matches!(end.answer, Some(Ok(_))));
        flow.close().await;
    }
    // The rules have been put to the test.
    assert!([n_refused, n_late, n_dropped, n_waited].iter().all(|n| *n > 100));
}
