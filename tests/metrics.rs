//! The metrics of a run: the page while the run goes on, which Prometheus' own check accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use crate::common::page::{get, page, page_address, sum};
use crate::common::{Run, Workplace, until};
use orchestra_telemetry::metrics::{InstrumentKind, names};
use orchestra_testkit::skip::has_programs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Metrics that only a machine with a GPU has.
const OF_GPUS: [&str; 4] = [
    "orchestra.device.utilization",
    "orchestra.device.memory",
    "orchestra.device.power",
    "orchestra.device.temperature",
];
/// Metrics that only a file with tasks has.
const OF_TASKS: [&str; 3] = ["orchestra.tasks", "orchestra.task.attempts", "orchestra.task.metric"];

/// A run with a page of metrics that does some of its items and stands still until the gate is opened.
fn long_run(items: u64, more: &[&str]) -> (Workplace, Run, SocketAddr) {
    let place = Workplace::with_gate(items);
    place.edit("threads = 1\n", "threads = 1\nworkers = 1\n");
    place.close_gate_after(100);
    let mut arguments = vec!["--metrics", "127.0.0.1:0", "--set", "limits.batch_timeout=1h"];
    arguments.extend(more);
    let mut run = place.start(&arguments);
    let address = page_address(&mut run);
    (place, run, address)
}

/// Whatever a series of this metric is called on the page.
fn names_on_the_page(instrument: &names::Instrument) -> Vec<String> {
    let name = instrument.prometheus_name();
    match instrument.kind {
        InstrumentKind::Histogram => {
            ["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")).to_vec()
        }
        InstrumentKind::Counter | InstrumentKind::Gauge => vec![name],
    }
}

fn expected() -> impl Iterator<Item = &'static names::Instrument> {
    let is_there = |i: &&names::Instrument| !OF_GPUS.contains(&i.name) && !OF_TASKS.contains(&i.name);
    names::ALL.iter().copied().filter(is_there)
}

#[test]
fn the_page_shows_a_run_while_it_goes_on() {
    // An address without a collector: then there are metrics of spans, too.
    let (place, mut run, address) = long_run(3_000, &["--otlp", "http://127.0.0.1:9"]);
    let mut last = BTreeMap::new();
    // One device may be far ahead of the other, whose worker still loads.
    run.must_reach("both devices are at work", || {
        last = page(address);
        let serves = |device: &str| {
            let workers = format!("orchestra_workers{{device=\"{device}\",state=\"serving\"}}");
            last.get(&workers).is_some_and(|n| *n >= 1.0)
        };
        sum(&last, "orchestra_items_done_total") >= 40.0
            && sum(&last, "orchestra_worker_memory_bytes") > 0.0
            && ["cpu", "cpu:1"].into_iter().all(serves)
    });
    for instrument in expected() {
        for name in names_on_the_page(instrument) {
            assert!(last.keys().any(|series| series.split('{').next() == Some(&name)), "{name} is missing");
        }
    }
    assert_eq!(last["orchestra_items{pipeline=\"scans\"}"], 3_000.0);
    assert_eq!(last["orchestra_run_info{workflow=\"blocks\"}"], 1.0);
    let started = sum(&last, "orchestra_items_started_total");
    let done = sum(&last, "orchestra_items_done_total");
    assert!((done..=3_000.0).contains(&started), "{done} of {started}");
    assert!(sum(&last, "orchestra_items_in_flight") > 0.0);
    assert!(sum(&last, "orchestra_read_bytes_total") > 100.0 * done);
    assert!(sum(&last, "orchestra_batch_run_time_seconds_sum") > 0.0);
    assert_eq!(get(address, "/").unwrap().0, 200);
    assert_eq!(get(address, "/nothing").unwrap().0, 404);
    promtool_has_nothing_against(&get(address, "/metrics").unwrap().1);
    let later = page(address);
    // Each sent batch has a size; a page may be made between the two.
    let both = ["orchestra_batches_total", "orchestra_batch_size_count"];
    for (one, other) in [(both[0], both[1]), (both[1], both[0])] {
        assert!(sum(&last, one) <= sum(&later, other), "{one} is ahead of {other}");
    }
    for (name, value) in &last {
        if name.split('{').next().unwrap().ends_with("_total") {
            assert!(later[name] >= *value, "{name} went back");
        }
    }
    run.signal(Signal::INT);
    run.must_say("stopping: finishing what is in flight");
    place.open_gate();
    run.wait().must_exit(130);
    assert!(get(address, "/metrics").is_none(), "the page ends with the process");
    place.nothing_is_left();
}

/// Prometheus' own check of a page, where it is installed.
#[track_caller]
pub fn promtool_has_nothing_against(page: &str) {
    if !has_programs(&["promtool"], "apt-get install prometheus") {
        return;
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && complaints.trim().is_empty(), "promtool: {complaints}");
}

