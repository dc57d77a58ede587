//! Every example gives the same results while its workers and loaders are killed all the time, and when the run itself is killed again and
//! again: no record is lost or doubled, and none is another one. Other tests say whether the results are right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Workplace, copy_folder, is_same, python_env};
use orchestra_testkit::skip::is_deep_check;
use orchestra_testkit::striker::{Fault, loaders_of, strike_any, workers_of};
use rustix::process::Signal;

/// Time between two kills of workers and loaders.
const BETWEEN: Duration = Duration::from_millis(300);

/// An example, and how it is made to last long enough to be struck.
struct Example {
    name: &'static str,
    /// The folder of its inputs, in `examples/`.
    inputs: &'static str,
    /// How often each of them is listed at first: four times as often where that was done before anything could be killed.
    times: usize,
    /// Files with one certain order of records, which are the same to the byte.
    in_order: &'static [&'static str],
}

const EXAMPLES: [Example; 9] = [
    Example {
        name: "chunk-mean",
        inputs: "chunk-mean/chunks",
        times: 20,
        in_order: &["means.csv", "number.jsonl"],
    },
    Example { name: "digits", inputs: "digits/images", times: 30, in_order: &[] },
    Example { name: "embeddings", inputs: "digits/images", times: 10, in_order: &[] },
    Example { name: "ensemble", inputs: "digits/images", times: 10, in_order: &[] },
    Example { name: "hundred-tasks", inputs: "hundred-tasks/arrays", times: 40, in_order: &[] },
    Example { name: "pages", inputs: "pages/pages", times: 3, in_order: &[] },
    Example { name: "post-sum", inputs: "post-sum", times: 60, in_order: &["total.csv", "louds.csv"] },
    Example { name: "refine", inputs: "refine", times: 30, in_order: &[] },
    Example { name: "vector-add", inputs: "vector-add", times: 2, in_order: &["sum/whole.0.npy"] },
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What a source may read below a folder, sorted.
fn inputs(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() && path.file_name().is_some_and(|name| name != "out") => inputs(&path, found),
            Some("png" | "npy" | "npz") => found.push(path),
            _ => {}
        }
    }
}

impl Example {
    /// Writes the workflow of the example into the place, with a list of its inputs instead of their folder.
    fn write(&self, place: &Workplace, examples: &Path, times: usize) {
        let mut files = Vec::new();
        inputs(&examples.join(self.inputs), &mut files);
        assert!(!files.is_empty(), "{} has no inputs", self.name);
        let mut list = String::new();
        for file in (0..times).flat_map(|_| &files) {
            writeln!(list, "{}", file.strip_prefix(examples).unwrap().display()).unwrap();
        }
        fs::write(place.path("list.txt"), list).unwrap();
        let text = fs::read_to_string(examples.join(self.name).join("workflow.toml")).unwrap();
        let source = format!("manifest = \"list.txt\"\nroot = {examples:?}");
        let lines = text.lines().map(|line| if line.starts_with("paths = ") { &source } else { line });
        let text = lines.collect::<Vec<_>>().join("\n");
        let models = repository().join("models");
        fs::write(place.workflow(), text.replace("../../models", models.to_str().unwrap())).unwrap();
    }

    /// All that the run has written for its user: lines in no certain order, other files as they are.
    fn results(&self, place: &Workplace) -> BTreeMap<String, Vec<Vec<u8>>> {
        let verified = place.start_command(&["verify", place.out().to_str().unwrap()]).wait();
        assert!(verified.must_exit(0).stdout.contains("0 lost, 0 doubled"), "{}", verified.stdout);
        let mut results = BTreeMap::new();
        self.collect(&place.out(), &place.out(), &mut results);
        assert!(self.in_order.iter().all(|file| results.contains_key(*file)), "{:?}", results.keys());
        results
    }

    fn collect(&self, out: &Path, folder: &Path, results: &mut BTreeMap<String, Vec<Vec<u8>>>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(out).unwrap().to_str().unwrap().to_owned();
            if [".orchestra", "logs", "run.json"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                self.collect(out, &path, results);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            if name.ends_with(".parquet") {
                results.insert(name, rows_of_parquet(&path));
                continue;
            }
            let is_text = name.ends_with(".jsonl") || name.ends_with(".csv");
            let mut records = match is_text && !self.in_order.contains(&&*name) {
                true => bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
                false => vec![bytes],
            };
            records.sort();
            results.insert(name, records);
        }
    }
}

