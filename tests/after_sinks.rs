//! Commands that come after a sink find all of its records, also those that are written at the end of its pipeline alone; and so they do when the run is
//! killed in between.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::Workplace;
use crate::moto::Moto;
use crate::part_kills::kill_at;
use orchestra_testkit::workflow_file::WorkflowFile;

/// Ten rows of which the last one fails, and a sink of each kind that writes something when all of them have ended.
fn sinks() -> WorkflowFile {
    let flow = WorkflowFile::new()
        .table("devices", "slots = 4")
        .source("n", "jsonl", "paths = ['rows.jsonl']\ncolumns = { x = 'i64' }")
        .stage("all", "select", "n", "columns = { x = 'x' }")
        .stage("sum", "reduce", "n", "op = 'sum'")
        .stage("list", "reduce", "n", "op = 'concat'");
    SINKS.into_iter().fold(flow, |flow, (name, kind, from)| flow.sink(name, kind, from))
}

const SINKS: [(&str, &str, &str); 7] = [
    ("lines", "jsonl", "sum"),
    ("cells", "csv", "sum"),
    ("table", "parquet", "sum"),
    ("array", "npy", "list"),
    ("rows", "parquet", "all"),
    ("packed", "tar", "all"),
    ("bad", "tar", "failures"),
];

fn place() -> Workplace {
    let place = Workplace::new();
    let rows: String = (0..9).map(|x| format!("{{\"x\": {x}}}\n")).collect();
    fs::write(place.path("rows.jsonl"), rows + "{\"x\": \"nine\"}\n").unwrap();
    let tasks = SINKS.map(|(name, _, _)| {
        format!(
            "[tasks.asks_{name}]\ncommand = \"cp -r {{sinks.{name}.path}} {{output}}/\"\n\
             [tasks.after_{name}]\nafter = [\"sinks.{name}\"]\ncommand = \"cp -r out/{name}* {{output}}/\"\n"
        )
    });
    place.write(sinks().to_string() + &tasks.concat());
    place
}

/// The files of a folder and the folders in it, and what is in them.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(
                files(&entry.path()).into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes)),
            );
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

/// Each command has seen what is there now.
#[track_caller]
fn all_was_seen(place: &Workplace) {
    let now = files(&place.out());
    for (name, _, _) in SINKS {
        let there: BTreeMap<_, _> = now
            .iter()
            .filter(|(file, _)| file.starts_with(name))
            .map(|(file, bytes)| (file.clone(), bytes.clone()))
            .collect();
        assert!(
            !there.is_empty() && there.values().all(|bytes| !bytes.is_empty()),
            "{name}: {:?}",
            now.keys()
        );
        for task in [format!("asks_{name}"), format!("after_{name}")] {
            let seen = files(&place.out().join("tasks").join(&task).join("output"));
            assert!(seen == there, "{task} has seen {:?}, and there is {:?}", seen.keys(), there.keys());
        }
    }
    assert_eq!(fs::read_to_string(place.out().join("lines.jsonl")).unwrap().lines().count(), 1);
    assert_eq!(fs::read_to_string(place.out().join("cells.csv")).unwrap().lines().count(), 2);
}

#[test]
fn a_command_after_a_sink_finds_all_of_its_records() {
    let place = place();
    place.run(&[]).must_exit(65).must_say(&["9 done, 1 failed", "14 tasks, 14 done"]);
    all_was_seen(&place);
    place.run(&[]).must_exit(65).must_say(&["nothing is left to do"]);
}

#[test]
fn a_run_that_is_killed_around_the_end_of_a_pipeline_gives_each_record_once_and_commands_see_it() {
    let Some((_folder, library)) = kill_at() else { return };
    for (file, moment) in [
        ("/table-00000.parquet", "before"),
        ("/table-00000.parquet", "named"),
        ("/packed-00000.tar", "named"),
        ("/rows-00000.parquet", "synced"),
    ] {
        let place = place();
        let killed = place.run_with(&[("LD_PRELOAD", &library), ("KILL_AT", moment), ("KILL_AT_NAME", file)]);
        assert_eq!(killed.status.code(), None, "{file}, {moment}: {}", killed.stderr);
        place.no_process_is_left();
        place.run(&[]).must_exit(65).must_say(&["14 tasks, 14 done"]);
        all_was_seen(&place);
    }
}

#[test]
fn a_command_after_a_sink_does_not_wait_for_other_pipelines() {
    let place = Workplace::with_gate(16);
    place.edit(
        "[devices]",
        "[sources.n]\nkind = \"range\"\nstop = 10\n[stages.total]\nkind = \"reduce\"\nfrom = \"n\"\nop = \"sum\"\n\
         [sinks.total]\nkind = \"parquet\"\nfrom = \"total\"\n\
         [tasks.look]\ncommand = \"cp {sinks.total.path} seen\"\n[devices]",
    );
    place.close_gate_after(0);
    let mut run = place.start(&[]);
    run.must_reach("the command has run", || place.path("seen").exists());
    assert_eq!(place.n_results(), 0, "the other pipeline waits at its gate");
    place.open_gate();
    run.wait().must_exit(0).must_say(&["26 done", "1 task, 1 done"]);
}

#[test]
fn a_command_after_a_sink_in_a_bucket_finds_its_parts_and_their_manifest() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::with_pictures(8);
    let list = "import boto3, os, sys; bucket, prefix = sys.argv[1].removeprefix('s3://').split('/')[:2]; \
                s3 = boto3.client('s3', endpoint_url=os.environ['AWS_ENDPOINT_URL'], region_name='us-east-1'); \
                print(*sorted(o['Key'] for o in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)['Contents']))";
    fs::write(place.path("list.py"), list).unwrap();
    let mut tables = "[stages.count]\nkind = \"reduce\"\nfrom = \"read\"\nop = \"count\"\n".to_owned();
    for (name, kind, from) in [
        ("total", "jsonl", "count"),
        ("rows", "parquet", "read"),
        ("packed", "tar", "read"),
        ("cells", "csv", "read"),
    ] {
        tables += &format!(
            "[sinks.{name}]\nkind = \"{kind}\"\nfrom = \"{from}\"\npath = \"s3://digits/{name}/\"\n\
             [tasks.see_{name}]\ncommand = {:?}\npass_env = [\"AWS_*\"]\n",
            [moto.program(), "list.py", &format!("{{sinks.{name}.path}}")]
        );
    }
    place.edit("[devices]", &(tables + "[devices]"));
    let run = place.start_with(&moto.variables());
    run.wait().must_exit(0).must_say(&["4 tasks, 4 done"]);
    for (name, kind) in [("total", "jsonl"), ("rows", "parquet"), ("packed", "tar"), ("cells", "csv")] {
        let log = place.out().join(format!("tasks/see_{name}/attempt-1.log"));
        let seen = fs::read_to_string(log).unwrap();
        let objects = [format!("{name}/_manifest.json"), format!("{name}/{name}-00000.{kind}")];
        assert!(objects.iter().all(|object| seen.contains(object)), "{seen}");
    }
}
