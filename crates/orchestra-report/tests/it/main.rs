//! The page of a run, from output folders that are written by hand: what is in it, that no text becomes markup, and how large it is.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod trace;

use std::fs;
use std::path::Path;

use orchestra_launch::{MetricValues, TaskJournal};
use orchestra_report::{page, read};
use orchestra_store::{TaskEnded, TaskStarted};
use serde_json::{Value, json};
use tempfile::TempDir;

const SECTIONS: [&str; 13] = [
    "account", "pace", "timeline", "rates", "batches", "latency", "machine", "tasks", "failures", "results",
    "graph", "settings", "next",
];
const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)> \" onmouseover=alert(2) '`{{x}}\u{2028}<!--";
/// Seconds since 1970.
const BEGAN: f64 = 1.8e9;

/// A run of which every name and text is `name`.
struct Written<'a> {
    name: &'a str,
    starts: usize,
    statuses: usize,
    stages: usize,
    tasks: usize,
    failures: usize,
}

impl Written<'_> {
    fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        fs::create_dir(out.join(".orchestra")).unwrap();
        let mut lines: Vec<String> = Vec::new();
        let per_start = self.statuses / self.starts;
        for start in 0..self.starts {
            let at = BEGAN + start as f64 * 1000.0;
            lines.push(self.line(at, "start", json!({ "run_id": self.name, "workflow": self.name, "orchestra": "0.1.0", "plan": self.plan() })));
            lines.push(self.line(
                at,
                "worker_started",
                json!({ "worker": 1, "device": self.name, "stage": self.stage(0), "pid": 7 }),
            ));
            lines.push(self.line(at + 0.5, "worker_ready", json!({ "worker": 1, "seconds": 0.5 })));
            for n in 0..per_start {
                lines.push(self.line(at + 1.0 + n as f64, "status", self.status(start * per_start + n)));
            }
            lines.push(self.line(
                at + per_start as f64,
                "worker_ended",
                json!({ "worker": 1, "exit": format!("killed {}", self.name) }),
            ));
            lines.push("{\"at\":1, half a li".to_owned());
        }
        lines.push(self.line(BEGAN + 1e6, "end", json!({ "exit_code": 65 })));
        fs::write(out.join(".orchestra/history.jsonl"), lines.join("\n") + "\n").unwrap();
        let mut account = self.status(self.statuses);
        account["tasks"] = (0..self.tasks).map(|task| self.task(task)).collect();
        account["failures"] = json!([]);
        fs::write(out.join("run.json"), account.to_string()).unwrap();
        let failure = |n: usize| {
            let error = format!("{} cause {}", self.name, "x".repeat(n % 700));
            json!({ "item": self.name, "index": n, "source": self.name, "stage": self.name, "kind": "decode", "error": error }).to_string()
        };
        fs::write(
            out.join("failures.jsonl"),
            (0..self.failures).map(failure).collect::<Vec<_>>().join("\n") + "\n",
        )
        .unwrap();
        let record = json!({ "item": self.name, "index": 0, "source": self.name, "result": [{ "label": self.name, "score": 0.5, "box": [1, 2, 3, 4] }] });
        fs::write(out.join("results.jsonl"), format!("{record}\n{record}\n")).unwrap();
        fs::write(
            out.join(".orchestra/command.json"),
            json!({ "folder": self.name, "arguments": ["run", self.name] }).to_string(),
        )
        .unwrap();
        self.write_tasks(out);
        folder
    }

    fn line(&self, at: f64, what: &str, mut fields: Value) -> String {
        fields["at"] = at.into();
        fields["what"] = what.into();
        fields["machine"] =
            json!({ "cpu_seconds": at - BEGAN, "memory_used": 1_u64 << 30, "memory_total": 1_u64 << 32 });
        fields.to_string()
    }

    fn stage(&self, at: usize) -> String {
        format!("{}{at}", self.name)
    }

    fn plan(&self) -> Value {
        let node = |at| json!({ "shape": "batch", "kind": self.name, "name": self.stage(at), "details": [self.name], "devices": [self.name] });
        let edge = |at| json!({ "from": at - 1, "to": at, "tensors": [self.name] });
        let nodes: Vec<Value> = (0..self.stages).map(node).collect();
        let edges: Vec<Value> = (1..self.stages).map(edge).collect();
        json!({
            "file": self.name, "pipelines": [{ "name": self.name, "nodes": nodes, "edges": edges }], "reasons": [self.name], "cores": 2,
            "engine": self.name, "task_limits": { self.name: { "seconds": 60.0, "memory": 1 << 30 } },
        })
    }

    fn status(&self, n: usize) -> Value {
        let batches = json!({ "sizes": [0, n], "reasons": { self.name: n }, "queue_times": [n], "run_times": [0, n, 1], "slots_in_use": 2 });
        let stage = json!({ "in": n, "out": n, "failed": 0, "seconds_busy": n as f64 * 0.7, "workers": 1, "batches": batches });
        let stages: Value = (0..self.stages).map(|at| (self.stage(at), stage.clone())).collect();
        json!({
            "version": 1, "workflow": self.name, "run_id": self.name, "started": "2026-01-01T00:00:00Z", "seconds": n, "seconds_items": n,
            "exit_code": 65, "complete": true, "items_per_second": 3.5, "bottleneck": "inference",
            "pace": { "stage": self.name, "workers": 1, "busy": 0.9, "cores_idle": 0.5, "set": [self.name] },
            "items": { "read": n, "done": n, "failed": self.failures, "total": 2 * n, "listed": 2 * n, "extent": "known", "resumed": 0, "in_flight": 3 },
            "sources": { self.name: 2 * n }, "passed_over": { self.name: { self.name: 3 } }, "left_out": [],
            "stages": stages, "pipelines": { self.name: { "end": self.name } },
            "devices": [{ "device": self.name, "workers": 1, "seconds_busy": n as f64 * 0.7, "restarts": 1, "utilization": 0.5, "memory_used": 1, "power_watts": 70.0, "lost": self.name }],
            "loaders": { "seconds_loading": n, "seconds_waiting_for_row": 1.0, "seconds_waiting_for_sinks": 0.0, "restarts": 1 },
            "outputs": [{ "sink": self.name, "kind": self.name, "path": "results.jsonl", "sources": [self.name], "records": "one" }],
        })
    }

    fn task_id(&self, task: usize) -> String {
        format!("{}[{task}]", self.name)
    }

    fn log(task: usize) -> String {
        format!("tasks/{task}/attempt-1.log")
    }

    fn task(&self, task: usize) -> Value {
        let values = json!({ "count": 3, "last": 0.5, "min": 0.25, "max": 1.0 });
        json!({
            "task": self.task_id(task), "state": "failed", "before": false, "attempts": 1, "seconds": 1.0, "place": self.name, "peak_memory": 1,
            "gpu_memory": 0, "end": "code", "why": self.name, "log": Self::log(task), "metrics": { self.name: values },
            "best": if task == 0 { vec![self.name] } else { vec![] },
        })
    }

    fn write_tasks(&self, out: &Path) {
        let mut journal = TaskJournal::open(out).unwrap();
        for task in 0..self.tasks {
            let (digest, place) = ([0; 32], self.name.to_owned());
            let started = TaskStarted { task: self.task_id(task), attempt: 1, digest, place, before: None };
            let values = MetricValues { count: 3, last: 0.5, min: 0.25, max: 1.0 };
            let ended = TaskEnded {
                started,
                at: (BEGAN * 1e6) as u64 + task as u64 * 1000,
                class: "code".into(),
                why: self.name.repeat(20),
                milliseconds: 5,
                peak_memory: 1 << 20,
                gpu_memory: 0,
                outputs: [0; 32],
                metrics: [(self.name.to_owned(), values)].into(),
            };
            journal.ended(ended).unwrap();
            if task < 200 {
                let curve = out.join(Self::log(task)).with_extension("metrics.jsonl");
                fs::create_dir_all(curve.parent().unwrap()).unwrap();
                let step = |step: usize| {
                    json!({ "step": step, "time_s": 0.5, self.name: 1.0 / (step + 1) as f64 }).to_string()
                };
                fs::write(curve, (0..1000).map(step).collect::<Vec<_>>().join("\n")).unwrap();
            }
        }
    }
}

