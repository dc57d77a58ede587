//! The shapes of workflows that processes are killed in: each writes a workflow over so many items whose records show whose they are, and a judge of
//! what its sinks hold. Each has a gate, by which a test stops it between any two batches. Kills nothing.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{Blocks, Workplace, members_of, npy, write_pictures};
use crate::store::Store;
use orchestra_testkit::images::index_of_blocks;
use orchestra_testkit::{models, trap_library};
use serde_json::Value;

/// Rows of a batch.
pub const BATCH: u64 = 8;
/// Parts of each item of [`PARTS`].
const EACH: u64 = 2;
/// Rounds of each item of [`LOOP`].
pub const ROUNDS: u64 = 4;
/// Rows of a part, at least.
pub const ROWS_PER_FILE: usize = 50;
/// A batch may stand at the gate, and a run reads some hundred rows ahead: its loaders live until the gate has let most rows through.
const LIMITS: &str = "[limits]\nbatch_timeout = \"1h\"\nmemory = \"1MiB\"\nloaders = 1\n";
/// The first number of [`LOOP`]: smaller ones spring traps.
pub const FIRST: u64 = 100;

pub struct Shape {
    pub name: &'static str,
    pub source: &'static str,
    /// Rows that come to the gate for each item.
    pub rows: u64,
    /// Items that stages make of so many.
    pub made: fn(u64) -> u64,
    /// What sinks write into the output folder.
    pub results: &'static [&'static str],
    /// Writes the workflow and all that it reads; `false` where a tool is missing, and the test is skipped.
    pub write: fn(&Workplace, u64) -> bool,
    /// Whether a line of `results.jsonl` shows the item with this index.
    pub shows: fn(&Value, u64) -> bool,
    /// What else must hold of the sinks of so many items.
    pub judge: fn(&Workplace, u64),
}

const PLAIN_RESULTS: &[&str] = &["results.jsonl"];

pub const PLAIN: Shape = Shape {
    name: "plain",
    source: "scans",
    rows: 1,
    made: |_| 0,
    results: PLAIN_RESULTS,
    write: |place, n| blocks(place, n, "paths = [\"images\"]"),
    shows: |record, index| shown(&record["result"]["blocks"]) == Some(index),
    judge: |_, _| {},
};

/// The left and the right half of each picture, read apart; one record of both, one of the right halves alone, and one for each half.
pub const PARTS: Shape = Shape {
    name: "parts",
    rows: EACH,
    results: &["results.jsonl", "right.jsonl", "each.jsonl"],
    write: write_parts,
    shows: |record, index| {
        let parts = record["result"].as_array().unwrap();
        let halves: Vec<Vec<f32>> = parts.iter().map(|part| numbers(&part["blocks"])).collect();
        halves.len() == EACH as usize && whole_of(&halves) == Some(index)
    },
    judge: |place, n| {
        for (file, each) in [("right.jsonl", 1), ("each.jsonl", EACH)] {
            let records = place.lines(file);
            let different: BTreeSet<String> = records.iter().map(Value::to_string).collect();
            assert_eq!((records.len() as u64, different.len()), (each * n, records.len()), "{file}");
        }
        for record in place.lines("right.jsonl") {
            assert_eq!(record["result"].as_array().unwrap().len(), 1, "the left half was dropped: {record}");
        }
    },
    ..PLAIN
};

