//! Objects of a store as items: those of a real S3 server come out as files do, whatever their keys; a store
//! that is away, refuses or hangs is told by name; and credentials reach the loaders of its own source alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Blocks, Run, Workplace, python_env, repository, write_pictures};
use crate::moto::Moto;
use crate::store::{SECRET, Store, page_at};
use orchestra_testkit::records::items;
use orchestra_testkit::striker::{loaders_of, workers_of};
use serde_json::Value;

const LEAST_RIGHT: f64 = 0.975;

fn labels(csv: &Path) -> BTreeMap<String, String> {
    let mut reader = csv::Reader::from_path(csv).unwrap();
    let header = reader.headers().unwrap().clone();
    let column =
        |name: &[&str]| header.iter().position(|h| name.contains(&h)).unwrap_or_else(|| panic!("{header:?}"));
    let (item, label) = (column(&["item", "file"]), column(&["label", "result.label", "result[0].label"]));
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    let labels: BTreeMap<_, _> =
        rows.iter().map(|row| (row[item].to_owned(), row[label].to_owned())).collect();
    assert_eq!(labels.len(), rows.len(), "an item has one row");
    labels
}

/// Runs an example with settings over the bucket.
fn start(place: &Workplace, moto: &Moto, example: &str, out: &str, settings: &[&str]) -> Run {
    let file = repository().join("examples").join(example).join("workflow.toml");
    let out = place.path(out);
    let mut all = vec!["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    all.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    place.start_command_with(&all, &moto.variables())
}

const PICTURES: &str = "sources.scans.paths=[\"s3://digits/pages/*.png\"]";
const ONE_LABEL: [&str; 3] =
    ["stages.answer.top_k=1", "sinks.results.kind=\"csv\"", "sinks.results.path=\"results.csv\""];

#[test]
fn pictures_and_archives_of_a_bucket_are_read_whatever_their_keys() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    let [top_k, kind, path] = ONE_LABEL;
    let pictures = [PICTURES, top_k, kind, path];
    let archives = [kind, path, "sinks.results.from=\"answer\""];
    start(&place, &moto, "digits", "calm", &pictures)
        .wait()
        .must_exit(0)
        .must_say(&["300 items read, 300 done, 0 failed"]);
    let calm = labels(&place.path("calm/results.csv"));
    let truth = labels(&repository().join("examples/digits/labels.csv"));
    let right = calm.iter().filter(|(item, label)| truth[*item] == **label).count();
    println!("{right} of {} are right", calm.len());
    assert!(calm.len() == 300 && right as f64 >= 300.0 * LEAST_RIGHT);

    start(&place, &moto, "bucket", "bucket", &archives).wait().must_exit(0);
    let found = labels(&place.path("bucket/results.csv"));
    assert_eq!(found.len(), calm.len());
    // A sample is called by its archive and its key, 40 of them in each.
    let named =
        |(item, label): (String, String)| (format!("{}.png", item.split_once(".tar/").unwrap().1), label);
    assert_eq!(found.into_iter().map(named).collect::<BTreeMap<_, _>>(), calm);

    let odd = ["sources.scans.paths=[\"s3://digits/odd\"]", top_k, kind, path];
    start(&place, &moto, "digits", "odd", &odd).wait().must_exit(0);
    let odd = labels(&place.path("odd/results.csv"));
    let keys =
        ["a b", "100%25", "1+1=2", "ü/日本", "[x]{y}?&#", "it's \"quoted\"", "back\\\\slash", "a~b;c,d$!"];
    assert_eq!(odd.keys().cloned().collect::<BTreeSet<_>>(), keys.map(|key| format!("{key}.png")).into());
    assert!(odd.values().all(|label| *label == calm["digit-0001.png"]), "{odd:?}");

    for (paths, code, says) in [
        ("s3://nowhere/*.png", 78, "there is no such bucket (status 404 NoSuchBucket)"),
        ("s3://digits/pages/*.gif", 78, "`s3://digits/pages/*.gif` names no object"),
        ("s3://digits/none", 78, "`s3://digits/none` names no object"),
        (
            "s3://digits/pages/*.png",
            78,
            "`s3://digits/pages/digit-0001.png` cannot be read: it is no tar archive",
        ),
    ] {
        let (example, settings) = match says.contains("archive") {
            true => ("bucket", &archives[..]),
            false => ("digits", &[][..]),
        };
        let set = format!("sources.scans.paths=[{paths:?}]");
        let settings: Vec<&str> = settings.iter().copied().chain([&set[..]]).collect();
        start(&place, &moto, example, "none", &settings).wait().must_exit(code).must_say(&[says]);
    }
    place.no_process_is_left();
}

