//! What must hold in a world at any moment, and at its end. It only looks.

use orchestra_core::ledger::Assignment;
use orchestra_core::lineage::Ending;

use super::*;

/// How long a suspect, or a row for which memory ran out, may wait while a worker has nothing to do: until a worker that died is
/// replaced (10 s at most, and its load), another one is replaced for its sake (after 30 s) and a device that never comes back is given up.
const LONGEST_PAUSE: Duration = Duration::from_secs(150);
/// As in the ledger: after so many refusals in a row a device rests while others work, at most so long.
const REFUSALS_BEFORE_REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(6_400);
/// No worker of these worlds takes longer to be replaced.
const LOAD: Duration = Duration::from_secs(6);
/// Deaths that a device is forgiven.
const BUDGET: u32 = 5;
/// Kills after which an item may have to run alone.
const WEAK_BEFORE_CAUTION: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Unread,
    Waits,
    With(WorkerId),
    Ended,
}

/// What has happened to an item.
#[derive(Debug, Default)]
pub(super) struct Life {
    place: Place,
    /// Rows of the batch in which it came.
    rows: usize,
    /// Workers that it killed.
    crashes: u32,
    /// Those of them that ran it alone, on a device where nothing had ever gone well.
    crashes_without_proof: u32,
    /// A worker died under it.
    is_suspect: bool,
    /// Memory ran out for it alone.
    had_no_room: bool,
    weak: u32,
    has_result: bool,
    /// How long it has waited since it was last sent, while some worker had nothing to do.
    idle_wait: Duration,
}

#[derive(Debug, Default)]
pub(super) struct DeviceLife {
    is_proven: bool,
    deaths_in_a_row: u32,
    strong_deaths: u32,
    refusals_in_a_row: u32,
    last_refusal: Duration,
}

impl Life {
    pub(super) fn closed(&mut self, rows: usize) {
        assert_eq!(self.place, Place::Unread);
        self.place = Place::Waits;
        self.rows = rows;
    }

    pub(super) fn sent(&mut self, worker: WorkerId) {
        assert_eq!(self.place, Place::Waits, "an item is at one place");
        self.place = Place::With(worker);
        self.idle_wait = Duration::ZERO;
    }

    pub(super) fn waits_again(&mut self, _now: Duration) {
        assert!(matches!(self.place, Place::With(_)));
        self.place = Place::Waits;
    }

    /// The rules may keep it until nothing else runs.
    fn may_run_alone(&self) -> bool {
        self.had_no_room || self.weak >= WEAK_BEFORE_CAUTION
    }

    pub(super) fn ends(&mut self, has_result: bool) {
        assert_ne!(self.place, Place::Ended, "an item ends once");
        self.place = Place::Ended;
        self.has_result = has_result;
    }
}

impl DeviceLife {
    pub(super) fn succeeded(&mut self) {
        self.is_proven = true;
        self.deaths_in_a_row = 0;
        self.refusals_in_a_row = 0;
    }

    pub(super) fn died(&mut self) {
        self.deaths_in_a_row += 1;
        self.strong_deaths += 1;
    }

    fn refused(&mut self, now: Duration) {
        self.refusals_in_a_row += 1;
        self.last_refusal = now;
    }

    fn is_in_doubt(&self) -> bool {
        self.deaths_in_a_row > 0 || self.refusals_in_a_row >= REFUSALS_BEFORE_REST
    }

    /// It may be left alone for a while, and no longer than the longest rest.
    fn may_rest(&self, now: Duration) -> bool {
        self.refusals_in_a_row >= REFUSALS_BEFORE_REST && now < self.last_refusal + LONGEST_REST
    }
}

impl World {
    // ---- What is noted

    /// A worker died of strong evidence with these rows.
    pub(super) fn killed_by(&mut self, w: &Worker, rows: Rows) {
        let is_its_fault = !self.sick.contains(&w.device) && !self.is_due_to_break_again(w);
        let is_proven = self.devices[w.device].is_proven;
        for item in self.items_of(rows) {
            let is_poison = self.setup.poison.contains_key(&item);
            let life = &mut self.lives[item as usize];
            life.is_suspect = true;
            if is_its_fault && is_poison {
                life.crashes += 1;
                life.crashes_without_proof += u32::from(rows.count == 1 && !is_proven);
            }
        }
    }