/// Each picture as it is and twice as high, which one model reads in batches of one size each; one record of both.
pub const SIZES: Shape = Shape {
    name: "sizes",
    rows: 2,
    write: |place, n| {
        let model = models::open_blocks_behind_trap(&place.path("models")).unwrap();
        PLAIN.write(place, n)
            && edit(place, "blocks_behind_trap.onnx", model.file_name().unwrap().to_str().unwrap())
            && edit(place, "size = [32, 32]", "matrix = { size = [[32, 32], [64, 32]] }\nsize = \"{size}\"")
            && edit(place, "kind = \"jsonl\"\nfrom = \"read\"", "kind = \"jsonl\"\nfrom = \"both\"")
            && more(place, "[stages.both]\nkind = \"gather\"\nfrom = \"read\"")
    },
    shows: |record, index| {
        let parts = record["result"].as_array().unwrap();
        let [small, large] = [0, 1].map(|part| numbers(&parts[part]["blocks"]));
        // Each row of blocks is there twice.
        let rows = |first: usize| large.chunks(8).skip(first).step_by(2).flatten().copied().collect();
        let of_all = [small, rows(0), rows(1)].map(|blocks: Vec<f32>| index_of_blocks(&blocks));
        parts.len() == 2 && of_all == [Some(index); 3]
    },
    ..PLAIN
};

/// What two models read in each picture, one of them behind the gate.
pub const JOINS: Shape = Shape {
    name: "joins",
    results: &["results.jsonl", "alone.jsonl"],
    write: |place, n| {
        let other = models::blocks(&place.path("models"), [1, 32, 32]).unwrap();
        blocks(place, n, "paths = [\"images\"]")
            && more(
                place,
                &format!(
                    "[models.other]\npath = {other:?}\nthreads = 1\n[stages.other]\nkind = \"infer\"\nfrom = \"pixels\"\n\
                     model = \"other\"\nbatch = {{ max = 3 }}\n[sinks.alone]\nkind = \"jsonl\"\nfrom = \"other\""
                ),
            )
            && edit(place, "from = \"read\"", "from = [\"read\", \"other\"]")
    },
    shows: |record, index| ["read", "other"].iter().all(|way| shown(&record["result"][way]) == Some(index)),
    judge: |place, n| assert_eq!(place.lines("alone.jsonl").len() as u64, n),
    ..PLAIN
};

pub const ORDERED: Shape = Shape {
    name: "ordered",
    results: &["results.jsonl", "quick.jsonl"],
    write: |place, n| {
        PLAIN.write(place, n)
            && edit(place, "path = \"results.jsonl\"", "path = \"results.jsonl\"\nordered = true")
            // Of the same source, and so ordered with it.
            && more(place, "[sinks.quick]\nkind = \"jsonl\"\nfrom = \"pixels\"")
    },
    judge: |place, n| {
        for file in ["results.jsonl", "quick.jsonl"] {
            let indices = place.lines(file).into_iter().map(|record| record["index"].as_u64().unwrap());
            assert!(indices.eq(0..n), "`{file}` is not in the order of the source");
        }
    },
    ..PLAIN
};

/// Sums, numbers and all rows of the run, in one result each.
pub const REDUCE: Shape = Shape {
    name: "reduce",
    results: &["results.jsonl", "total.jsonl", "number.jsonl", "every.jsonl"],
    write: |place, n| {
        let of = |(name, op): (&str, &str)| {
            format!(
                "[stages.{name}]\nkind = \"reduce\"\nfrom = \"read\"\nop = \"{op}\"\n[sinks.{name}]\nkind = \"jsonl\"\nfrom = \"{name}\"\n"
            )
        };
        let reduces = [("total", "sum"), ("number", "count"), ("every", "concat")];
        PLAIN.write(place, n) && more(place, &reduces.map(of).concat())
    },
    judge: |place, n| {
        let [total] = place.lines("total.jsonl").try_into().unwrap();
        let mut sums = [0.0; 32];
        for record in place.lines("results.jsonl") {
            sums.iter_mut().zip(numbers(&record["result"]["blocks"])).for_each(|(sum, x)| *sum += x);
        }
        assert_eq!(numbers(&total["result"]["sum"]), sums, "whole numbers, whose sums are exact");
        let [number] = place.lines("number.jsonl").try_into().unwrap();
        assert_eq!((&number["result"]["rows"], &number["result"]["items"]), (&n.into(), &n.into()));
        let every = place.lines("every.jsonl");
        let seen = every.iter().map(|record| shown(&record["result"]["blocks"]).unwrap());
        assert!(seen.eq(0..n), "rows in the order of their items");
    },
    ..PLAIN
};

