//! Kills around the moment when rows become a part, and when parts become the result of a run: no part that anyone sees is torn, a manifest is there as a
//! whole or not at all, and the next start goes on without a row lost or doubled. Each kill is aimed, none is left to chance.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{Blocks, Ended, Run, Workplace, python_env, repository, write_pictures};
use crate::moto::Moto;
use orchestra_testkit::images::write_bad_pictures;
use orchestra_testkit::records::items;
use orchestra_testkit::size::scaled;
use orchestra_testkit::skip::has_programs;
use serde_json::Value;

const ITEMS: u64 = 60;
const ROWS_PER_FILE: u64 = 10;

/// Prints `index` of each row of whole parts; a part that is torn ends it with an error.
const READ: &str = "
import csv, json, sys, tarfile
for file in sys.argv[1:]:
    if file.endswith('.jsonl'):
        rows = [json.loads(line)['index'] for line in open(file)]
    elif file.endswith('.csv'):
        with open(file, newline='') as text:
            rows = [int(row['index']) for row in csv.DictReader(text)]
    elif file.endswith('.tar'):
        with tarfile.open(file) as archive:
            members = archive.getmembers()
            assert all(len(archive.extractfile(m).read()) == m.size for m in members)
            rows = [json.load(archive.extractfile(m))['index'] for m in members if m.name.endswith('.json')]
    else:
        import pyarrow.parquet
        rows = pyarrow.parquet.read_table(file)['index'].to_pylist()
    print(*rows, sep='\\n')
";

/// A workflow whose sink `parts` is of this kind; in a bucket, or where it writes parts anyway, of so many rows each.
fn workplace(kind: &str, path: &str) -> Workplace {
    let rows = match ["npy", "images"].contains(&kind) && !path.contains("://") {
        true => String::new(),
        false => format!("rows_per_file = {ROWS_PER_FILE}"),
    };
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    place.write_blocks(&Blocks::default(), "paths = [\"images\"]");
    // Pictures as they came, of the others what was read in them.
    let (stage, from) = match kind {
        "images" => {
            ("[stages.kept]\nkind = \"select\"\nfrom = \"scans\"\ncolumns = { kept = \"picture\" }\n", "kept")
        }
        _ => ("", "read"),
    };
    let sink = format!(
        "{stage}[sinks.parts]\nkind = \"{kind}\"\nfrom = \"{from}\"\npath = \"{path}\"\n{rows}\n[telemetry]"
    );
    place.edit("[telemetry]", &sink);
    place
}

/// Each number of the rows that these parts have; none is there twice.
pub fn rows(python: &str, parts: &[PathBuf]) -> BTreeSet<u64> {
    let read = Command::new(python).args(["-c", READ]).args(parts).output().unwrap();
    assert!(read.status.success(), "{parts:?}: {}", String::from_utf8_lossy(&read.stderr));
    let all = String::from_utf8(read.stdout).unwrap();
    let rows: BTreeSet<u64> = all.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(rows.len(), all.lines().count(), "a row is there twice");
    rows
}

/// The parts in a folder, as a user lists them; where records are files, their indexes.
pub fn parts(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut parts: Vec<_> = entries
        .filter(|path| ["parts-", "_index-"].iter().any(|begin| name(path).starts_with(begin)))
        .collect();
    parts.sort();
    parts
}

