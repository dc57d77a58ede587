//! One bit that is not as it was written, in what a killed run or one that has ended has left, or a file of it that lost its end or is gone: the next
//! start and `verify` give exactly the records of a run that nothing happened to, or an error that names the file. No value is wrong, and no item lost
//! or doubled, without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::common::random::random;
use crate::common::{Workplace, copy_folder, members_of};
use crate::part_kills::kill_at;
use orchestra_testkit::leaks;
use orchestra_testkit::size::{scaled, storm};
use orchestra_testkit::workflow_file::WorkflowFile;

const ITEMS: u64 = 400;

/// Records in a text, a table, parts and files of their own, of failures as well, and of results of all rows. Every twentieth item fails.
fn workflow() -> WorkflowFile {
    let flow = WorkflowFile::new()
        .source("rows", "jsonl", "paths = ['rows.jsonl']\ncolumns = { n = 'i64', v = 'f32[2]' }")
        .stage("all", "select", "rows", "columns = { n = 'n' }")
        .stage("vector", "select", "rows", "columns = { v = 'v' }");
    let reduces = [("count", "count"), ("total", "sum"), ("every", "concat")];
    let flow = reduces
        .into_iter()
        .fold(flow, |flow, (name, op)| flow.stage(name, "reduce", "all", format_args!("op = '{op}'")))
        .stage("behind", "select", "every", "columns = { n = 'n' }");
    let sinks = [
        ("lines", "jsonl", "all", ""),
        ("table", "csv", "all", ""),
        ("arrays", "npy", "vector", ""),
        ("parts", "tar", "all", "rows_per_file = 40"),
        ("columns", "parquet", "all", "rows_per_file = 40"),
        ("count", "jsonl", "count", ""),
        ("total", "csv", "total", ""),
        ("every", "jsonl", "every", ""),
        ("behind", "jsonl", "behind", ""),
        ("everyparts", "tar", "every", "rows_per_file = 200"),
        ("failed", "tar", "failures", "rows_per_file = 4"),
    ];
    let flow = sinks.into_iter().fold(flow, |flow, (name, kind, from, keys)| {
        flow.table(format_args!("sinks.{name}"), format_args!("kind = '{kind}'\nfrom = '{from}'\n{keys}"))
    });
    flow.table("limits", "loaders = 1\nmemory = '1MiB'")
}

fn write_workflow(place: &Workplace) {
    let row = |n: u64| match n % 20 {
        19 => format!("{{\"n\": \"none\", \"v\": [{n}, 0.5]}}\n"),
        _ => format!("{{\"n\": {n}, \"v\": [{n}, 0.5]}}\n"),
    };
    fs::write(place.path("rows.jsonl"), (0..ITEMS).map(row).collect::<String>()).unwrap();
    place.write(workflow());
}

/// What the sinks have written, but for tables of Parquet, by the beginnings of the names of their files: lines, members of archives, or whole files, in
/// any order.
fn results(out: &Path) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut found: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for path in files_below(out) {
        let name = path.strip_prefix(out).unwrap().to_str().unwrap();
        let sink = name.split(['-', '.', '/']).next().unwrap();
        if ["", "logs", "run"].contains(&sink) {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let records = match path.extension().unwrap().to_str().unwrap() {
            "parquet" => continue,
            "tar" => members_of(&bytes)
                .into_iter()
                .map(|(name, file)| [name.into_bytes(), file].concat())
                .collect(),
            "npy" => vec![[name.as_bytes(), &bytes].concat()],
            _ => bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
        };
        found.entry(sink.to_owned()).or_default().extend(records);
    }
    found.values_mut().for_each(|records| records.sort());
    found
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let paths = leaks::files_below(folder).into_iter().map(|path| folder.join(path));
    paths.filter(|path| path.is_file()).collect()
}

/// The rows of the tables of Parquet, in any order, as a run reads them.
fn rows_of_tables(place: &Workplace) -> Vec<String> {
    let (workflow, out) = (place.path("tables.toml"), place.path("tables"));
    let text = format!(
        "version = 1\n[sources.s]\nkind = \"parquet\"\npaths = [{:?}]\n[stages.n]\nkind = \"select\"\nfrom = \"s\"\ncolumns = {{ item = \"item\", n = \"n\" }}\n\
         [sinks.rows]\nkind = \"csv\"\nfrom = \"n\"\n",
        place.out().join("columns-*.parquet")
    );
    fs::write(&workflow, text).unwrap();
    let [workflow, folder] = [&workflow, &out].map(|path| path.to_str().unwrap());
    place.command(&["run", workflow, "--output", folder, "--fresh"]).must_exit(0);
    let text = fs::read_to_string(out.join("rows.csv")).unwrap();
    let rows = text.lines().skip(1).map(|row| row.split_once(',').unwrap().1.to_owned());
    let mut rows: Vec<String> = rows.collect();
    rows.sort();
    rows
}

