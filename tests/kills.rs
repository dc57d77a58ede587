//! The table of kills: in each shape of a workflow, each process that it has is killed at each moment, and every item still ends once, with what is its
//! own. Moments are events of the run: it stands at the gate of a model, has so many results, or is about to write. The full size has storms by the
//! clock as well. `part_kills.rs` aims between files of many rows, `fault_tests/deaths.rs` of the runtime between words of the protocol;
//! the shape `flow`, whose items are requests, has its test beside that, in `flow.rs`.

mod bucket;
mod judge;
mod python;
mod shapes;
mod tasks;

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Run, Workplace, until_struck};
use crate::part_kills::kill_at;
use crate::store::Store;
use Moment::{Committing, Ending, MidBatch, Reading};
use judge::assert_exact;
use orchestra_testkit::gate::Gate;
use orchestra_testkit::leaks::Holdings;
use orchestra_testkit::size::{scaled, storm};
use orchestra_testkit::striker::{Fault, loaders_of, strike, strike_any, strike_loaders, workers_of};
use rustix::process::Signal;
use shapes::{BATCH, Shape};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Items are listed and read, and none has come through the first model or command.
    Reading,
    /// A batch stands in a worker, or a command at work.
    MidBatch,
    /// Records are written. The parent: its next journal entry is about to be written, and has just been written.
    Committing,
    /// At the last batches. The parent: `run.json` is about to have its name, and has just got it.
    Ending,
}

/// The moments at which one sort of process is killed, and why at no other.
struct Cell {
    moments: &'static [Moment],
    why_no_other: &'static str,
}

const ALL: Cell = Cell { moments: &[Reading, MidBatch, Committing, Ending], why_no_other: "" };
const fn none(why: &'static str) -> Cell {
    Cell { moments: &[], why_no_other: why }
}

const NO_KEEPER: Cell = none("only commands have keepers");
const NO_MODEL: Cell = none("commands run no model");
const ROWS_ARE_READ: Cell =
    Cell { moments: &[Reading, MidBatch, Committing], why_no_other: "its last item is read long before" };

/// What is killed, and when, in one shape.
struct Row {
    shape: &'static str,
    worker: Cell,
    loader: Cell,
    parent: Cell,
    keeper: Cell,
}

#[rustfmt::skip]
const TABLE: [Row; 17] = [
    Row { shape: "plain",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "parts",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "sizes",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "joins",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "ordered", worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "reduce",  worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "behind",  worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "files",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "loop",    worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "steps",   worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "bucket",  worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "python",  worker: ALL,      loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "python-parts", worker: ALL, loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "python-loop", worker: ALL,  loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "python-ends", worker: ALL,  loader: ROWS_ARE_READ, parent: ALL, keeper: NO_KEEPER },
    Row { shape: "flow",    worker: ALL,      loader: ALL, parent: none("it is the program that asks"), keeper: NO_KEEPER },
    Row { shape: "tasks",   worker: NO_MODEL, loader: none("its rows are few: a command makes them"), parent: ALL,
          keeper: Cell { moments: &[Reading, MidBatch, Ending], why_no_other: "it ends before its command counts" } },
];

fn row(shape: &str) -> &'static Row {
    TABLE.iter().find(|row| row.shape == shape).unwrap()
}

/// Items of a run whose workers and loaders are killed, and of one that is killed itself. More than a run reads ahead.
const STRUCK: u64 = 1_200;
const KILLED: u64 = 160;

/// A run of a shape that a test can hold at its gate.
struct Struck {
    place: Workplace,
    store: Option<Store>,
    gate: Gate,
    shape: &'static Shape,
    items: u64,
}

impl Struck {
    /// `None`: a tool is missing, and the test is skipped.
    fn new(shape: &'static Shape, items: u64) -> Option<Self> {
        let place = Workplace::new();
        if !shape.write(&place, items) {
            return None;
        }
        let (gate, store) = (Gate::in_folder(&place.path("gate")), shape.store(&place));
        Some(Self { place, store, gate, shape, items })
    }