/// The library that ends a run at a moment, and the folder that it lies in; `None`: the test is skipped.
#[track_caller]
pub fn kill_at() -> Option<(Workplace, String)> {
    if !has_programs(&["cc"], "install a C compiler") {
        return None;
    }
    let folder = Workplace::new();
    let library = folder.path("kill_at.so");
    let source = repository().join("tests/common/kill_at.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(built.unwrap().success());
    let library = library.to_str().unwrap().to_owned();
    Some((folder, library))
}

#[track_caller]
fn nothing_lost_or_doubled(verified: &Ended) {
    verified.must_exit(0).must_print(&["0 lost, 0 doubled"]);
}

#[test]
fn a_run_that_is_killed_around_the_making_of_a_part_leaves_whole_parts_and_loses_and_doubles_no_row() {
    let Some(python) = python_env("pyarrow") else { return };
    let Some((_folder, library)) = kill_at() else { return };

    // The file waits under another name; it has its name, and the journal does not count it; the journal counts it, and its rows are still in the
    // file of rows.
    for (kind, moment) in ["tar", "parquet"]
        .into_iter()
        .flat_map(|kind| ["before", "named", "synced"].map(|moment| (kind, moment)))
    {
        let place = workplace(kind, &format!("parts.{kind}"));
        let name = format!("parts-00000.{kind}");
        let end = format!("/{name}");
        let killed = place.run_with(&[("LD_PRELOAD", &library), ("KILL_AT", moment), ("KILL_AT_NAME", &end)]);
        assert_eq!(killed.status.code(), None, "{kind}, {moment}: {}", killed.stderr);
        place.no_process_is_left();
        let there = parts(&place.out());
        let expected = (moment != "before").then(|| place.out().join(&name));
        assert_eq!(there, Vec::from_iter(expected), "{kind}, {moment}");
        println!("{kind}, {moment}: {} rows", rows(&python, &there).len());
        let verify = || place.on_out("verify", &[]);
        verify().must_exit(2);
        place.run(&[]).must_exit(0);
        nothing_lost_or_doubled(&verify());
        place.holds_exactly(ITEMS);
        assert_eq!(rows(&python, &parts(&place.out())), (0..ITEMS).collect());
    }
}

/// The files of records in a folder, each of which is whole.
fn whole_files(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // What is hidden is no file of a reader's.
        if name == "index.jsonl" || name.starts_with('.') {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let is_whole = match name.ends_with(".npy") {
            // A vector of f32: the header says how many.
            true => {
                let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
                let header = String::from_utf8_lossy(&bytes[10..begin]).into_owned();
                let n = header.split_once("'shape': (").unwrap().1.split([',', ')']).next().unwrap();
                header.contains("'<f4'") && bytes.len() == begin + 4 * n.parse::<usize>().unwrap_or(1)
            }
            false => bytes.starts_with(b"\x89PNG") && bytes.ends_with(b"IEND\xaeB`\x82"),
        };
        assert!(is_whole, "{name} is torn");
        names.insert(name);
    }
    names
}

#[test]
fn a_run_that_is_killed_between_a_file_and_its_commit_leaves_whole_files_and_each_is_there_once_in_the_end() {
    let Some((_folder, library)) = kill_at() else { return };
    for (kind, moment) in ["npy", "images"]
        .into_iter()
        .flat_map(|kind| ["before", "named", "indexed", "counted", "synced"].map(|moment| (kind, moment)))
    {
        let place = workplace(kind, "parts");
        let extension = if kind == "npy" { "npy" } else { "png" };
        let name = format!("00000007.png.{extension}");
        let end = format!("/{name}");
        let killed = place.run_with(&[("LD_PRELOAD", &library), ("KILL_AT", moment), ("KILL_AT_NAME", &end)]);
        assert_eq!(killed.status.code(), None, "{kind}, {moment}: {}", killed.stderr);
        place.no_process_is_left();
        let folder = place.out().join("parts");
        let there = whole_files(&folder);
        println!("{kind}, {moment}: {} files", there.len());
        assert_eq!(there.contains(&name), moment != "before", "{kind}, {moment}");
        let verify = || place.on_out("verify", &[]);
        verify().must_exit(2);
        place.run(&[]).must_exit(0);
        nothing_lost_or_doubled(&verify());
        place.holds_exactly(ITEMS);
        let all: BTreeSet<String> = (0..ITEMS).map(|n| format!("{n:08}.png.{extension}")).collect();
        assert_eq!(whole_files(&folder), all, "{kind}, {moment}");
        let index = fs::read_to_string(folder.join("index.jsonl")).unwrap();
        let file = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["file"].as_str().unwrap().to_owned()
        };
        assert_eq!(index.lines().count(), all.len());
        assert_eq!(index.lines().map(file).collect::<BTreeSet<_>>(), all);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), all.len() + 1, "{kind}, {moment}");
    }
}

/// When a request is stopped on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The store does not see it.
    Before,
    /// The store has done it, and its answer does not arrive.
    Behind,
}

/// Stands between a run and its store, and stops the first `PUT` that has certain words in it: a part of a key, a header.
struct Between {
    port: u16,
    state: Arc<State>,
}

struct State {
    store: String,
    stop: Mutex<Option<(Stop, String)>>,
    has_stopped: AtomicBool,
    is_over: AtomicBool,
}