/// What a bit may be another one of: files of the run, by the beginnings of their names, and results, by their kind.
const KINDS: [&[&str]; 8] = [
    &["journal"],
    &["items-"],
    &["rows-", "fold-", "state-", "made-"],
    &[".jsonl"],
    &[".csv"],
    &[".tar"],
    &[".parquet"],
    &[".npy"],
];
/// Those in which other tables could come of it.
const OF_TABLES: [usize; 4] = [0, 1, 2, 6];

/// The files of the output folder of this kind that are not empty.
fn targets(out: &Path, kind: &[&str]) -> Vec<PathBuf> {
    let is = |file: &PathBuf| is_of(out, file, kind) && fs::metadata(file).unwrap().len() > 0;
    files_below(out).into_iter().filter(is).collect()
}

fn is_of(out: &Path, file: &Path, kind: &[&str]) -> bool {
    let name = file.file_name().unwrap().to_str().unwrap();
    let is_own = file.starts_with(out.join(".orchestra"));
    let is = |part: &&str| if is_own { name.starts_with(*part) } else { name.ends_with(*part) };
    kind.iter().any(is) && !file.starts_with(out.join("logs"))
}

/// What a run that nothing happened to has written.
struct Whole {
    results: BTreeMap<String, Vec<Vec<u8>>>,
    tables: Vec<String>,
}

impl Whole {
    fn of(place: &Workplace) -> Self {
        let whole = Self { results: results(&place.out()), tables: rows_of_tables(place) };
        let done = ITEMS / 20 * 19;
        assert_eq!(whole.tables.len() as u64, done);
        for (sink, records) in
            [("lines", done), ("failures", ITEMS / 20), ("count", 1), ("every", done), ("behind", done)]
        {
            assert_eq!(whole.results[sink].len() as u64, records, "{sink}");
        }
        whole
    }
}

/// Starts the run with a damaged `file` again and verifies it: what came of it.
fn end_of(place: &Workplace, file: &Path, what: &str, whole: &Whole) -> &'static str {
    let out = place.out();
    let named = file.file_name().unwrap().to_str().unwrap();
    let ended = place.run(&[]);
    place.no_process_is_left();
    let verified = place.command(&["verify", out.to_str().unwrap()]);
    match (ended.status.code(), verified.status.code()) {
        (Some(65), Some(0)) => {
            assert!(results(&out) == whole.results, "{what}: other records, and no error:\n{}", ended.stderr);
            if OF_TABLES.iter().any(|kind| is_of(&out, file, KINDS[*kind])) {
                assert!(rows_of_tables(place) == whole.tables, "{what}: other rows, and no error");
            }
            "exact"
        }
        (Some(65), Some(70)) => {
            // A part that is gone is one of those that could have the record.
            let parts = named.split_once('-').map(|(sink, _)| format!("`{sink}-*."));
            let is_named = parts.is_some_and(|parts| verified.stdout.contains(&parts));
            let is_named = is_named || verified.stdout.contains(named);
            assert!(is_named, "{what}: `verify` does not name it:\n{}", verified.stdout);
            "found by `verify`"
        }
        (Some(75 | 78), _) => {
            // Behind the damage, the journal names no part any more.
            let names = [named, "the journal in", "source `rows`", "the journal has lost its end"];
            let is_named = names.iter().any(|name| ended.stderr.contains(name));
            assert!(is_named, "{what}: the error does not name it:\n{}", ended.stderr);
            "refused by name"
        }
        other => panic!("{what}: {other:?}:\n{}\n{}", ended.stderr, verified.stdout),
    }
}