/// The rows of the parts in a folder as pyarrow reads them, by item: what the other columns hold.
fn rows_of_parquet(python: &str, folder: &Path) -> BTreeMap<String, Value> {
    let script = "import glob, json, sys, pyarrow.parquet as pq\n\
                  files = sorted(glob.glob(sys.argv[1] + '/results-*.parquet'))\n\
                  print(json.dumps([row for file in files for row in pq.read_table(file).to_pylist()]))";
    let read = Command::new(python).args(["-c", script]).arg(folder).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&read.stdout).unwrap();
    let n = rows.len();
    let by_item = |mut row: Value| (row["item"].take().as_str().unwrap().to_owned(), row);
    let rows: BTreeMap<_, _> = rows.into_iter().map(by_item).collect();
    assert_eq!(rows.len(), n, "an item has one row");
    rows
}

/// Labels and scores of all rows, by ONNX Runtime for Python; skipped where that is not there.
fn as_another_runtime_computes(place: &Workplace, rows: &BTreeMap<String, Value>) {
    let Some(python) = python_env("reference") else { return };
    let folder = place.path("rows");
    fs::create_dir(&folder).unwrap();
    let rows: Vec<_> = rows.values().collect();
    fs::write(folder.join("rows.json"), serde_json::to_vec(&rows).unwrap()).unwrap();
    let script = repository().join("scripts/examples_reference.py");
    let judged = Command::new(python).arg(script).arg("bucket").arg(folder).output().unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
}

#[test]
fn the_example_writes_a_bucket_of_archives_to_parquet() {
    let Some(moto) = Moto::start() else { return };
    let Some(python) = python_env("pyarrow") else { return };
    let place = Workplace::new();
    start(&place, &moto, "bucket", "calm", &[]).wait().must_exit(0);
    let calm = rows_of_parquet(&python, &place.path("calm"));
    let truth = labels(&repository().join("examples/digits/labels.csv"));
    let mut images: Vec<&String> = truth.keys().collect();
    images.sort();
    let named = |(at, image): (usize, &&String)| {
        format!("digits-{:03}.tar/{}", at / 40, image.strip_suffix(".png").unwrap())
    };
    assert!(calm.keys().cloned().eq(images[..300].iter().enumerate().map(named)));
    let file = |row: &Value| row["file"].as_str().unwrap().to_owned();
    assert!(calm.iter().all(|(item, row)| item.ends_with(file(row).strip_suffix(".png").unwrap())));
    let right = calm.values().filter(|row| row["label"].as_str() == Some(&truth[&file(row)])).count();
    println!("{right} of {} are right", calm.len());
    assert!(right as f64 >= 300.0 * LEAST_RIGHT);
    as_another_runtime_computes(&place, &calm);

    let calm = place.path("calm");
    place.command(&["verify", calm.to_str().unwrap()]).must_exit(0).must_print(&["0 lost, 0 doubled"]);
    place.no_process_is_left();
}

