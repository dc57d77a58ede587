//! `memory` of commands where the run has a control group of its own (cgroup v2), on a kernel that has the controller: one that runs as a program
//! (User-mode Linux) over the files of this machine, since a test may not take that of the machine.
#![cfg(target_arch = "x86_64")]

use crate::common::Workplace;
use crate::uml::boot;
use serde_json::Value;

/// Each process of `two` has less than its limit, both together have more.
const WORKFLOW: &str = r#"
version = 1
[devices]
slots = 2

[tasks.two]
command = '''
python3 -c "import time; x = bytearray(40 << 20); time.sleep(1000)" & a=$!
python3 -c "import time; x = bytearray(40 << 20); time.sleep(1000)" & b=$!
wait $a; wait $b'''
memory = "64MB"
timeout = "4m"

[tasks.one]
command = ["python3", "-c", "x = bytearray(40 << 20)"]
memory = "64MB"

[tasks.large]
command = ["python3", "-c", "x = bytearray(200 << 20)"]
memory = "64MB"
"#;

#[test]
fn processes_of_a_command_that_have_too_much_memory_together_are_ended_by_its_group() {
    let place = Workplace::of(WORKFLOW);
    // The run is the only process of its group.
    let script = format!(
        "in_group $orchestra doctor > doctor 2>&1
mkdir /run/out
in_group $orchestra run '{}' -q --output /run/out > said 2>&1
echo $? > code
cp /run/out/run.json report
find $group -mindepth 1 -type d > groups",
        place.workflow().display()
    );
    let Some(booted) = boot(&place, "1500M", 300, &["python3"], &script) else { return };
    let kept = |name: &str| booted.kept(name);

    let doctor = kept("doctor");
    assert!(doctor.contains("`memory` bounds all processes of a command together (cgroup v2)"), "{doctor}");
    assert_eq!(kept("code").trim(), "65", "{}", kept("said"));
    let report: Value = serde_json::from_str(&kept("report")).unwrap();
    let task = |name: &str| report["tasks"].as_array().unwrap().iter().find(|t| t["task"] == name).unwrap();
    for (name, end, attempts) in
        [("two", "out_of_memory", 1), ("one", "done", 1), ("large", "out_of_memory", 1)]
    {
        let task = task(name);
        assert_eq!((task["end"].as_str(), task["attempts"].as_u64()), (Some(end), Some(attempts)), "{task}");
        // What the group has counted, of both processes of `two`.
        let peak = task["peak_memory"].as_u64().unwrap();
        let least = if end == "done" { 40 << 20 } else { 60_000_000 };
        assert!((least..=64_000_000).contains(&peak), "{task}");
    }
    // The run has one for itself, those of commands are gone.
    assert!(kept("groups").lines().all(|group| group.ends_with("/run/orchestra")), "{}", kept("groups"));
}