/// What stages make of a sum of the run and of all of its rows, once these are there, and a sum of that.
pub const BEHIND: Shape = Shape {
    name: "behind",
    // A row for each, and two totals.
    made: |n| n + 2,
    results: &["results.jsonl", "total.jsonl", "doubled.jsonl", "each.jsonl", "last.jsonl"],
    write: |place, n| {
        let stages = "[stages.total]\nkind = \"reduce\"\nfrom = \"read\"\nop = \"sum\"\n\
             [stages.doubled]\nkind = \"select\"\nfrom = \"total\"\ncolumns = { first = \"sum[0] * 2\", rows = \"rows\" }\n\
             [stages.every]\nkind = \"reduce\"\nfrom = \"read\"\nop = \"concat\"\n\
             [stages.each]\nkind = \"select\"\nfrom = \"every\"\ncolumns = { first = \"blocks[0]\" }\n\
             [stages.number]\nkind = \"reduce\"\nfrom = \"each\"\nop = \"count\"\n\
             [stages.last]\nkind = \"select\"\nfrom = \"number\"\ncolumns = { rows = \"rows\" }\n\
             [sinks.total]\nkind = \"jsonl\"\nfrom = \"total\"\n[sinks.doubled]\nkind = \"jsonl\"\nfrom = \"doubled\"\n\
             [sinks.each]\nkind = \"jsonl\"\nfrom = \"each\"\n[sinks.last]\nkind = \"jsonl\"\nfrom = \"last\"\n";
        PLAIN.write(place, n) && more(place, stages)
    },
    judge: |place, n| {
        let [total] = place.lines("total.jsonl").try_into().unwrap();
        let [doubled] = place.lines("doubled.jsonl").try_into().unwrap();
        let first = numbers(&total["result"]["sum"])[0] as f64;
        let result = &doubled["result"];
        assert_eq!((result["first"].as_f64(), &result["rows"]), (Some(2.0 * first), &n.into()));
        let each = place.lines("each.jsonl");
        let firsts: Vec<f64> =
            each.iter().map(|record| record["result"]["first"].as_f64().unwrap()).collect();
        assert_eq!((firsts.len() as u64, firsts.iter().sum()), (n, first), "each row once");
        let [last] = place.lines("last.jsonl").try_into().unwrap();
        assert_eq!(last["result"]["rows"], n);
    },
    ..PLAIN
};

/// Records that are files, and records of many rows to a file.
pub const FILES: Shape = Shape {
    name: "files",
    // Part files are named by their sink, which the judge looks at.
    results: &["results.jsonl", "arrays", "rows"],
    write: |place, n| {
        let sinks = format!(
            "[sinks.arrays]\nkind = \"npy\"\nfrom = \"read\"\n\
             [sinks.rows]\nkind = \"tar\"\nfrom = \"read\"\npath = \"rows/rows.tar\"\nrows_per_file = {ROWS_PER_FILE}"
        );
        PLAIN.write(place, n) && more(place, &sinks)
    },
    judge: |place, n| {
        let arrays = place.out().join("arrays");
        let mut seen = BTreeSet::new();
        for line in place.lines("arrays/index.jsonl") {
            let bytes = fs::read(arrays.join(line["file"].as_str().unwrap())).unwrap();
            assert_eq!(bytes.len() as u64, line["bytes"].as_u64().unwrap(), "{line}");
            let data = bytes[bytes.len() - 4 * 32..].as_chunks().0;
            let data: Vec<f32> = data.iter().map(|x| f32::from_le_bytes(*x)).collect();
            assert_eq!(index_of_blocks(&data), line["index"].as_u64());
            assert!(seen.insert(line["index"].as_u64().unwrap()), "an item is there twice: {line}");
        }
        assert!(seen.into_iter().eq(0..n), "each array is in the index");
        assert_eq!(fs::read_dir(&arrays).unwrap().count() as u64, n + 1, "the arrays and their index");
        let mut indices = Vec::new();
        let parts = fs::read_dir(place.out().join("rows")).unwrap().count();
        for part in 0..parts {
            let tar = fs::read(place.out().join(format!("rows/rows-{part:05}.tar"))).unwrap();
            let records = members_of(&tar).into_iter().filter(|(name, _)| name.ends_with(".json"));
            let records = records.map(|(_, record)| serde_json::from_slice::<Value>(&record).unwrap());
            indices.extend(records.map(|record| record["index"].as_u64().unwrap()));
        }
        indices.sort_unstable();
        assert!(indices.into_iter().eq(0..n), "each row is in one part");
    },
    ..PLAIN
};

