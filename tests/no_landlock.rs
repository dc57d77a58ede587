//! A kernel without Landlock: `sandbox = "require"` ends the run with 69 and names what is missing, `"auto"` goes on and says once what stays open, and
//! `orchestra doctor` says it, too. The kernel runs as a program (User-mode Linux), of which no configuration has Landlock.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;

use crate::common::{Blocks, Workplace, write_pictures};
use crate::uml::{Booted, boot};
use orchestra_onnx::library::{self, Env, Flavor, LibraryRequest};
use orchestra_testkit::records::{Records, items};
use orchestra_testkit::workflow_file::WorkflowFile;

const ITEMS: u64 = 20;
const MISSING: &str = "Landlock: files and sockets stay open to loaders and workers";
const SAYS: &str = "are not confined as far as they could be";

/// Loaders alone: no model runs on that kernel.
fn workflow() -> WorkflowFile {
    let flow = WorkflowFile::of_pictures("scans").gray("pixels", "scans", [8, 8], "").results("pixels");
    flow.table("limits", "loaders = 2")
}

/// All lines of the log of a run in which this stands.
fn logged(booted: &Booted, run: &str, words: &str) -> Vec<String> {
    let files = fs::read_dir(booted.folder().join(run).join("logs")).unwrap();
    let text: String = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}

#[test]
fn a_kernel_without_landlock_is_named_and_refused_where_a_sandbox_is_required() {
    let place = Workplace::with_blocks(&Blocks { devices: 1, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    let of_a_model = place.path("model.toml");
    fs::rename(place.workflow(), &of_a_model).unwrap();
    place.write(workflow());
    let workflow = place.workflow();
    // That kernel has no network to fetch it by. The worker does not come to load it.
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: true };
    let library = library::find(&request, &Env::from_process()).0.unwrap().path;
    let script = format!(
        "export ORT_DYLIB_PATH='{library}'
$orchestra doctor > doctor 2>&1
run() {{
    name=$1; shift
    mkdir /run/$name
    $orchestra run \"$@\" --output /run/$name > said-$name 2>&1
    echo $? > code-$name
    cp -r /run/$name .
}}
run auto '{workflow}'
run off '{workflow}' --set limits.sandbox=off
run require '{workflow}' --set limits.sandbox=require
run model '{of_a_model}' --set limits.sandbox=off --set models.blocks.sandbox=require",
        workflow = workflow.display(),
        of_a_model = of_a_model.display(),
        library = library.display()
    );
    let Some(booted) = boot(&place, "1500M", 900, &[], &script) else { return };

    let doctor = booted.kept("doctor");
    assert!(doctor.contains(SAYS) && doctor.contains(&format!("no {MISSING}")), "{doctor}");

    let all = items("scans", 0..ITEMS);
    for (run, times) in [("auto", 1), ("off", 0)] {
        let said = booted.kept(&format!("said-{run}"));
        assert_eq!(booted.kept(&format!("code-{run}")).trim(), "0", "{run}: {said}");
        let records = Records::read(&booted.folder().join(run), &["results.jsonl"]).unwrap();
        records.must_be(1, &all, &BTreeSet::new()).unwrap();
        let lines = logged(&booted, run, SAYS);
        assert_eq!(lines.len(), times, "{run}: {lines:?}");
        assert!(lines.iter().all(|line| line.contains("loaders are") && line.contains(MISSING)), "{lines:?}");
    }
    for run in ["require", "model"] {
        let said = booted.kept(&format!("said-{run}"));
        assert_eq!(booted.kept(&format!("code-{run}")).trim(), "69", "{run}: {said}");
        for words in
            ["cannot be confined: the kernel has no Landlock", "`orchestra doctor`", "sandbox = \"off\""]
        {
            assert!(said.contains(words), "{run}: nothing is said of `{words}`: {said}");
        }
        let records = Records::read(&booted.folder().join(run), &["results.jsonl"]).unwrap();
        records.must_be(1, &BTreeSet::new(), &BTreeSet::new()).unwrap();
    }
}
