//! One bit that is not as it was written, in what a killed run has left: the next start and `verify` give exactly the records of a run that nothing
//! happened to, or an error that names the file. No value is wrong, and no item lost or doubled, without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::random::random;
use crate::common::{Workplace, copy_folder};
use crate::part_kills::kill_at;
use orchestra_testkit::size::{scaled, storm};

const ITEMS: u64 = 400;

/// Records in a text, a table, parts and files of their own, of failures as well, and a count. Every twentieth item fails.
const WORKFLOW: &str = "version = 1
[sources.rows]
kind = \"jsonl\"
paths = [\"rows.jsonl\"]
columns = { n = \"i64\", v = \"f32[2]\" }
[stages.all]
kind = \"select\"
from = \"rows\"
columns = { n = \"n\" }
[stages.vector]
kind = \"select\"
from = \"rows\"
columns = { v = \"v\" }
[stages.count]
kind = \"reduce\"
from = \"all\"
op = \"count\"
[sinks.lines]
kind = \"jsonl\"
from = \"all\"
[sinks.table]
kind = \"csv\"
from = \"all\"
[sinks.arrays]
kind = \"npy\"
from = \"vector\"
[sinks.parts]
kind = \"tar\"
from = \"all\"
rows_per_file = 40
[sinks.columns]
kind = \"parquet\"
from = \"all\"
rows_per_file = 40
[sinks.count]
kind = \"jsonl\"
from = \"count\"
[sinks.failed]
kind = \"tar\"
from = \"failures\"
rows_per_file = 4
[limits]
loaders = 1
memory = \"1MiB\"
";

fn write_workflow(place: &Workplace) {
    let row = |n: u64| match n % 20 {
        19 => format!("{{\"n\": \"none\", \"v\": [{n}, 0.5]}}\n"),
        _ => format!("{{\"n\": {n}, \"v\": [{n}, 0.5]}}\n"),
    };
    fs::write(place.path("rows.jsonl"), (0..ITEMS).map(row).collect::<String>()).unwrap();
    place.write(WORKFLOW);
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
            "tar" => members(&bytes),
            "npy" => vec![[name.as_bytes(), &bytes].concat()],
            _ => bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
        };
        found.entry(sink.to_owned()).or_default().extend(records);
    }
    found.values_mut().for_each(|records| records.sort());
    found
}

/// Name and content of each member of an archive, as one text.
fn members(mut tar: &[u8]) -> Vec<Vec<u8>> {
    let mut members = Vec::new();
    while tar.len() >= 512 && tar[0] != 0 {
        let size = std::str::from_utf8(&tar[124..135]).unwrap();
        let size = usize::from_str_radix(size, 8).unwrap();
        members.push([&tar[..100], &tar[512..512 + size]].concat());
        tar = &tar[512 + size.next_multiple_of(512)..];
    }
    members
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    files
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
    &["rows-", "fold-", "state-"],
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
    let is = |file: &PathBuf| {
        let (name, is_own) =
            (file.file_name().unwrap().to_str().unwrap(), file.starts_with(out.join(".orchestra")));
        let is = |part: &&str| if is_own { name.starts_with(*part) } else { name.ends_with(*part) };
        kind.iter().any(is) && !file.starts_with(out.join("logs")) && fs::metadata(file).unwrap().len() > 0
    };
    files_below(out).into_iter().filter(is).collect()
}

#[test]
fn a_flipped_bit_in_what_a_killed_run_has_left_makes_no_wrong_record_without_an_error_by_name() {
    let Some((_folder, library)) = kill_at() else { return };
    let _turn = storm();
    let place = Workplace::new();
    write_workflow(&place);
    let out = place.out();
    let folder = out.to_str().unwrap();
    let killed = |arguments: &[&str], name: &str| {
        let variables =
            [("LD_PRELOAD", &*library), ("KILL_AT", "counted"), ("KILL_AT_NAME", name), ("KILL_AT_NTH", "3")];
        let ended = place.start_command_with(arguments, &variables).wait();
        assert_eq!(ended.status.code(), None, "{}", ended.stderr);
        place.no_process_is_left();
    };
    // What had failed when it was killed the first time is tried again by the second start, which is killed as well.
    killed(&["run", place.workflow().to_str().unwrap()], "/failed-00001.tar");
    killed(&["retry", folder], "/parts-00006.tar");
    let kept = place.path("kept");
    fs::rename(&out, &kept).unwrap();

    let begin = || {
        drop(fs::remove_dir_all(&out));
        copy_folder(&kept, &out);
    };
    begin();
    place.run(&[]).must_exit(65);
    let expected = results(&out);
    assert_eq!(expected["lines"].len() as u64, ITEMS / 20 * 19);
    let tables = rows_of_tables(&place);
    assert_eq!(tables.len() as u64, ITEMS / 20 * 19);
    assert!(expected["failures"].len() as u64 == ITEMS / 20 && expected["count"].len() == 1);

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

        let ended = place.run(&[]);
        place.no_process_is_left();
        let named = file.file_name().unwrap().to_str().unwrap();
        let verified = place.command(&["verify", folder]);
        let end = match (ended.status.code(), verified.status.code()) {
            (Some(65), Some(0)) => {
                assert!(results(&out) == expected, "{what}: other records, and no error:\n{}", ended.stderr);
                if OF_TABLES.contains(&kind) {
                    assert!(rows_of_tables(&place) == tables, "{what}: other rows, and no error");
                }
                "exact"
            }
            (Some(65), Some(70)) => {
                assert!(
                    verified.stdout.contains(named),
                    "{what}: `verify` does not name it:\n{}",
                    verified.stdout
                );
                "found by `verify`"
            }
            (Some(75 | 78), _) => {
                // Behind the damage, the journal names no part any more.
                let strange = "is there already and was not written by this run";
                let names = [named, "the journal in", "source `rows`", strange];
                let is_named = names.iter().any(|name| ended.stderr.contains(name));
                assert!(is_named, "{what}: the error does not name it:\n{}", ended.stderr);
                "refused by name"
            }
            other => panic!("{what}: {other:?}:\n{}\n{}", ended.stderr, verified.stdout),
        };
        println!("{what}: {end}");
        *ends.entry(end).or_insert(0) += 1;
    }
    println!("{ends:?}");
    assert!(ends["exact"] > 0);
}