/// A model that runs on its own output.
pub const LOOP: Shape = Shape {
    name: "loop",
    source: "x",
    rows: ROUNDS,
    write: |place, n| {
        let model = models::one_more(&place.path("models")).unwrap();
        write_array(place, n, 1, |row, _| FIRST + row);
        let stage = format!(
            "kind = \"iterate\"\nfrom = \"x\"\nmodel = \"one\"\nrounds = {ROUNDS}\nbatch = {{ max = {BATCH} }}"
        );
        write_over_array(place, &format!("[models.one]\npath = {model:?}\n{}", gated()), &stage)
    },
    shows: |record, index| {
        let result = &record["result"];
        numbers(&result["y"]) == [(FIRST + index + ROUNDS) as f32] && result["rounds"] == ROUNDS
    },
    ..PLAIN
};

/// A model that steps through the numbers of each row, and adds them up.
pub const STEPS: Shape = Shape {
    name: "steps",
    source: "x",
    rows: ROUNDS,
    write: |place, n| {
        let model = models::running_sum_behind_trap(&place.path("models")).unwrap();
        write_array(place, n, ROUNDS, |row, _| FIRST + row);
        let stage = format!(
            "kind = \"iterate\"\ninputs = {{ x = \"x\", total = 0 }}\nmodel = \"sum\"\neach = \"x\"\nfeed = {{ total = \"next\" }}\n\
             collect = \"next\"\nbatch = {{ max = {BATCH} }}"
        );
        write_over_array(place, &format!("[models.sum]\npath = {model:?}\n{}", gated()), &stage)
    },
    shows: |record, index| {
        let result = &record["result"];
        let sums = (1..=ROUNDS).map(|round| (round * (FIRST + index)) as f32);
        numbers(&result["next"]).into_iter().eq(sums) && result["rounds"] == ROUNDS
    },
    ..PLAIN
};

/// Pictures of a store.
pub const BUCKET: Shape =
    Shape { name: "bucket", write: |place, n| blocks(place, n, "paths = [\"s3://bucket/*.png\"]"), ..PLAIN };

impl Shape {
    pub fn write(&self, place: &Workplace, n: u64) -> bool {
        (self.write)(place, n)
    }

    /// The store that its source reads, if it does.
    pub fn store(&self, place: &Workplace) -> Option<Store> {
        (self.name == BUCKET.name).then(|| Store::start(&place.images()))
    }
}

/// Pictures that a model behind the gate reads.
fn blocks(place: &Workplace, n: u64, listing: &str) -> bool {
    let blocks = Blocks { trap: true, batch: BATCH as usize, devices: 1, more: LIMITS, ..Blocks::default() };
    place.write_blocks(&blocks, listing);
    write_pictures(&place.images(), n);
    edit(place, "threads = 1\n", "threads = 1\nworkers = 2\n")
}

fn edit(place: &Workplace, from: &str, to: &str) -> bool {
    place.edit(from, to);
    true
}