#[test]
fn a_port_that_is_taken_is_an_error_before_anything_is_begun() {
    let place = Workplace::with_pictures(4);
    let taken = TcpListener::bind("127.0.0.3:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    place
        .run(&["--metrics", &address])
        .must_exit(75)
        .must_say(&[&format!("`{address}`"), "another program listens there"]);
    assert!(!place.out().exists(), "nothing was begun");
    place.run(&["--metrics", "nowhere"]).must_exit(2).must_say(&["`nowhere`", "HOST:PORT"]);
    drop(taken);
    place
        .run(&["--metrics", &address])
        .must_exit(0)
        .must_say(&[&format!("metrics at http://{address}/metrics")]);
    place.holds_exactly(4);
    let ended = place.run(&["--fresh", "--metrics", "0.0.0.0:0"]);
    ended.must_exit(0).must_say(&["/metrics, which other machines can read"]);
}

#[test]
fn workers_that_die_again_and_again_add_no_series() {
    let (_place, mut run, address) = long_run(3_000, &[]);
    let exits = |page: &BTreeMap<String, f64>| sum(page, "orchestra_worker_exits_total");
    run.must_reach("work is done", || sum(&page(address), "orchestra_device_batches_total") > 0.0);
    let before = page(address);
    for deaths in 1..=6 {
        let mut victim = None;
        until("a worker lives", || {
            victim = run.workers().first().copied();
            victim.is_some()
        });
        // It may have ended by itself.
        let _ = kill_process(Pid::from_raw(i32::try_from(victim.unwrap()).unwrap()).unwrap(), Signal::KILL);
        run.must_reach("the death is counted", || exits(&page(address)) >= f64::from(deaths));
    }
    let after = page(address);
    let names = |page: &BTreeMap<String, f64>| page.keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(names(&before), names(&after));
    assert!(after["orchestra_worker_exits_total{device=\"cpu\",exit=\"killed\"}"] >= 1.0);
    assert!(sum(&after, "orchestra_worker_restarts_total") >= 1.0);
}

#[test]
fn tasks_are_counted_by_where_they_stand_and_a_slot_has_the_last_values_of_its_command() {
    let place = Workplace::new();
    fs::write(
        place.workflow(),
        "version = 1\n[devices]\nslots = 1\n\
         [tasks.train]\ncommand = 'echo loss=0.5; echo \"loss=0.25 acc=0.9\"; while ! test -e go; do sleep 0.05; done'\nmatrix = { n = [1, 2] }\n\
         metrics = [{ name = \"loss\", regex = \"loss=([0-9.]+)\" }, { name = \"acc\", regex = \"acc=([0-9.]+)\" }]\n\
         [tasks.fails]\ncommand = \"exit 3\"\n[tasks.later]\ncommand = \"true\"\nafter = \"fails\"\n",
    )
    .unwrap();
    let mut run = place.start(&["--metrics", "127.0.0.1:0"]);
    let address = page_address(&mut run);
    let mut last = BTreeMap::new();
    let of_slot =
        |metric: &str| format!("orchestra_task_metric{{table=\"train\",slot=\"0\",metric=\"{metric}\"}}");
    run.must_reach("the last values are there", || {
        last = page(address);
        last.get(&of_slot("loss")) == Some(&0.25)
    });
    assert_eq!(last[&of_slot("acc")], 0.9);
    for (state, n) in [("running", 1.0), ("waiting", 3.0), ("done", 0.0)] {
        assert_eq!(last[&format!("orchestra_tasks{{state=\"{state}\"}}")], n, "{state}");
    }
    fs::write(place.path("go"), "").unwrap();
    run.wait().must_exit(65);
}

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/grafana/orchestra.json");

#[test]
fn the_document_names_every_metric_with_its_kind_unit_and_labels_and_no_other() {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    // | `name` | kind | unit | labels | meaning |
    let rows = text.lines().filter(|l| l.starts_with("| `orchestra_"));
    let documented: BTreeMap<String, Vec<String>> = rows
        .map(|row| {
            let cells: Vec<String> = row.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect();
            assert!(!cells[4].is_empty(), "{row}");
            (cells[0].trim_matches('`').to_owned(), cells[1..4].to_vec())
        })
        .collect();
    let known: BTreeMap<String, Vec<String>> = names::ALL
        .iter()
        .map(|i| {
            let labels: Vec<String> = i.labels.iter().map(|l| format!("`{l}`")).collect();
            let unit = match i.unit {
                "" => String::new(),
                unit => format!("`{unit}`"),
            };
            let row = vec![i.kind.as_str().to_owned(), unit, labels.join(", ")];
            (i.prometheus_name(), row)
        })
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn the_dashboard_shows_only_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(DASHBOARD).unwrap()).unwrap();
    let known: BTreeSet<String> = names::ALL.iter().flat_map(|i| names_on_the_page(i)).collect();
    let mut named = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for target in panels.iter().flat_map(|p| p["targets"].as_array().into_iter().flatten()) {
        let query = target["expr"].as_str().unwrap();
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: Vec<String> = words.filter(|w| w.starts_with("orchestra_")).map(str::to_owned).collect();
        assert!(!metrics.is_empty(), "{query}");
        named.extend(metrics);
    }
    let unknown: Vec<&String> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "the dashboard shows {unknown:?}, which no run has");
    assert!(named.len() >= 20, "it shows {} metrics", named.len());
}
