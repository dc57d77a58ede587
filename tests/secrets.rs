//! Credentials of the run stay with it: its loaders of files, its workers, its commands and their keepers have none of them in their
//! environment, and a command gets those that its table names. Those of a store are tested beside it.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs;

use common::Workplace;
use orchestra_machine::processes::{Process, children};
use orchestra_testkit::striker::{loaders_of, workers_of};

const SECRET: &str = "a-key-to-everything";

const NAMES: [&str; 14] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "SERVICE_ACCOUNT",
    "AZURITE_BLOB_STORAGE_URL",
    "MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
];

/// Two commands that are there until the pipe `go` is opened, and say which variables they have.
const COMMANDS: &str = "
[tasks.plain]
command = \"env > {output}/env; touch plain; read x < go\"
[tasks.named]
command = \"env > {output}/env; touch named; read x < go\"
pass_env = [\"AWS_*\", \"AZURE_STORAGE_SAS_TOKEN\"]
[telemetry]
";

fn descendants(pid: u32) -> Vec<Process> {
    let below = |child: Process| [descendants(child.pid), vec![child]].concat();
    children(pid).into_iter().flat_map(below).collect()
}

/// The names of variables in an environment that hold the secret, sorted.
fn secrets(environment: &[u8], separator: u8) -> Vec<String> {
    let entries = environment.split(|byte| *byte == separator).map(String::from_utf8_lossy);
    let held = entries.filter(|entry| entry.contains(SECRET));
    let mut names: Vec<_> = held.map(|entry| entry.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn no_process_of_a_run_over_files_has_its_credentials_but_for_commands_that_name_them() {
    let place = Workplace::with_gate(40);
    place.edit("[telemetry]\n", COMMANDS);
    place.edit("use = [\"cpu\", \"cpu\"]", "use = [\"cpu\", \"cpu\"]\nslots = 2");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.path("go"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    place.close_gate_after(8);
    let value = format!("authorization={SECRET}");
    let variables: Vec<(&str, &str)> = NAMES.iter().map(|name| (*name, &*value)).collect();
    let workflow = place.workflow();
    let mut run = place.start_command_with(&["run", workflow.to_str().unwrap()], &variables);
    let pid = run.pid();
    let is_there = || {
        place.waiting_at_gate() > 0
            && place.path("plain").exists()
            && place.path("named").exists()
            && !loaders_of(pid).is_empty()
    };
    assert!(run.until("all kinds of processes are there", is_there), "{}", run.said());
    let environment = |pid: u32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    assert_eq!(secrets(&environment(pid), 0).len(), NAMES.len(), "the run has them");
    let (loaders, workers, all) = (loaders_of(pid), workers_of(pid), descendants(pid));
    println!("{} loaders, {} workers, {} processes", loaders.len(), workers.len(), all.len());
    assert!(!loaders.is_empty() && !workers.is_empty() && all.len() >= loaders.len() + workers.len() + 2);
    let passed =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_SAS_TOKEN"];
    let mut n_named = 0;
    for process in &all {
        let held = secrets(&environment(process.pid), 0);
        let is_named = process.arguments.iter().any(|argument| argument.contains("touch named"));
        n_named += usize::from(is_named);
        let expected = if is_named { &passed[..] } else { &[] };
        assert_eq!(held, expected, "{:?}", process.arguments);
    }
    assert_eq!(n_named, 1, "{all:?}");
    place.open_gate();
    // Each of the commands takes a line.
    fs::write(place.path("go"), "\n\n").unwrap();
    run.signal(rustix::process::Signal::TERM);
    drop(run.wait());
    for (task, expected) in [("plain", &[][..]), ("named", &passed[..])] {
        let env = fs::read(place.out().join(format!("tasks/{task}/output/env"))).unwrap();
        assert_eq!(secrets(&env, b'\n'), expected, "{task}");
    }
    // Nor is it written anywhere else.
    for file in fs::read_dir(place.out().join("logs")).unwrap() {
        assert!(!fs::read_to_string(file.unwrap().path()).unwrap_or_default().contains(SECRET));
    }
    place.no_process_is_left();
}