const SMALL: Written<'static> =
    Written { name: "plain", starts: 1, statuses: 10, stages: 3, tasks: 3, failures: 2 };

#[test]
fn every_section_is_there_in_its_order_and_what_is_missing_is_named() {
    let folder = SMALL.write();
    let whole = page(&read(folder.path()).unwrap());
    let places = SECTIONS
        .map(|id| whole.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(!whole.contains("Not shown, because"));
    for claim in ["2 failed", "killed plain", "plain[0] ★", "orchestra retry", "plain of plain"] {
        assert!(whole.contains(claim), "{claim}");
    }

    let folder = Written { stages: 0, tasks: 0, failures: 0, ..SMALL }.write();
    let less = page(&read(folder.path()).unwrap());
    for id in ["tasks", "failures", "graph", "pace", "latency"] {
        assert!(!less.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    assert!(less.contains("Not shown, because this run has nothing for them: What set the pace, Batches, Latency, Tasks, Failures, The graph."));
}

#[test]
fn no_text_of_a_run_becomes_markup_or_script() {
    let folder = Written { name: HOSTILE, ..SMALL }.write();
    let whole = page(&read(folder.path()).unwrap());
    let plain = page(&read(SMALL.write().path()).unwrap());
    for tag in ["<script", "</script", "<img", "<!--"] {
        assert_eq!(whole.matches(tag).count(), plain.matches(tag).count(), "{tag}");
    }
    // Within texts of JSON a quote has a backslash before it.
    let ends_of_attributes =
        whole.matches("\" onmouseover").count() - whole.matches("\\\" onmouseover").count();
    assert_eq!(ends_of_attributes, 0);
    assert!(whole.contains("&lt;script&gt;alert(1)"), "it is told as what it is");
    let policy = whole.split("content=\"default-src 'none'").nth(1).unwrap();
    assert!(!policy.split('"').next().unwrap().contains("unsafe"), "no script but those of the page runs");
}

#[test]
fn a_page_of_ten_thousand_tasks_is_at_most_a_megabyte() {
    let name = "a name of usual length";
    let folder =
        Written { name, starts: 4, statuses: 512, stages: 12, tasks: 10_000, failures: 3000 }.write();
    let whole = page(&read(folder.path()).unwrap());
    assert!(whole.len() <= 1_000_000, "{} bytes", whole.len());
    assert!(
        whole.contains("Of 10000 attempts at tasks, 8800 are left out of the table"),
        "what is left out is said"
    );
}

#[test]
fn a_run_that_was_killed_shows_all_its_starts_and_one_without_an_account_is_shown() {
    let folder = Written { starts: 5, statuses: 50, ..SMALL }.write();
    let whole = page(&read(folder.path()).unwrap());
    assert!(whole.contains("in 5 starts"));
    assert_eq!(whole.matches("the one before was killed").count(), 2 * 4, "a mark and a line for each");
    fs::remove_file(folder.path().join("run.json")).unwrap();
    let history = folder.path().join(".orchestra/history.jsonl");
    let text = fs::read_to_string(&history).unwrap();
    fs::write(
        &history,
        text.lines()
            .filter(|line| !line.contains("\"what\":\"end\""))
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    )
    .unwrap();
    assert!(page(&read(folder.path()).unwrap()).contains("it is still running, or it was killed"));
}

#[test]
fn a_folder_without_a_run_is_refused_with_what_to_name() {
    let folder = tempfile::tempdir().unwrap();
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("holds no run") && error.contains("--output"), "{error}");
}