    fn start(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Run {
        let mut variables = variables.to_vec();
        variables.extend(self.store.iter().flat_map(Store::variables));
        self.place.start_on_file("run", arguments, &variables)
    }

    fn list(&self) -> PathBuf {
        self.place.out().join(format!(".orchestra/items-{}", self.shape.source))
    }

    fn assert_exact(&self) {
        assert_exact(&self.place, self.shape, self.items);
    }

    /// Waits until a batch stands at the gate that did not stand there before; `false`: the run has ended.
    fn stands(&self, run: &mut Run, before: u64) -> bool {
        run.until("a batch stands at the gate", || self.gate.n_waiting() > before)
    }

    /// Kills so many workers, at least one unless the run has come to its end. How many.
    #[track_caller]
    fn kill_workers(&self, run: &mut Run, moment: Moment, most: usize) -> usize {
        let (pid, mut killed) = (run.pid(), 0);
        let hit = run.until("there is a worker to kill", || {
            let workers = workers_of(pid).into_iter().take(most);
            killed = workers.filter(|worker| strike(pid, worker.pid, Fault::Kill)).count();
            killed > 0
        });
        // At the end, what seemed to stand may have been killed with the stop before.
        assert!(
            hit || moment == Ending,
            "{}, {moment:?}: the run has ended\n{}",
            self.shape.name,
            run.said()
        );
        killed
    }

    /// Kills a loader, and gives how many workers died for that: a loader that died before is missed, and replaced, when all that it had read is
    /// used up, so what stands is let through until then.
    fn kill_loader(&self, run: &mut Run, moment: Moment) -> usize {
        let (pid, mut killed) = (run.pid(), 0);
        let strikes = || loaders_of(pid).iter().any(|loader| strike(pid, loader.pid, Fault::Kill));
        let mut is_hit = strikes();
        while !is_hit {
            let stood = self.gate.n_waiting();
            killed += self.kill_and_let_through(run, moment, 8 * BATCH);
            run.must_reach("there is a loader to kill", || {
                is_hit = strikes();
                is_hit || self.gate.n_waiting() > stood
            });
        }
        killed
    }

    /// Lets so many more rows through, and kills the workers, some of which stand at the gate: others do their batches again. How many.
    fn kill_and_let_through(&self, run: &mut Run, moment: Moment, rows: u64) -> usize {
        self.gate.raise_to((self.gate.n_rows() + rows) as usize).unwrap();
        self.kill_workers(run, moment, usize::MAX)
    }
}

/// Kills workers and loaders of one run of a shape, at the moments of the table.
fn workers_and_loaders_die(shape: &'static Shape) {
    let (row, Some(struck)) = (row(shape.name), Struck::new(shape, STRUCK)) else { return };
    let (place, gate) = (&struck.place, &struck.gate);
    let is_killed = |moment: Moment| {
        assert!(row.worker.moments.contains(&moment));
        row.loader.moments.contains(&moment)
    };
    gate.close_after(0).unwrap();
    let mut run = struck.start(&[], &[]);
    // Whatever plans the run asks a script in Python in a process that looks like a worker.
    run.must_reach("items are listed", || struck.list().exists());
    let mut killed = struck.kill_workers(&mut run, Reading, 1);
    let (some, mut stood) = (struck.items * shape.rows / 6, 0);
    let mut open_at_first = None;
    for moment in [Reading, MidBatch] {
        // All that a run reads ahead is read, and its loader holds the next item.
        assert!(struck.stands(&mut run, stood), "{}", run.said());
        open_at_first.get_or_insert_with(|| Holdings::of(run.pid()).open_files());
        if is_killed(moment) {
            killed += struck.kill_loader(&mut run, moment);
        }
        stood = gate.n_waiting();
        killed += struck.kill_and_let_through(&mut run, MidBatch, some);
    }

    // While records are written: a loader, and a worker each time that there are some more.
    let before = place.n_results();
    for n in 1.. {
        let enough = before + n * 3 * BATCH as usize;
        let comes = || place.n_results() >= enough || gate.n_waiting() > stood;
        run.must_reach("more results", comes);
        if n == 1 && is_killed(Committing) {
            killed += struck.kill_loader(&mut run, Committing);
        }
        killed += struck.kill_workers(&mut run, Committing, 1);
        if gate.n_waiting() > stood {
            break;
        }
    }

    // With each stop half of the rest is left, and a batch or two at the last one.
    let mut stops = 0;
    loop {
        is_killed(Ending);
        let left = (struck.items - place.n_results() as u64) * shape.rows;
        stood = gate.n_waiting();
        // Each worker that died has taken its descriptors along. More of them may be at work now than at first.
        let (at_first, now) = (open_at_first.unwrap(), Holdings::of(run.pid()).open_files());
        assert!(now <= at_first + 16, "{at_first} descriptors became {now}");
        killed += struck.kill_and_let_through(&mut run, Ending, (left / 2).max(2 * BATCH));
        stops += 1;
        if !struck.stands(&mut run, stood) {
            break;
        }
    }
    run.wait().must_exit(0);
    struck.assert_exact();
    let loaders = place.report()["loaders"]["restarts"].as_u64().unwrap();
    println!(
        "{}: {killed} killed, {} workers and {loaders} loaders replaced, {stops} stops",
        shape.name,
        place.restarts()
    );
    assert!(place.restarts() >= 4 && loaders >= 2);
}

/// Kills the run itself at the moments of the table, and starts it again.
fn the_parent_dies(shape: &'static Shape) {
    let (row, Some(struck)) = (row(shape.name), Struck::new(shape, KILLED)) else { return };
    assert_eq!(row.parent.moments, ALL.moments);
    let Some((_folder, library)) = kill_at() else { return };
    let (place, gate) = (&struck.place, &struck.gate);
    let killed = |run: Run, moment: &str| {
        let ended = run.wait();
        assert_eq!(
            ended.status.code(),
            None,
            "{}, {moment}: it was not killed:\n{}",
            shape.name,
            ended.stderr
        );
        place.no_process_is_left();
        ended
    };

    gate.close_after(0).unwrap();
    let mut run = struck.start(&[], &[]);
    run.must_reach("items are listed", || struck.list().exists());
    run.signal(Signal::KILL);
    killed(run, "reading");

    gate.close_after((KILLED * shape.rows / 3) as usize).unwrap();
    let mut run = struck.start(&[], &[]);
    assert!(struck.stands(&mut run, 0), "{}", run.said());
    run.signal(Signal::KILL);
    killed(run, "mid-batch");

    gate.open().unwrap();
    // The first entry of a start says that it goes on.
    let mut goes_on = false;
    for (moment, name, nth) in [
        ("counting", "", "2"),
        ("counted", "", "2"),
        ("before", "/run.json", "1"),
        ("named", "/run.json", "1"),
    ] {
        let at =
            [("LD_PRELOAD", &*library), ("KILL_AT", moment), ("KILL_AT_NAME", name), ("KILL_AT_NTH", nth)];
        let ended = killed(struck.start(&at, &[]), moment);
        goes_on |= ended.stderr.contains("going on: ");
    }
    struck.start(&[], &[]).wait().must_exit(0);
    struck.assert_exact();
    let items = &place.report()["items"];
    assert!(goes_on && items["resumed"].as_u64().unwrap() > 0, "every start began anew: {items}");
}

/// Only at full size: workers and loaders are killed by the clock, as often as it takes, however fast a run is.
fn storms(shape: &'static Shape) {
    let (many, least) = scaled((6_000, 10), (0, 0));
    let Some(struck) = (many > 0).then(|| Struck::new(shape, many)).flatten() else { return };
    until_struck(least, Duration::from_millis(200), |every| {
        // Until its items are listed, a run asks scripts what they are: it has no process to replace, and says what ended.
        drop(std::fs::remove_file(struck.list()));
        let mut run = struck.start(&[], &["--fresh"]);
        run.must_reach("items are listed", || struck.list().exists());
        let (kills, stops) =
            (strike_any(run.pid(), every, Fault::Kill), strike_loaders(run.pid(), every * 5, Fault::Stop));
        run.wait().must_exit(0);
        let (killed, stopped) = (kills.stop().len(), stops.stop().len());
        println!("{}: {killed} killed, {stopped} stopped", shape.name);
        struck.assert_exact();
        killed
    });
}

fn every_item_ends_once(shape: &'static Shape) {
    let _turn = storm();
    workers_and_loaders_die(shape);
    the_parent_dies(shape);
    storms(shape);
}

#[test]
fn each_item_has_its_own_record_whatever_dies() {
    every_item_ends_once(&shapes::PLAIN);
}

#[test]
fn parts_of_an_item_come_back_together_whatever_dies() {
    every_item_ends_once(&shapes::PARTS);
}

#[test]
fn parts_of_two_sizes_come_back_together_whatever_dies() {
    every_item_ends_once(&shapes::SIZES);
}

#[test]
fn what_two_models_make_of_an_item_is_one_record_whatever_dies() {
    every_item_ends_once(&shapes::JOINS);
}

#[test]
fn records_stay_in_order_whatever_dies() {
    every_item_ends_once(&shapes::ORDERED);
}

#[test]
fn results_of_a_whole_run_have_each_row_once_whatever_dies() {
    every_item_ends_once(&shapes::REDUCE);
}

#[test]
fn stages_behind_a_reduce_work_on_each_of_its_rows_once_whatever_dies() {
    every_item_ends_once(&shapes::BEHIND);
}

#[test]
fn records_that_are_files_and_parts_of_files_are_whole_whatever_dies() {
    every_item_ends_once(&shapes::FILES);
}

#[test]
fn rounds_of_a_loop_are_neither_lost_nor_added_whatever_dies() {
    every_item_ends_once(&shapes::LOOP);
}

#[test]
fn steps_of_a_loop_through_a_row_are_neither_lost_nor_added_whatever_dies() {
    every_item_ends_once(&shapes::STEPS);
}

#[test]
fn objects_of_a_store_have_their_records_whatever_dies() {
    every_item_ends_once(&shapes::BUCKET);
}

#[test]
fn what_python_makes_of_a_row_is_its_record_whatever_dies() {
    every_item_ends_once(&python::PYTHON);
}

#[test]
fn parts_that_python_makes_drops_and_joins_are_those_of_their_item_whatever_dies() {
    every_item_ends_once(&python::PYTHON_PARTS);
}

#[test]
fn rounds_of_a_loop_in_python_are_neither_lost_nor_added_whatever_dies() {
    every_item_ends_once(&python::PYTHON_LOOP);
}

#[test]
fn what_python_yields_and_writes_is_there_once_whatever_dies() {
    every_item_ends_once(&python::PYTHON_ENDS);
}

#[test]
fn the_table_has_each_shape_and_says_why_a_cell_is_empty() {
    for row in &TABLE {
        for (victim, cell) in [
            ("worker", &row.worker),
            ("loader", &row.loader),
            ("parent", &row.parent),
            ("keeper", &row.keeper),
        ] {
            assert!(cell.moments.len() == 4 || !cell.why_no_other.is_empty());
            println!("{:8} {victim:7} {:?} {}", row.shape, cell.moments, cell.why_no_other);
        }
    }
}
