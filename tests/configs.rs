//! Every workflow file that we hand out is right: it is checked, planned for the machine that it is meant for, and run where this
//! machine can. Says nothing about the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{ORCHESTRA, Workplace, repository};
use orchestra_launch::{ProcessLauncher, StartOptions};
use orchestra_plan::{DeviceView, MachineView, PlanOptions, RealHost, RenderStyle, plan};

/// All of `configs/*.toml` and `examples/*/workflow.toml`.
fn handed_out() -> Vec<PathBuf> {
    let entries = |folder: &str| {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        entries.map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    let configs = entries("configs").into_iter().filter(|p| p.extension().is_some_and(|e| e == "toml"));
    // What fetches or trains its models, makes its data, reads from a server, needs numpy or a GPU, or is served, has a test of its own.
    let needs = [
        "fetch.py",
        "data.py",
        "serve.py",
        "client.py",
        "centre.py",
        "nearest.py",
        "worker.py",
        "vadd.cu",
        "train.py",
        "mlp.py",
    ];
    let alone = |folder: &Path| needs.iter().all(|file| !folder.join(file).exists());
    let examples = entries("examples").into_iter().filter(|p| alone(p));
    let examples = examples.map(|p| p.join("workflow.toml")).filter(|p| p.exists());
    let mut files: Vec<_> = configs.chain(examples).collect();
    files.sort();
    assert!(files.len() >= 7, "{files:?}");
    files
}

fn eight_gpus() -> MachineView {
    let gpu = |i: usize| DeviceView {
        name: format!("cuda:{i}"),
        uuid: format!("GPU-00000000-0000-0000-0000-{i:012}"),
        model: "a described GPU".into(),
        total: 80 << 30,
        free: 79 << 30,
        mps: true,
        node: None,
    };
    MachineView { cores: 96, memory: 512 << 30, devices: (0..8).map(gpu).collect(), ..MachineView::default() }
}

/// What is wrong with a workflow file on a machine; empty if it can be planned.
fn problems(text: &str, file: &Path, machine: MachineView, output: &Path) -> String {
    let options = PlanOptions { output: Some(output.to_owned()), ..PlanOptions::default() };
    let program = ProcessLauncher { program: ORCHESTRA.into(), args: vec!["worker".into()], env: Vec::new() };
    let start = StartOptions { launcher: Some(Arc::new(program)), ..StartOptions::default() };
    let RealHost { look, .. } = orchestra_launch::host(orchestra_launch::kinds(), machine.clone(), &start);
    let host = RealHost { look, ..RealHost::with_machine(orchestra_kinds::builtin(), machine) };
    let (plan, diagnostics) = plan(text, file, &options, &host);
    let text = diagnostics.render(RenderStyle::Plain);
    assert!(plan.is_some() || !text.is_empty(), "no plan, and no diagnostics");
    text
}

fn this_machine() -> MachineView {
    orchestra_launch::machine_view(&orchestra_launch::machine())
}

#[test]
fn every_file_passes_the_check_without_a_warning() {
    let place = Workplace::new();
    for file in handed_out() {
        let ended = place.command(&["check", "--offline", file.to_str().unwrap()]).exited(0);
        ended.must_print(&["no errors"]);
        // No loader is started, which would look into a file.
        let mut warnings = ended.stderr.lines().filter(|line| line.starts_with("warning"));
        assert!(warnings.all(|warning| warning.contains("was not looked into")), "{}", ended.stderr);
    }
}

#[test]
fn every_file_is_planned_without_a_warning_on_a_machine_with_eight_gpus() {
    let place = Workplace::new();
    for file in handed_out() {
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(problems(&text, &file, eight_gpus(), &place.out()), "", "{}", file.display());
    }
}

#[test]
fn every_file_that_fits_this_machine_runs_to_its_end() {
    let place = Workplace::new();
    let mut ran = Vec::new();
    for file in handed_out() {
        let text = fs::read_to_string(&file).unwrap();
        let fits = problems(&text, &file, this_machine(), &place.out()).is_empty();
        assert!(fits || text.contains("cuda:"), "`{}` needs no GPU, but does not fit", file.display());
        if !fits {
            continue;
        }
        let out = place.path(&format!("out-{}", ran.len()));
        place.command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()]).must_exit(0);
        place.nothing_is_left();
        ran.push(file);
    }
    println!("ran {ran:#?}");
    assert!(ran.len() >= 5, "{ran:?}");
}

/// The blocks of TOML in the README and in the guide that are whole workflow files, written as if they lay beside the README.
fn blocks_of_documents() -> Vec<String> {
    let mut all = Vec::new();
    for document in ["README.md", "docs/guide/workflow-file.md", "docs/guide/pipelines.md"] {
        let text = fs::read_to_string(repository().join(document)).unwrap();
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let blocks: Vec<_> = blocks.filter(|b| b.contains("version = 1")).map(str::to_owned).collect();
        assert!(!blocks.is_empty(), "{document} shows no workflow file");
        all.extend(blocks);
    }
    all
}

#[test]
fn every_workflow_in_the_documents_is_planned_and_runs() {
    let place = Workplace::new();
    // A folder that looks like the top of the repository, so that nothing is written there.
    let twin = place.path("twin");
    fs::create_dir(&twin).unwrap();
    for entry in fs::read_dir(repository()).unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), twin.join(entry.file_name())).unwrap();
    }
    for (i, text) in blocks_of_documents().into_iter().enumerate() {
        let file = twin.join(format!("document-{i}.toml"));
        fs::write(&file, &text).unwrap();
        assert_eq!(
            problems(&text, &file, eight_gpus(), &place.out()),
            "",
            "block {i} of the documents:\n{text}"
        );
        place.command(&["check", "--offline", file.to_str().unwrap()]).must_exit(0);
        if !problems(&text, &file, this_machine(), &place.out()).is_empty() {
            assert!(text.contains("cuda:"), "block {i} needs no GPU, but does not fit this machine");
            continue;
        }
        let out = place.path(&format!("out-of-document-{i}"));
        let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        place.command(&arguments).must_exit(0);
        place.nothing_is_left();
    }
}