    /// As `is_due_to_break`, once the batch that it breaks at has begun.
    fn is_due_to_break_again(&self, w: &Worker) -> bool {
        matches!(self.setup.devices[w.device].health, Health::BreaksAt(n) if w.begun >= n)
    }

    pub(super) fn killed_under(&mut self, rows: Rows) {
        for item in self.items_of(rows) {
            self.lives[item as usize].weak += 1;
        }
    }

    /// A single item may have to wait for another device to say so, too.
    pub(super) fn refused(&mut self, device: usize, rows: Rows) {
        let now = self.now;
        self.devices[device].refused(now);
        for item in self.items_of(rows) {
            self.lives[item as usize].is_suspect |= rows.count == 1;
        }
    }

    pub(super) fn no_memory_for(&mut self, device: usize, rows: Rows) {
        if rows.count == 1 {
            let now = self.now;
            self.devices[device].refused(now);
        }
        for item in self.items_of(rows) {
            self.lives[item as usize].had_no_room |= rows.count == 1;
        }
    }

    pub(super) fn time_passes(&mut self, to: Duration) {
        let passed = to.saturating_sub(self.now);
        self.now = to;
        if passed.is_zero() || self.idle_workers().next().is_none() {
            return;
        }
        self.lives.iter_mut().filter(|l| l.place == Place::Waits).for_each(|l| l.idle_wait += passed);
        // Suspects wait for each other, too: a worker that is replaced for one of them runs that one.
        let n_suspects = self.lives.iter().filter(|l| l.is_suspect).count();
        let longest = LONGEST_PAUSE + LOAD * u32::try_from(n_suspects).expect("there are few");
        let too_long = self.lives.iter().position(|l| l.idle_wait > longest);
        assert_eq!(too_long, None, "this item waits too long: {}", self.describe());
    }

    // ---- What must hold

    pub(super) fn check_assignment(&self, a: &Assignment) {
        let w = &self.workers[&a.worker];
        assert!(w.phase == Phase::Serving && !w.draining && !w.broken, "{a:?} to {w:?}");
        assert_eq!(device_id(w.device), a.device);
        assert!(w.holds.len() < self.setup.streams + self.setup.ready);
        if self.setup.streams > 1 && !w.holds.is_empty() {
            let held = w.holds.iter().map(|(_, rows)| *rows);
            let suspect = held.chain([a.rows]).find(|rows| self.is_suspect(*rows));
            assert_eq!(suspect, None, "a suspect has its worker for itself: {}", self.describe());
        }
        assert!((1..=self.setup.max_batch).contains(&a.rows.count));
        assert!(a.rows.count <= self.ledger.ceiling(a.device), "no batch is larger than its device takes");
        // A device that fails fast gets one batch at a time as long as another one works.
        if self.devices[w.device].is_in_doubt() && self.another_works(w.device) {
            let n: usize =
                self.workers.values().filter(|o| o.device == w.device).map(|o| o.holds.len()).sum();
            assert_eq!(n, 0, "{a:?} goes to a device that is in doubt and busy");
        }
    }

    fn is_suspect(&self, rows: Rows) -> bool {
        self.items_of(rows).into_iter().any(|item| self.lives[item as usize].is_suspect)
    }

    fn another_works(&self, device: usize) -> bool {
        self.workers.values().any(|o| takes_more(o) && !self.devices[o.device].is_in_doubt())
            && self.devices[device].is_in_doubt()
    }

