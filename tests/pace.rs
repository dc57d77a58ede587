//! What a run says of its pace: the stage that held the others up, and a setting that changes that when it is followed.

use std::fs;

use crate::common::{Workplace, npy, python};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

/// It computes for 10 ms.
const SLOW: &str = r#"
import time
import orchestra

@orchestra.stage(batch=1, outputs={"y": ("float32", [4])})
def slow(x):
    end = time.process_time() + 0.01
    while time.process_time() < end:
        pass
    return {"y": x}
"#;

#[test]
fn a_stage_with_too_few_workers_is_named_with_a_setting_that_gives_it_more() {
    let Some(python) = python() else { return };
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return; // There is nothing to give.
    }
    let place = Workplace::new();
    fs::write(place.path("x.npy"), npy("(250, 4)", (0..1000).map(|x| x as f32))).unwrap();
    fs::write(place.path("slow.py"), SLOW).unwrap();
    let keys = format!("script = \"slow.py\"\npython = {python:?}\nworkers = 1");
    let flow =
        WorkflowFile::new().source("x", "tensors", "paths = ['x.npy']").stage("y", "python", "x", keys);
    place.write(format!("{}\n", &*flow.results("y")));
    let told = place.run(&[]);
    told.must_exit(0).must_say(&["pace      set by `y`: its 1 worker was busy", "--set stages.y.workers="]);
    let (report, results) = (place.report(), place.lines("results.jsonl"));
    assert_eq!((&report["bottleneck"], &report["stages"]["y"]["workers"]), (&"inference".into(), &1.into()));
    let set = report["pace"]["set"][0].as_str().expect("a setting is named").to_owned();
    let told = place.run(&["--fresh", "--set", &set]);
    told.must_exit(0);
    assert!(!told.stderr.contains("--set stages.y.workers="), "the same again: {}", told.stderr);
    let followed = place.report();
    let workers = &followed["stages"]["y"]["workers"];
    assert_eq!(set, format!("stages.y.workers={workers}"));
    assert!(workers.as_u64() > Some(1), "{workers}");
    let by_item = |mut records: Vec<Value>| {
        records.sort_by_key(|record| record["index"].as_u64());
        records
    };
    assert_eq!(by_item(results), by_item(place.lines("results.jsonl")));
    let [before, after] = [&report, &followed].map(|report| report["seconds_items"].as_f64().unwrap());
    println!("{set}: {:.2} times as fast", before / after);
}
