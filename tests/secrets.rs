//! Credentials of the run stay with it: its loaders of files, its workers, its commands and their keepers have none of them in their
//! environment, and a command gets those that its table names. Those of a store are tested beside it.

use std::fs;

use crate::common::Workplace;
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
    let mut run = place.start_with(&variables);
    let pid = run.pid();
    let is_there = || {
        place.waiting_at_gate() > 0
            && place.path("plain").exists()
            && place.path("named").exists()
            && !loaders_of(pid).is_empty()
    };
    run.must_reach("all kinds of processes are there", is_there);
    let environment = |pid: u32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    assert_eq!(secrets(&environment(pid), 0).len(), NAMES.len(), "the run has them");
    let passed =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_SAS_TOKEN"];
    let is_named =
        |process: &Process| process.arguments().iter().any(|argument| argument.contains("touch named"));
    // A process that has not begun its program yet still has the environment of its parent.
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    let is_each_apart = || {
        all = descendants(pid);
        let held = |process: &Process| secrets(&environment(process.pid), 0);
        let expected = |process: &Process| if is_named(process) { &passed[..] } else { &[] };
        wrong = all.iter().filter(|p| held(p) != expected(p)).map(|p| p.arguments()).collect();
        wrong.is_empty() && all.iter().filter(|p| is_named(p)).count() == 1
    };
    run.until("each process has the variables that it may have", is_each_apart);
    assert!(wrong.is_empty(), "{wrong:?}");
    let (loaders, workers) = (loaders_of(pid), workers_of(pid));
    println!("{} loaders, {} workers, {} processes", loaders.len(), workers.len(), all.len());
    assert!(!loaders.is_empty() && !workers.is_empty() && all.len() >= loaders.len() + workers.len() + 2);
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

/// Settings of libraries that engines load.
const TUNES: [&str; 4] = ["ORT_OF_A_TEST", "CUDNN_OF_A_TEST", "CUBLAS_OF_A_TEST", "TRT_OF_A_TEST"];

#[test]
fn what_tunes_the_libraries_of_an_engine_reaches_its_workers_and_no_loader() {
    let place = Workplace::with_gate(40);
    place.close_gate_after(8);
    let variables = TUNES.map(|name| (name, SECRET));
    let mut run = place.start_with(&variables);
    let pid = run.pid();
    let held = |process: &Process| {
        secrets(&fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default(), 0)
    };
    let mut all = TUNES.map(str::to_owned);
    all.sort();
    // One that starts has no environment for a moment.
    let is_there = || {
        let (loaders, workers) = (loaders_of(pid), workers_of(pid));
        place.waiting_at_gate() > 0 && !loaders.is_empty() && workers.iter().all(|worker| held(worker) == all)
    };
    run.must_reach("all workers have the variables", is_there);
    let loaders = loaders_of(pid);
    assert!(!loaders.is_empty() && loaders.iter().all(|loader| held(loader).is_empty()), "{loaders:?}");
    place.open_gate();
    run.signal(rustix::process::Signal::TERM);
    drop(run.wait());
    place.no_process_is_left();
}