    fn idle_workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|w| takes_more(w) && w.holds.is_empty())
    }

    /// No batch waits while a worker has nothing to do, unless a rule says why; how long it may, is checked as time passes. The same
    /// holds for the open batch, once it is full or its oldest row has waited for company.
    pub(super) fn check_that_no_batch_waits_without_reason(&self) {
        let is_plain = |l: &Life| l.place == Place::Waits && !l.is_suspect && !l.may_run_alone();
        let plain = self.lives.iter().position(is_plain);
        let is_due =
            |o: &&Open| self.now >= o.since + self.setup.wait || o.items.len() >= self.setup.max_batch;
        let open = self.open.as_ref().filter(is_due).map(|o| o.items[0]);
        if plain.is_none() && open.is_none() {
            return;
        }
        let runs_alone = |w: &Worker| {
            let items = w.holds.iter().flat_map(|(_, rows)| self.items_of(*rows));
            items.into_iter().any(|i| self.lives[i as usize].may_run_alone())
        };
        let something_runs_alone = self.workers.values().any(runs_alone);
        for w in self.idle_workers() {
            let is_busy = self.workers.values().any(|o| o.device == w.device && !o.holds.is_empty());
            let may_wait = is_busy || self.devices[w.device].may_rest(self.now);
            let is_on_probation = may_wait && self.another_works(w.device);
            assert!(
                is_on_probation || something_runs_alone,
                "item {plain:?} or {open:?} waits, and {w:?} has nothing to do: {}",
                self.describe()
            );
        }
    }

    pub(super) fn check_ending(&self, item: u64, ending: &Ending<u64>) {
        let is_poison = self.setup.poison.contains_key(&item);
        match ending {
            Ending::Done(records) => {
                assert!(!is_poison, "item {item} has a result");
                assert_eq!(records.as_slice(), vec![item; self.setup.sinks]);
            }
            Ending::Failed(failure) => {
                assert!(is_poison, "item {item} is failed although it is harmless: {failure:?}");
            }
        }
        if self.setup.ordered {
            assert_eq!(item, self.ended.len() as u64, "records come in the order of the source");
        }
    }

    /// A device is only given up where more died in a row than its budget allows.
    pub(super) fn check_given_up(&self, device: usize) {
        let is_healthy = self.setup.devices[device].health == Health::Healthy;
        let deaths = self.devices[device].deaths_in_a_row;
        assert!(
            !is_healthy || deaths > BUDGET,
            "device {device} was given up after {deaths} deaths in a row"
        );
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.len() as u64 == self.setup.items || self.gone.len() == self.setup.devices.len()
    }

    /// Everything has ended once, everything that was lent is back, and no item needed more workers than the rules say.
    pub fn check_end(&self) {
        let ended: BTreeSet<_> = self.ended.iter().copied().collect();
        assert_eq!(ended.len(), self.ended.len(), "an item ends once");
        if self.n_open() > 0 {
            // Without a device the rest stays open, for the next start.
            assert_eq!(self.gone.len(), self.setup.devices.len(), "{}", self.describe());
        } else {
            assert_eq!(self.ledger.n_batches(), 0);
            assert!(self.lineage.is_empty(), "nothing waits for the rest of an item");
            assert_eq!(self.free_slots.len(), self.setup.slots as usize, "every slot is free again");
            assert!(self.workers.values().all(|w| w.holds.is_empty()));
        }
        for (item, life) in self.lives.iter().enumerate() {
            let mut bound = life.rows.next_power_of_two().ilog2() + 2;
            // A single item that dies beside another one is only suspected.
            bound += u32::from(self.setup.streams > 1 && life.rows == 1);
            // With three devices or more, the word of one that never got anything right is not enough.
            if self.setup.devices.len() > 2 {
                bound += life.crashes_without_proof;
            }
            assert!(life.crashes <= bound, "item {item} cost more than {bound} workers: {life:?}");
        }
        for (d, device) in self.setup.devices.iter().enumerate() {
            if device.health == Health::Kills {
                let deaths = self.devices[d].strong_deaths;
                let most = BUDGET + u32::try_from(device.workers).expect("there are few");
                assert!(
                    deaths <= most,
                    "device {d} was given {deaths} batches to kill, expected at most {most}"
                );
            }
        }
    }

    /// Items that have no end.
    pub fn n_open(&self) -> u64 {
        self.setup.items - self.ended.len() as u64
    }

    pub(super) fn describe(&self) -> String {
        let open: Vec<_> = self
            .lives
            .iter()
            .enumerate()
            .filter(|(_, l)| !matches!(l.place, Place::Ended | Place::Unread))
            .collect();
        format!(
            "at {:?}, {} ended, open {open:?}, workers {:?}, devices {:?}, gone {:?}, timers {:?}, {:#?}",
            self.now,
            self.ended.len(),
            self.workers,
            self.devices,
            self.gone,
            self.timers,
            self.ledger
        )
    }
}

fn takes_more(w: &Worker) -> bool {
    w.phase == Phase::Serving && !w.draining && !w.broken
}