#[test]
fn a_list_of_objects_may_be_an_object_or_a_file_and_has_keys_or_urls() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    moto.python(
        "s3.put_object(Bucket='digits', Key='pages/list.csv', Body=b'label,file\\n7,digit-0003.png\\n1,s3://digits/odd/a b.png\\n3,digit-0003.png\\n')\n\
         s3.put_object(Bucket='digits', Key='bad.jsonl', Body=b'\"pages/digit-0001.png\"\\n\"gs://digits/a.png\"\\n')",
    );
    fs::write(place.path("list.txt"), "digit-0002.png\n./digit-0001.png\n").unwrap();
    let run = |listing: &str| {
        place.write_blocks(&Blocks { devices: 1, ..Blocks::default() }, listing);
        place.start_on_file("run", &["--fresh"], &moto.variables()).wait()
    };
    let of_bucket = ["digit-0003.png", "s3://digits/odd/a b.png", "digit-0003.png"];
    for (listing, expected) in [
        ("manifest = \"s3://digits/pages/list.csv\"", &of_bucket[..]),
        ("manifest = \"list.txt\"\nroot = \"s3://digits/pages\"", &["digit-0002.png", "digit-0001.png"]),
    ] {
        run(listing).must_exit(0);
        let lines = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
        let named = lines.lines().map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            (record["index"].as_u64().unwrap(), record["item"].as_str().unwrap().to_owned())
        });
        let named: BTreeMap<u64, String> = named.collect();
        assert_eq!(named.into_values().collect::<Vec<_>>(), expected, "{listing}");
        place.on_out("verify", &[]).must_exit(0);
    }
    for (listing, code, says) in [
        (
            "manifest = \"s3://digits/none.csv\"",
            78,
            "cannot read `s3://digits/none.csv`: there is no such object",
        ),
        (
            "manifest = \"s3://digits/bad.jsonl\"",
            78,
            "manifest `s3://digits/bad.jsonl`, line 2: `gs://digits/a.png` lies elsewhere than in `s3://digits/`",
        ),
        (
            "manifest = \"s3://digits/pages/list.csv\"\nroot = \"pages\"",
            78,
            "`pages` is a folder, and the manifest an object",
        ),
    ] {
        run(listing).must_exit(code).must_say(&[says]);
    }
    place.no_process_is_left();
}

/// A workplace whose pictures `0..n` lie in a store that the test speaks for.
fn in_store(n: u64, more: &'static str) -> (Workplace, Store) {
    let place = Workplace::new();
    write_pictures(&place.images(), n);
    place.write_blocks(&Blocks { devices: 1, more, ..Blocks::default() }, "paths = [\"s3://bucket/*.png\"]");
    let store = Store::start(&place.images());
    (place, store)
}

/// What a user sees of the end must not show what was signed.
#[track_caller]
fn nothing_secret_is_said(place: &Workplace, said: &str) {
    assert!(!said.contains(SECRET), "{said}");
    for file in ["failures.jsonl", "run.json", "logs/scans.log", "logs/orchestra.log"] {
        let text = fs::read_to_string(place.out().join(file)).unwrap_or_default();
        assert!(!text.contains(SECRET), "{file}: {text}");
    }
}

#[test]
fn a_store_that_goes_away_stops_the_run_and_the_same_command_goes_on() {
    let (place, store) = in_store(60, "");
    store.answer_for(25);
    let ended = place.run_with(&store.variables());
    ended
        .must_exit(75)
        .must_say(&["the items of source `scans` cannot be read now", "cannot read `s3://bucket/"]);
    nothing_secret_is_said(&place, &ended.stderr);
    assert!(place.failures().is_empty(), "an item is not at fault");
    assert!(place.n_results() < 60);
    store.answer_for(usize::MAX);
    place.run_with(&store.variables()).must_exit(0);
    place.holds_exactly(60);
    place.nothing_is_left();
}