/// More tables of the workflow file.
fn more(place: &Workplace, tables: &str) -> bool {
    edit(place, "[telemetry]", &format!("{tables}\n[telemetry]"))
}

/// The keys of a model behind the gate.
fn gated() -> String {
    let library = trap_library().unwrap();
    format!("threads = 1\nworkers = 2\ncustom_ops = [{library:?}]\nsandbox_write = [\"gate\"]")
}

fn write_parts(place: &Workplace, n: u64) -> bool {
    let folder = place.path("models");
    let boxes = models::constant_boxes(&folder, [1, 8, 8], EACH as usize).unwrap();
    PLAIN.write(place, n)
        && edit(
            place,
            "[stages.read]\nkind = \"infer\"\nfrom = \"pixels\"",
            &format!(
                "[models.boxes]\npath = {boxes:?}\nthreads = 1\n\
                 [stages.small]\nkind = \"image\"\nfrom = \"scans\"\nsize = [8, 8]\ncolor = \"gray\"\n\
                 [stages.find]\nkind = \"infer\"\nfrom = \"small\"\nmodel = \"boxes\"\n\
                 [stages.halves]\nkind = \"crop\"\nfrom = [\"scans\", \"find\"]\nsize = [32, 32]\ncolor = \"gray\"\nscale = 1.0\n\
                 [stages.both]\nkind = \"gather\"\nfrom = \"read\"\n\
                 [stages.kept]\nkind = \"filter\"\nfrom = \"read\"\nkeep = \"blocks[31] > 100\"\n\
                 [stages.right]\nkind = \"gather\"\nfrom = \"kept\"\n\
                 [stages.read]\nkind = \"infer\"\nfrom = \"halves\""
            ),
        )
        && edit(
            place,
            "[sinks.results]\nkind = \"jsonl\"\nfrom = \"read\"",
            "[sinks.results]\nkind = \"jsonl\"\nfrom = \"both\"",
        )
        && more(
            place,
            "[sinks.right]\nkind = \"jsonl\"\nfrom = \"right\"\n[sinks.each]\nkind = \"jsonl\"\nfrom = \"read\"",
        )
}

/// A workflow of one stage over `x.npy`.
pub fn write_over_array(place: &Workplace, model: &str, stage: &str) -> bool {
    write_stage(place, "kind = \"tensors\"\npaths = [\"x.npy\"]", model, stage)
}

/// A workflow of one stage.
pub fn write_stage(place: &Workplace, source: &str, model: &str, stage: &str) -> bool {
    fs::create_dir_all(place.path("gate")).unwrap();
    place.write(format!(
        "version = 1\n[sources.x]\n{source}\n{model}\n[stages.y]\n{stage}\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"y\"\n[devices]\nuse = [\"cpu\"]\n{LIMITS}"
    ));
    true
}

/// Writes `x.npy`: f32, a number for each row and column.
pub fn write_array(place: &Workplace, n: u64, columns: u64, number: impl Fn(u64, u64) -> u64) {
    let numbers = (0..n).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let numbers = numbers.map(|(row, column)| number(row, column) as f32);
    fs::write(place.path("x.npy"), npy(&format!("({n}, {columns})"), numbers)).unwrap();
}

/// The numbers of a tensor, as a column or as one of several.
fn numbers(value: &Value) -> Vec<f32> {
    match value {
        Value::Object(tensor) => numbers(&tensor["data"]),
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

/// The index that a picture shows.
fn shown(blocks: &Value) -> Option<u64> {
    index_of_blocks(&numbers(blocks))
}

/// The index that the halves of a picture show together: a half shows each of its blocks twice.
fn whole_of(halves: &[Vec<f32>]) -> Option<u64> {
    let of_row =
        |row: usize| halves.iter().flat_map(move |half| (0..4).map(move |column| half[row * 8 + 2 * column]));
    index_of_blocks(&(0..4).flat_map(of_row).collect::<Vec<f32>>())
}