/// The rows of a file as pyarrow reads them, each a line, sorted.
fn rows_of_parquet(file: &Path) -> Vec<Vec<u8>> {
    let script = "import json, sys, pyarrow.parquet as pq\n\
                  print('\\n'.join(sorted(json.dumps(row) for row in pq.read_table(sys.argv[1]).to_pylist())))";
    let read = Command::new(python_env("pyarrow").unwrap()).args(["-c", script]).arg(file).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    read.stdout.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn journal(place: &Workplace) -> u64 {
    fs::metadata(place.out().join(".orchestra/journal")).map_or(0, |m| m.len())
}

/// Two lines of JSON that say the same.
fn is_same_json(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (serde_json::from_slice(a), serde_json::from_slice(b));
    a.is_ok_and(|a| b.is_ok_and(|b| is_same(&a, &b)))
}

#[track_caller]
fn must_be_equal(
    found: &BTreeMap<String, Vec<Vec<u8>>>,
    expected: &BTreeMap<String, Vec<Vec<u8>>>,
    when: &str,
) {
    assert!(found.keys().eq(expected.keys()), "{when}: {:?}, {:?}", found.keys(), expected.keys());
    for (file, records) in expected {
        let (n, m) = (found[file].len(), records.len());
        let differs = found[file].iter().zip(records).find(|(a, b)| a != b && !is_same_json(a, b));
        let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned();
        let differs = differs.map(|(a, b)| (text(a), text(b)));
        assert!(n == m && differs.is_none(), "{when}: `{file}` has {n} records of {m}: {differs:?}");
    }
}

/// Ends the test where the results of the example differ. `false`: nothing was killed in the middle.
fn survives(example: &Example, examples: &Path, times: usize) -> bool {
    let calm = Workplace::new();
    example.write(&calm, examples, times);
    calm.run(&[]).must_exit(0);
    let expected = example.results(&calm);
    let whole = journal(&calm);

    let place = Workplace::new();
    example.write(&place, examples, times);
    let run = place.start(&[]);
    let storm = strike_any(run.pid(), BETWEEN, Fault::Kill);
    let ended = run.wait();
    let killed = storm.stop().len();
    ended.must_exit(0);
    must_be_equal(&example.results(&place), &expected, &format!("{}, processes killed", example.name));
    place.no_process_is_left();
    if killed == 0 {
        return false;
    }

    let place = Workplace::new();
    example.write(&place, examples, times);
    let mut deaths = 0;
    // Before there is anything, when it has a process, and when so many quarters of its journal are written.
    for moment in 0..5 {
        let mut run = place.start(&[]);
        let pid = run.pid();
        let reached = run.until("the moment of the kill", || match moment {
            0 => place.out().join(".orchestra").exists(),
            1 => !workers_of(pid).is_empty() || !loaders_of(pid).is_empty(),
            quarters => journal(&place) >= whole * (quarters - 1) / 4,
        });
        if !reached {
            run.wait().must_exit(0);
            break;
        }
        run.signal(Signal::KILL);
        deaths += usize::from(run.wait().status.code().is_none());
        place.no_process_is_left();
    }
    place.run(&[]).must_exit(0);
    must_be_equal(&example.results(&place), &expected, &format!("{}, run killed", example.name));
    println!("{}: {killed} processes and {deaths} runs were killed", example.name);
    deaths >= 3
}

#[test]
fn every_example_gives_the_same_while_its_processes_are_killed_and_the_run_itself() {
    if !is_deep_check("examples") {
        return;
    }
    let place = Workplace::new();
    let examples = place.path("examples");
    copy_folder(&repository().join("examples"), &examples);
    if !examples.join("vector-add/vectors.npz").exists() {
        let script = examples.join("vector-add/data.py");
        assert!(Command::new("python3").arg(script).status().unwrap().success());
    }
    let entries = fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().path());
    // What needs a server, models that are fetched, numpy or a GPU, and what runs commands, has a test of its own in which it is struck.
    let own = entries.filter(|p| p.is_dir() && !p.join("serve.py").exists() && !p.join("fetch.py").exists());
    let elsewhere = [
        "python-worker",
        "pycuda-queue",
        "vector-add-cuda",
        "hundred-commands",
        "train-many",
        "prepare-train-infer",
    ];
    let own = own.filter(|p| !elsewhere.iter().any(|name| p.ends_with(name)));
    let own: BTreeSet<_> = own.map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(own.iter().eq(EXAMPLES.iter().map(|example| example.name)), "{own:?}");
    for example in &EXAMPLES {
        let has_parquet = || python_env("pyarrow").is_some();
        if example.name == "embeddings" && !has_parquet() {
            continue;
        }
        let mut more = (0..4).map(|n| example.times << (2 * n));
        let struck = more.any(|times| survives(example, &examples, times));
        assert!(struck, "{} is done before it can be struck", example.name);
    }
}