#[test]
fn an_object_that_is_refused_gone_or_never_comes_fails_by_name_and_the_others_are_done() {
    let (place, store) = in_store(30, "[pipelines.scans]\nitem_timeout = \"5s\"\n");
    store.fail("00000003.png", crate::store::Answer::Gone);
    store.fail("00000004.png", crate::store::Answer::Denied);
    store.fail("00000005.png", crate::store::Answer::Never);
    let ended = place.run_with(&store.variables()).exited(65);
    nothing_secret_is_said(&place, &ended.stderr);
    let failed = [3, 4, 5];
    let records =
        place.must_hold(&items("scans", (0..30).filter(|n| !failed.contains(n))), &items("scans", failed));
    let errors: HashMap<u64, String> = records
        .failed
        .iter()
        .map(|(key, record)| (key.index, record["error"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        errors[&3],
        "cannot read `s3://bucket/00000003.png`: there is no such object (status 404 NoSuchKey)"
    );
    assert_eq!(
        errors[&4],
        "cannot read `s3://bucket/00000004.png`: access is denied (status 403 AccessDenied)"
    );
    assert!(errors[&5].contains("longer than pipelines.scans.item_timeout (5 s)"), "{errors:?}");
    place.nothing_is_left();
}

#[test]
fn a_store_that_is_busy_is_asked_again_and_no_item_fails_for_it() {
    let (place, store) = in_store(60, "");
    store.list_by(20);
    store.fail("00000007.png", crate::store::Answer::Busy(2));
    store.fail(&page_at(20), crate::store::Answer::Busy(1));
    place.run_with(&store.variables()).must_exit(0).must_say(&["60 done, 0 failed"]);
    place.holds_exactly(60);
    assert!(place.failures().is_empty());
    for n in 0..60 {
        let times = if n == 7 { 3 } else { 1 };
        assert_eq!(store.n_asked(&format!("{n:08}.png")), times, "object {n}");
    }
    assert_eq!([20, 40].map(|first| store.n_asked(&page_at(first))), [2, 1]);

    // The first page is what a start waits for, with less patience.
    let before = store.n_asked(&page_at(0));
    store.fail(&page_at(0), crate::store::Answer::Busy(1));
    place.start_on_file("run", &["--fresh"], &store.variables()).wait().must_exit(0);
    assert_eq!(store.n_asked(&page_at(0)), 2 * before + 1);
    place.holds_exactly(60);
    place.nothing_is_left();
}

#[test]
fn an_object_whose_store_does_not_say_whether_it_is_there_is_none_that_is_missing() {
    let (place, store) = in_store(3, "");
    place.edit("s3://bucket/*.png", "s3://bucket/00000001.png");
    store.fail("00000001.png", crate::store::Answer::Broken);
    let ended = place.run_with(&store.variables());
    ended
        .must_exit(75)
        .must_say(&["`s3://bucket/00000001.png`", "the store answers with an error (status 500"]);
    assert!(!ended.stderr.contains("names no object"), "{}", ended.stderr);
    store.fail("00000001.png", crate::store::Answer::Busy(1));
    place.run_with(&store.variables()).must_exit(0).must_say(&["1 done, 0 failed"]);
}

#[test]
fn wrong_credentials_and_an_address_where_nothing_listens_are_told_before_the_run() {
    let (place, store) = in_store(3, "");
    store.refuse_all();
    let ended = place.run_with(&store.variables());
    ended
        .must_exit(78)
        .must_say(&["access is denied (status 403 SignatureDoesNotMatch)", "AWS_ACCESS_KEY_ID"]);
    assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
    let mut variables = store.variables();
    variables[0].1 = "http://127.0.0.1:1";
    place.run_with(&variables).must_exit(75).must_say(&["no connection", "AWS_ENDPOINT_URL"]);
}

#[test]
fn a_store_that_does_not_answer_while_the_workflow_is_planned_is_no_fault_of_the_file() {
    let (place, store) = in_store(3, "");
    fs::write(place.images().join("rows.csv"), "name,age\na,1\nb,2\n").unwrap();
    let rows = "version = 1\n[sources.rows]\nkind = \"csv\"\npaths = [\"s3://bucket/*.csv\"]\n\
        [stages.all]\nkind = \"select\"\nfrom = \"rows\"\ncolumns = { name = \"name\" }\n\
        [sinks.results]\nkind = \"jsonl\"\nfrom = \"all\"\n";
    place.write(rows);
    let check = || place.start_on_file("check", &[], &store.variables()).wait();
    // Its columns are read while it is planned.
    store.fail("rows.csv", crate::store::Answer::Broken);
    let says =
        ["source `rows`: cannot read `s3://bucket/rows.csv`", "the store answers with an error (status 500"];
    check().must_exit(75).must_say(&says);
    store.fail("rows.csv", crate::store::Answer::Denied);
    check().must_exit(78).must_say(&["`s3://bucket/rows.csv`", "access is denied"]);
    // What the file gets wrong besides has to be mended first.
    store.fail("rows.csv", crate::store::Answer::Broken);
    place.edit("from = \"all\"", "from = \"none\"");
    check().must_exit(78).must_say(&says);
}

#[test]
fn single_objects_of_a_web_server_are_read_and_no_others() {
    let (place, store) = in_store(4, "");
    let url = |rest: &str| format!("http://127.0.0.1:{}/bucket/{rest}", store.port());
    let paths = |paths: &[String]| format!("paths = {paths:?}");
    let blocks = Blocks { devices: 1, ..Blocks::default() };
    let all: Vec<String> = (0..4).map(|n| url(&format!("{n:08}.png"))).collect();
    place.write_blocks(&blocks, &paths(&all));
    place.run_with(&[]).must_exit(0);
    place.holds_exactly(4);
    for (rest, says) in [
        ("none.png", "there is no `http://"),
        ("", "a web server cannot be asked what it has"),
        ("00000000.png?token=secret", "would be written into records and logs"),
    ] {
        place.write_blocks(&blocks, &paths(&[url(rest)]));
        place.run_with(&[]).must_exit(78).must_say(&[says]);
    }
}

/// The environment of a process, as `NAME=value`.
fn environment(pid: u32) -> Vec<String> {
    let all = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    all.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

#[test]
fn credentials_reach_the_loaders_of_a_store_and_neither_those_of_files_nor_workers() {
    let holds = |pid: u32| environment(pid).iter().any(|entry| entry.starts_with("AWS_SECRET_ACCESS_KEY="));
    let key = ("AWS_SECRET_ACCESS_KEY", SECRET);
    for is_remote in [true, false] {
        let place = Workplace::with_gate(40);
        let store = Store::start(&place.images());
        if is_remote {
            place.edit("paths = [\"images\"]", "paths = [\"s3://bucket\"]");
        }
        place.close_gate_after(8);
        let mut variables = store.variables();
        variables.push(key);
        let mut run = place.start_with(&variables);
        run.must_reach("a batch waits at the gate", || place.waiting_at_gate() > 0);
        let (loaders, workers) = (loaders_of(run.pid()), workers_of(run.pid()));
        assert!(!loaders.is_empty() && !workers.is_empty());
        let workers: Vec<u32> = workers
            .iter()
            .map(|w| w.pid)
            .filter(|pid| loaders.iter().all(|loader| loader.pid != *pid))
            .collect();
        assert!(!workers.is_empty());
        assert!(loaders.iter().all(|loader| holds(loader.pid) == is_remote), "of a store: {is_remote}");
        assert!(workers.iter().all(|pid| !holds(*pid)), "a worker has credentials");
        assert!(holds(run.pid()));
        place.open_gate();
        run.wait().must_exit(0);
        place.holds_exactly(40);
    }
}

/// Kills are in `kills.rs` and `part_kills.rs`.
#[test]
fn results_in_a_bucket_are_of_one_run_and_what_is_stray_or_missing_among_them_is_told() {
    const ITEMS: u64 = 60;
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    let more = "[sinks.shards]\nkind = \"tar\"\nfrom = \"read\"\npath = \"s3://digits/results/\"\nrows_per_file = 20\n";
    place.write_blocks(&Blocks { more, ..Blocks::default() }, "paths = [\"images\"]");
    let run = || place.start_with(&moto.variables());
    let verify = || {
        let out = place.out();
        place.start_command_with(&["verify", out.to_str().unwrap()], &moto.variables()).wait()
    };
    run().wait().must_exit(0);
    place.holds_exactly(ITEMS);
    verify().must_exit(0);
    assert!(!place.out().join("uploading").exists(), "all parts have gone");

    // As if it had been killed behind the manifest: the end is recorded again.
    fs::remove_file(place.out().join("run.json")).unwrap();
    run().wait().must_exit(0);
    verify().must_exit(0);
    // Nothing more is done by another start, and another run does not touch it.
    run().wait().must_exit(0).must_say(&["nothing is left to do"]);
    let elsewhere = place.path("elsewhere");
    for more in [&["--fresh"][..], &["--output", elsewhere.to_str().unwrap()]] {
        place
            .start_on_file("run", more, &moto.variables())
            .wait()
            .must_exit(78)
            .must_say(&["`s3://digits/results/` of sink `shards` holds results of another run"]);
    }
    verify().must_exit(0);
    moto.python("s3.put_object(Bucket='digits', Key='results/shards-99999.tar', Body=b'x')\ns3.delete_object(Bucket='digits', Key='results/shards-00001.tar')");
    let found = verify().exited(70);
    for says in [
        "`s3://digits/results/shards-99999.tar` is in no manifest",
        "`s3://digits/results/shards-00001.tar`, which its manifest names, is not there",
        "has neither a record in",
    ] {
        found.must_print(&[says]);
    }
    place.no_process_is_left();
}

/// Writes a file of each kind below the folder `rows`, and uploads them to `rows/` of the bucket.
const MAKE_ROWS: &str = r#"
import json, pathlib, shutil, struct, zipfile
N = 300
rows = root / 'rows'
(rows / 'img').mkdir(parents=True)
def npy(values, width):
    shape = f'({N}, {width})' if width > 1 else f'({N},)'
    header = ("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ', }').ljust(117) + '\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode() + struct.pack(f'<{len(values)}f', *values)
x, y = npy([n / 2 for n in range(4 * N)], 4), npy([-n for n in range(N)], 1)
(rows / 'x.npy').write_bytes(x)
(rows / 'y.npy').write_bytes(y)
for name, method in [('deflated.npz', zipfile.ZIP_DEFLATED), ('stored.npz', zipfile.ZIP_STORED)]:
    with zipfile.ZipFile(rows / name, 'w', method) as archive:
        archive.writestr('x.npy', x)
        archive.writestr('y.npy', y)
with zipfile.ZipFile(rows / 'pictures.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
    for n in range(N):
        picture = root / 'images' / f'{n:08}.png'
        archive.write(picture, f'sub/{n}.png')
        shutil.copy(picture, rows / 'img' / f'{n}.png')
with open(rows / 'lines.jsonl', 'w') as lines:
    for n in range(N):
        lines.write(json.dumps({'n': n, 't': 'x' * (n * 37 % 5000), 'p': f'img/{n}.png'}) + '\n')
with open(rows / 'lines.csv', 'w') as lines:
    lines.write('n,t\n')
    for n in range(N):
        lines.write(f'{n},"a ""{n}"",\nb"\n')
"#;

#[test]
fn rows_arrays_and_members_of_objects_are_what_they_are_in_files() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    write_pictures(&place.images(), 300);
    let root = format!("import pathlib\nroot = pathlib.Path({:?})\n", place.path("").to_str().unwrap());
    moto.python(&format!("{root}{MAKE_ROWS}"));
    let lines = |kind: &str, path: &str, more: &str, stage: &str| -> Vec<serde_json::Value> {
        let text = format!(
            "version = 1\n[sources.s]\nkind = \"{kind}\"\npaths = [\"{path}\"]\n{more}\n[stages.all]\n{stage}\n\
             [sinks.lines]\nkind = \"jsonl\"\nfrom = \"all\"\nordered = true\n[sinks.table]\nkind = \"parquet\"\nfrom = \"all\"\n"
        );
        fs::remove_dir_all(place.path("rows-out")).ok();
        place.run_file(text, "rows-out", &moto.variables()).must_exit(0);
        let found = fs::read_to_string(place.path("rows-out/lines.jsonl")).unwrap();
        found.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let plain = "kind = \"filter\"\nkeep = \"true\"\nfrom = \"s\"";
    let of_picture = |column: &str| {
        format!(
            "kind = \"image\"\nfrom = \"s{column}\"\nsize = [4, 8]\ncolor = \"gray\"\nfilter = \"nearest\""
        )
    };
    // A file of Parquet is what our own sink makes of the lines.
    lines("csv", "rows/lines.csv", "", plain);
    fs::copy(place.path("rows-out/table-00000.parquet"), place.path("rows/table.parquet")).unwrap();
    lines("jsonl", "rows/lines.jsonl", "", plain);
    fs::copy(place.path("rows-out/table-00000.parquet"), place.path("rows/named.parquet")).unwrap();
    moto.python(&format!(
        "{root}for file in (root / 'rows').rglob('*.*'):\n    s3.upload_file(str(file), 'digits', str(file.relative_to(root)))"
    ));
    let (zipped, named) = (of_picture(""), of_picture(".p"));
    for (kind, file, more, stage, n) in [
        ("csv", "lines.csv", "", plain, 300),
        ("jsonl", "lines.jsonl", "", plain, 300),
        ("jsonl", "lines.jsonl", "columns = { p = \"picture\" }", &named, 300),
        ("parquet", "table.parquet", "", plain, 300),
        ("parquet", "named.parquet", "columns = { p = \"picture\" }", &named, 300),
        ("zip", "*.zip", "", &zipped, 300),
        ("tensors", "x.npy", "rows = 30", plain, 10),
        ("tensors", "x.npy", "beside = { y = \"../rows/y.npy\" }", plain, 300),
        ("tensors", "deflated.npz", "", plain, 300),
        ("tensors", "stored.npz", "columns = [\"y\"]", plain, 300),
    ] {
        let in_files = lines(kind, &format!("rows/{file}"), more, stage);
        let in_bucket = lines(kind, &format!("s3://digits/rows/{file}"), more, stage);
        assert_eq!(in_files.len(), n, "{kind} {file}");
        assert!(in_files == in_bucket, "{kind} {file} {more}: {:?}\n{:?}", in_files[0], in_bucket[0]);
    }
    place.no_process_is_left();
}

#[test]
fn rows_of_an_object_that_is_another_one_at_the_next_start_are_refused_by_name_also_at_its_size() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    let npy = |last: f32| crate::common::npy("(3,)", [1.0, 2.0, last]);
    let line = |last: u8| format!("{{\"x\": 1}}\n{{\"x\": {last}}}\n").into_bytes();
    // A file of Parquet is what our own sink makes of lines.
    let table = |last: u8| {
        let place = Workplace::new();
        fs::write(place.path("x.jsonl"), line(last)).unwrap();
        let text = "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\n[stages.all]\nkind = \"filter\"\nkeep = \"true\"\n\
                    from = \"s\"\n[sinks.t]\nkind = \"parquet\"\nfrom = \"all\"\n";
        place.write(text);
        place.run(&[]).must_exit(0);
        fs::read(place.out().join("t-00000.parquet")).unwrap()
    };
    for (kind, file, first, other, item) in [
        ("jsonl", "x.jsonl", line(2), line(3), "x.jsonl:2`"),
        ("csv", "x.csv", b"x\n1\n2\n".to_vec(), b"x\n1\n3\n".to_vec(), "x.csv:3`"),
        ("tensors", "x.npy", npy(2.0), npy(3.0), "x.npy[0]`"),
        ("parquet", "x.parquet", table(2), table(3), "x.parquet[0]`"),
    ] {
        assert_eq!(first.len(), other.len(), "{kind}");
        let put = |bytes: &[u8]| {
            fs::write(place.path(file), bytes).unwrap();
            moto.python(&format!(
                "s3.upload_file({:?}, 'digits', 'edited/{file}')",
                place.path(file).to_str().unwrap()
            ));
        };
        let text = format!(
            "version = 1\n[sources.s]\nkind = {kind:?}\npaths = [\"s3://digits/edited/{file}\"]\n[stages.all]\nkind = \"filter\"\n\
             keep = \"true\"\nfrom = \"s\"\n[sinks.lines]\nkind = \"jsonl\"\nfrom = \"all\"\n"
        );
        let (name, out) = (format!("out-{kind}"), place.path(&format!("out-{kind}")));
        let start = || place.run_file(&text, &name, &moto.variables());
        put(&first);
        start().must_exit(0);
        let before = fs::read(out.join("lines.jsonl")).unwrap();
        // The same again, and then another one.
        put(&first);
        start().must_exit(0).must_say(&["was finished before"]);
        put(&other);
        start().must_exit(78).must_say(&["not the same any more", item, "--fresh"]);
        assert_eq!(fs::read(out.join("lines.jsonl")).unwrap(), before);
    }
}