#[test]
fn a_flipped_bit_in_what_a_killed_run_has_left_makes_no_wrong_record_without_an_error_by_name() {
    let Some((_folder, library)) = kill_at() else { return };
    let _turn = storm();
    let place = Workplace::new();
    write_workflow(&place);
    let out = place.out();
    let folder = out.to_str().unwrap();
    let killed = |arguments: &[&str], name: &str, nth: &str| {
        let variables =
            [("LD_PRELOAD", &*library), ("KILL_AT", "counted"), ("KILL_AT_NAME", name), ("KILL_AT_NTH", nth)];
        let ended = place.start_command_with(arguments, &variables).wait();
        assert_eq!(ended.status.code(), None, "it was killed: {}", ended.stderr);
        place.no_process_is_left();
    };
    // However many rows are written together: there is a part of failures; and what had failed when the run was killed is tried again by the second
    // start, which is killed as well, and says in the journal that it begins, what failed and what became of it.
    killed(&["run", place.workflow().to_str().unwrap()], "/failed-00000.tar", "1");
    killed(&["retry", folder], "", "3");
    let kept = place.path("kept");
    fs::rename(&out, &kept).unwrap();

    let begin = || {
        drop(fs::remove_dir_all(&out));
        copy_folder(&kept, &out);
    };
    begin();
    place.run(&[]).must_exit(65);
    let whole = Whole::of(&place);

    let mut random = random();
    let mut ends = BTreeMap::new();
    for round in 0..scaled(304, 40) {
        begin();
        let kind = round % KINDS.len();
        let targets = targets(&out, KINDS[kind]);
        let file = random.choice(&targets).unwrap_or_else(|| panic!("no {:?}", KINDS[kind]));
        let mut bytes = fs::read(file).unwrap();
        let bit = random.usize(..8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(file, bytes).unwrap();
        let name = file.strip_prefix(&out).unwrap().to_str().unwrap();
        let what = format!("bit {bit} of `{name}`");

        let end = end_of(&place, file, &what, &whole);
        println!("{what}: {end}");
        *ends.entry(end).or_insert(0) += 1;
    }
    println!("{ends:?}");
    assert!(ends["exact"] > 0);
}

#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Of a bit in so many bytes at the end.
    Flip(usize),
    /// So many bytes are lost at the end.
    Cut(usize),
    Gone,
}

impl Damage {
    const ALL: [Self; 6] = [
        Self::Flip(usize::MAX),
        Self::Flip(20),
        Self::Cut(1),
        Self::Cut(200),
        Self::Cut(usize::MAX),
        Self::Gone,
    ];

    fn strike(self, file: &Path, random: &mut Rng) {
        let mut bytes = fs::read(file).unwrap();
        match self {
            Self::Flip(of_end) => {
                let bit = random.usize(8 * bytes.len().saturating_sub(of_end)..8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Self::Cut(n) => bytes.truncate(bytes.len().saturating_sub(n)),
            Self::Gone => return fs::remove_file(file).unwrap(),
        }
        fs::write(file, bytes).unwrap();
    }
}

/// Nothing but its commits speaks of a result of `reduce`: where they are taken back, no item is done again.
#[test]
fn whatever_became_of_a_file_of_a_run_that_has_ended_makes_no_wrong_record_without_an_error_by_name() {
    let _turn = storm();
    let place = Workplace::new();
    write_workflow(&place);
    let (out, kept) = (place.out(), place.path("kept"));
    place.run(&[]).must_exit(65);
    let whole = Whole::of(&place);
    fs::rename(&out, &kept).unwrap();

    // By the beginnings of their names: one of each, and more often the files of results of all rows.
    let mut files: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for kind in KINDS.into_iter().filter(|kind| *kind != ["items-"]) {
        for file in targets(&kept, kind) {
            let name = file.strip_prefix(&kept).unwrap().to_owned();
            let text = name.to_str().unwrap();
            let group = text.rsplit_once("-0").map_or(text, |(group, _)| group);
            let group = if text.ends_with(".npy") { "arrays/*.npy" } else { group };
            files.entry(group.to_owned()).or_default().push(name);
        }
    }
    let mut random = random();
    let mut ends = BTreeMap::new();
    for (group, files) in &files {
        let is_state = group.starts_with(".orchestra/fold-");
        let is_of_reduce = is_state || ["count", "total", "every"].iter().any(|sink| group.starts_with(sink));
        let mut damages = Damage::ALL.to_vec();
        if group == ".orchestra/journal" {
            // Then there is no run.
            damages.retain(|damage| !matches!(damage, Damage::Gone | Damage::Cut(usize::MAX)));
        }
        random.shuffle(&mut damages);
        damages.truncate(scaled(6, if is_of_reduce { 3 } else { 1 }));
        for damage in damages {
            drop(fs::remove_dir_all(&out));
            copy_folder(&kept, &out);
            let file = out.join(random.choice(files).unwrap());
            damage.strike(&file, &mut random);
            let what = format!("{damage:?} of `{}`", file.strip_prefix(&out).unwrap().display());
            let end = end_of(&place, &file, &what, &whole);
            println!("{what}: {end}");
            // What was durable is not read again, and parts may have been moved away.
            let grows = !group.starts_with("everyparts");
            if is_state || is_of_reduce && grows && !matches!(damage, Damage::Flip(_)) {
                assert_eq!(end, "exact", "{what}");
            }
            *ends.entry(end).or_insert(0) += 1;
        }
    }
    println!("{ends:?}");
}