impl Between {
    fn start(moto: &Moto) -> Self {
        let variables = moto.variables();
        let store = variables.iter().find(|(name, _)| *name == "AWS_ENDPOINT_URL").unwrap().1;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let store = store.strip_prefix("http://").unwrap().to_owned();
        let (has_stopped, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let state = Arc::new(State { store, stop: Mutex::default(), has_stopped, is_over });
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if served.is_over.load(Ordering::Relaxed) {
                    break;
                }
                let state = Arc::clone(&served);
                // A client that hangs up early is no surprise.
                thread::spawn(move || drop(stream.and_then(|stream| state.pass(stream))));
            }
        });
        Self { port, state }
    }

    fn stop(&self, stop: Stop, words: &str) {
        self.state.has_stopped.store(false, Ordering::Relaxed);
        *self.state.stop.lock().unwrap() = Some((stop, words.to_owned()));
    }

    fn has_stopped(&self) -> bool {
        self.state.has_stopped.load(Ordering::Relaxed)
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl State {
    /// One request of a connection: more of them come over others.
    fn pass(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut from_client = BufReader::new(client.try_clone()?);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if from_client.read_line(&mut line)? <= 2 {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match &*name.to_ascii_lowercase() {
                "content-length" => length = value.trim().parse().unwrap(),
                "connection" => continue,
                _ => {}
            }
            head += &line;
        }
        let mut body = vec![0; length];
        from_client.read_exact(&mut body)?;
        let target = head.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
        let headers = head.split_once('\n').unwrap_or_default().1.to_ascii_lowercase();
        let has = |word: &str| target.contains(word) || headers.contains(word);
        let is_meant =
            |(_, words): &mut (Stop, String)| head.starts_with("PUT ") && words.split(' ').all(has);
        let stop = self.stop.lock().unwrap().take_if(is_meant).map(|(stop, _)| stop);
        if stop == Some(Stop::Before) {
            self.has_stopped.store(true, Ordering::Relaxed);
            return wait_for_its_end(client);
        }
        let mut store = TcpStream::connect(&self.store)?;
        write!(store, "{head}Connection: close\r\n\r\n")?;
        store.write_all(&body)?;
        let mut answer = Vec::new();
        store.read_to_end(&mut answer)?;
        if stop == Some(Stop::Behind) {
            self.has_stopped.store(true, Ordering::Relaxed);
            return wait_for_its_end(client);
        }
        client.write_all(&answer)
    }
}

/// Until the client is dead.
fn wait_for_its_end(mut client: TcpStream) -> std::io::Result<()> {
    client.read_to_end(&mut Vec::new()).map(drop)
}

/// A command that reaches its store through this.
fn through(between: &Between, moto: &Moto, place: &Workplace, arguments: &[&str]) -> Run {
    let address = format!("http://127.0.0.1:{}", between.port);
    let mut variables = moto.variables();
    variables.retain(|(name, _)| *name != "AWS_ENDPOINT_URL");
    variables.push(("AWS_ENDPOINT_URL", &address));
    place.start_command_with(arguments, &variables)
}

/// Starts what is stopped at this request, and kills it there.
#[track_caller]
fn kill_at_request(
    between: &Between,
    place: &Workplace,
    (stop, key): (Stop, &str),
    start: impl FnOnce() -> Run,
) {
    between.stop(stop, key);
    let mut started = start();
    started.must_reach("the request is stopped", || between.has_stopped());
    started.kill_in(place);
}

/// A reader that trusts the manifest alone: the rows of all parts that it names, of which each is as it says, and so are the files that an index
/// names; `None` without a manifest.
fn trusted(moto: &Moto, python: &str, into: &Path) -> Option<BTreeSet<u64>> {
    fs::remove_dir_all(into).ok();
    fs::create_dir(into).unwrap();
    let line = format!(
        "import hashlib, json, pathlib
try:
    manifest = json.load(s3.get_object(Bucket='digits', Key='kept/_manifest.json')['Body'])
except s3.exceptions.NoSuchKey:
    raise SystemExit
rows = 0
for part in manifest['parts']:
    body = s3.get_object(Bucket='digits', Key='kept/' + part['name'])['Body'].read()
    assert (len(body), hashlib.sha256(body).hexdigest()) == (part['bytes'], part['sha256']), part
    pathlib.Path({:?}, part['name']).write_bytes(body)
    for line in body.splitlines() if part['name'].startswith('_index-') else []:
        file = json.loads(line)
        array = s3.get_object(Bucket='digits', Key='kept/' + file['file'])['Body'].read()
        whole = array.startswith(b'\\x93NUMPY') or array.startswith(b'\\x89PNG') and array.endswith(b'IEND\\xaeB`\\x82')
        assert len(array) == file['bytes'] and whole, file
    rows += part['rows']
assert rows == manifest['rows']
print(rows)",
        into.to_str().unwrap()
    );
    let said = moto.python(&line);
    let n: usize = said.trim().parse().ok()?;
    let named: Vec<_> = fs::read_dir(into).unwrap().map(|entry| entry.unwrap().path()).collect();
    let rows = rows(python, &named);
    assert_eq!(rows.len(), n, "the manifest says how many");
    Some(rows)
}

/// A source takes the parts of a prefix and never the manifest beside them.
fn the_manifest_is_no_item(moto: &Moto, place: &Workplace, kind: &str) {
    let text = format!(
        "version = 1\n[sources.rows]\nkind = \"{kind}\"\npaths = [\"s3://digits/kept/\"]\ncolumns = {{ index = \"i64\" }}\n\
         [stages.all]\nkind = \"select\"\nfrom = \"rows\"\ncolumns = {{ index = \"index\" }}\n\
         [sinks.lines]\nkind = \"jsonl\"\nfrom = \"all\"\n"
    );
    place.run_file(text, "again", &moto.variables()).must_exit(0);
    let lines = fs::read_to_string(place.path("again/lines.jsonl")).unwrap();
    let index =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["result"]["index"].as_u64().unwrap();
    assert_eq!(lines.lines().count() as u64, ITEMS);
    assert_eq!(lines.lines().map(index).collect::<BTreeSet<_>>(), (0..ITEMS).collect());
}

/// Removes what the kind before has left.
const EMPTY: &str = "
for o in s3.get_paginator('list_objects_v2').paginate(Bucket='digits', Prefix='kept/').search('Contents || `[]`'):
    s3.delete_object(Bucket='digits', Key=o['Key'])
";

#[test]
fn a_run_that_is_killed_around_the_upload_of_a_part_or_its_manifest_shows_a_whole_result_or_none() {
    let Some(python) = python_env("pyarrow") else { return };
    let Some(moto) = Moto::start() else { return };
    // Parts; rows that would be appended to a file, as parts; and a file for each record, with an index for each part.
    // The second of each class goes the same way.
    for kind in ["tar", "jsonl", "npy", "parquet", "csv", "images"].into_iter().take(scaled(6, 3)) {
        moto.python(EMPTY);
        let between = Between::start(&moto);
        let place = workplace(kind, "s3://digits/kept/");
        // In the order of the source, so that the two files whose requests are stopped are of one part.
        place.one_worker();
        place.edit("[devices]", "[limits]\nloaders = 1\n[devices]");
        let (workflow, out) = (place.workflow(), place.out());
        let run = || through(&between, &moto, &place, &["run", workflow.to_str().unwrap()]);
        let verify = || through(&between, &moto, &place, &["verify", out.to_str().unwrap()]).wait();
        let everything: BTreeSet<u64> = (0..ITEMS).collect();
        let holds_files = ["npy", "images"].contains(&kind);
        let extension = if kind == "npy" { "npy" } else { "png" };
        let file = |n: u64| format!("{n:08}.png.{extension}");
        let first = match holds_files {
            // Of the part whose index comes first: which items it has, their order decides.
            true => "kept/_index-".to_owned(),
            false => format!("kept/parts-00000.{kind}"),
        };
        let (third, seventh) = (file(3), file(7));
        let of_a_file = [(Stop::Before, &*third), (Stop::Behind, &*seventh)];
        let of_parts = [
            (Stop::Before, &*first),
            (Stop::Behind, &first),
            (Stop::Before, "kept/_manifest.json"),
            (Stop::Behind, "kept/_manifest.json"),
        ];
        // A manifest is made in the same way for the two kinds of a class: parts, rows as parts, and files.
        let with_manifest = ["tar", "jsonl", "npy"].contains(&kind);
        let of_parts = of_parts.into_iter().take(if with_manifest { 4 } else { 2 });
        for (stop, key) in of_a_file.into_iter().filter(|_| holds_files).chain(of_parts) {
            // What was created is not created again: behind the first kill it comes with the next start.
            kill_at_request(&between, &place, (stop, key), run);
            let is_whole = (stop, key) == (Stop::Behind, "kept/_manifest.json");
            let seen = trusted(&moto, &python, &place.path("trusted"));
            println!("{kind}, {stop:?} {key}: {:?} rows", seen.as_ref().map(BTreeSet::len));
            assert_eq!(seen, is_whole.then(|| everything.clone()), "{kind}, {stop:?} {key}");
            verify().must_exit(2);
        }
        run().wait().must_exit(0);
        nothing_lost_or_doubled(&verify());
        place.holds_exactly(ITEMS);
        assert_eq!(trusted(&moto, &python, &place.path("trusted")), Some(everything));
        run().wait().must_exit(0).must_say(&["nothing is left to do"]);
        if let "jsonl" | "csv" | "parquet" = kind {
            the_manifest_is_no_item(&moto, &place, kind);
        }
        if holds_files {
            let fourth = file(4);
            moto.python(&format!("s3.delete_object(Bucket='digits', Key='kept/{third}')\ns3.put_object(Bucket='digits', Key='kept/x.npy', Body=b'x')\ns3.put_object(Bucket='digits', Key='kept/{fourth}', Body=b'x')"));
            let found = verify().exited(70);
            for says in [
                &*format!("`s3://digits/kept/{third}`, which its index names, is not there"),
                "`s3://digits/kept/x.npy` is in no manifest",
                &format!("`s3://digits/kept/{fourth}` has 1 bytes, and its index says"),
            ] {
                found.must_print(&[says]);
            }
        }
    }
}

/// The manifest, where it takes the place of the one of an earlier end, which a start finds there when it would create it.
const REPLACED: &str = "kept/_manifest.json if-match:";

#[test]
fn a_retry_adds_what_is_done_now_to_a_bucket_once_wherever_it_is_killed() {
    let Some(moto) = Moto::start() else { return };
    // Rows as parts, and a file for each record with an index for each part.
    for kind in ["jsonl", "npy"] {
        moto.python(EMPTY);
        let between = Between::start(&moto);
        let place = workplace(kind, "s3://digits/kept/");
        let bad = write_bad_pictures(&place.images()).unwrap();
        let n_bad = bad.len() as u64;
        let (workflow, out) = (place.workflow(), place.out());
        let run = || through(&between, &moto, &place, &["run", workflow.to_str().unwrap()]);
        let retry = || through(&between, &moto, &place, &["retry", out.to_str().unwrap()]);
        let verify = || through(&between, &moto, &place, &["verify", out.to_str().unwrap()]).wait();
        let shown = || trusted(&moto, "python3", &place.path("trusted")).unwrap();
        let parts = || {
            moto.python("for o in s3.list_objects_v2(Bucket='digits', Prefix='kept/')['Contents']: print(o['Key'], o['ETag'])")
                .lines()
                .filter(|line| !line.contains("_manifest.json"))
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        };
        // Numbers of the items that have failed.
        let failed =
            || -> BTreeSet<u64> { place.failures().iter().map(|f| f["index"].as_u64().unwrap()).collect() };
        let mend = |path: &PathBuf| assert!(fs::copy(place.images().join("00000000.png"), path).unwrap() > 0);
        let all = |n: u64| (0..n).collect::<BTreeSet<u64>>();

        run().wait().must_exit(65);
        assert_eq!((shown(), failed()), (all(ITEMS), (ITEMS..ITEMS + n_bad).collect()));
        nothing_lost_or_doubled(&verify());
        let before = parts();
        // None of them is better than it was, and nothing comes to the bucket.
        retry().wait().must_exit(65).must_say(&["5 failed ones are tried again", "60 done, 5 failed"]);
        assert_eq!((shown(), parts()), (all(ITEMS), before.clone()));
        nothing_lost_or_doubled(&verify());

        bad[..2].iter().for_each(mend);
        let begin = if kind == "npy" { "kept/_index-" } else { "kept/parts-" };
        for (stop, key) in
            [(Stop::Before, begin), (Stop::Behind, begin), (Stop::Before, REPLACED), (Stop::Behind, REPLACED)]
        {
            kill_at_request(&between, &place, (stop, key), retry);
            let is_whole = (stop, key) == (Stop::Behind, REPLACED);
            let seen = shown();
            println!("{kind}, {stop:?} {key}: {} rows", seen.len());
            // The result of the run before, or the one with the rows that are new.
            assert_eq!(seen.len() as u64, if is_whole { ITEMS + 2 } else { ITEMS }, "{kind}, {stop:?} {key}");
            assert!(seen.is_superset(&all(ITEMS)));
            verify().must_exit(2);
        }
        retry().wait().must_exit(65).must_say(&["62 done, 3 failed"]);
        nothing_lost_or_doubled(&verify());
        let done: BTreeSet<u64> = all(ITEMS + n_bad).difference(&failed()).copied().collect();
        assert_eq!((done.len() as u64, shown()), (ITEMS + 2, done.clone()));
        assert!(parts().is_superset(&before), "what was there is not touched");
        place.must_hold(&items("scans", done), &items("scans", failed()));

        bad[2..].iter().for_each(mend);
        retry().wait().must_exit(0).must_say(&["3 failed ones are tried again", "65 done, 0 failed"]);
        nothing_lost_or_doubled(&verify());
        assert_eq!((shown(), failed()), (all(ITEMS + n_bad), BTreeSet::new()));
        assert!(parts().is_superset(&before), "what was there is not touched");
        place.must_hold(&items("scans", 0..ITEMS + n_bad), &BTreeSet::new());
        run().wait().must_exit(0).must_say(&["nothing is left to do"]);
    }
}
