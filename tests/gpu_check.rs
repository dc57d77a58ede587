//! The scripts that check a machine with a GPU, as far as they go without one: what they would run, and how a kit travels.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{ORCHESTRA, copy_folder, gpu, python, repository};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_onnx::library::{self, Env, Flavor, Request};
use orchestra_testkit::images::{Kind, write_picture};
use orchestra_testkit::models::spec;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use serde_json::Value;

/// No message may be larger where kits are sent from one machine to the other.
const MOST_MIB: u64 = 60;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

fn ran(command: &mut Command) -> Option<Output> {
    let program = command.get_program().to_owned();
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            let missing = format!("`{}` does not start: {error}", program.to_string_lossy());
            orchestra_testkit::skip::skip(&missing, "install it");
            None
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a dry run shows.
fn dry_run(device: &str, set: &str) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let kit = folder.path().join("kit");
    fs::create_dir(&kit).unwrap();
    let shown = dry_run_of(&kit, device, set);
    assert!(fs::read_dir(&kit).unwrap().next().is_none(), "it left something behind");
    shown
}

fn dry_run_of(kit: &Path, device: &str, set: &str) -> Option<Vec<String>> {
    let script = scripts().join("gpu-check.sh");
    let mut check = Command::new("bash");
    check.arg(script).args(["--dry-run", "--device", device, "--set", set, "--kit"]).arg(kit);
    let shown = ran(check.current_dir(kit))?;
    assert!(shown.status.success(), "{}", said(&shown));
    Some(String::from_utf8(shown.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn a_dry_run_shows_the_commands_of_both_sets_and_runs_none() {
    let sets = [("first", "chaos OUT/work/storm.toml"), ("rest", "OUT/work/memory-out.toml")];
    for (set, of_this) in sets {
        let [Some(twin), Some(gpu)] = ["cpu", "cuda:0"].map(|device| dry_run(device, set)) else { return };
        for shown in [&twin, &gpu] {
            assert!(shown.iter().any(|command| command.contains(of_this)), "{set}: {shown:#?}");
            let bench = shown.iter().filter(|command| command.starts_with("orchestra bench"));
            assert!(bench.count() >= 4, "{set}: {shown:#?}");
            // Whether or not this machine has the packages that it needs.
            let queue = shown.iter().any(|command| command.contains("pycuda-queue/workflow.toml"));
            assert_eq!(queue, set == "first", "{set}: {shown:#?}");
        }
        // Whatever processes are called here.
        let found_out = gpu.iter().any(|command| command.contains("OUT/work/found-out.toml"));
        assert_eq!(found_out, set == "first", "{set}: {gpu:#?}");
        let asks = |shown: &[String]| shown.iter().any(|command| command.starts_with("nvidia-smi"));
        assert!(asks(&gpu), "{set}: {gpu:#?}");
        // What only a GPU can do comes on top of what the twin runs.
        assert!(gpu.len() > twin.len(), "{set}: {} and {} commands", gpu.len(), twin.len());
    }
    let [Some(all), Some(first), Some(rest)] = ["all", "first", "rest"].map(|set| dry_run("cuda:0", set))
    else {
        return;
    };
    let missing: Vec<&String> = first.iter().chain(&rest).filter(|command| !all.contains(command)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_dry_run_says_what_has_to_be_carried_and_how_large_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    ["kit", "parts"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    let carried = || -> Option<Vec<String>> {
        let shown = dry_run_of(&at("kit"), "cuda:0", "first")?;
        Some(shown.into_iter().filter(|line| line.starts_with("# carry")).collect())
    };
    let Some(none) = carried() else { return };
    assert!(none.len() == 1 && none[0].contains("scripts/gpu-pack.sh"), "{none:#?}");
    for (file, mib) in [("kit.tar.gz.000", 3), ("kit.tar.gz.001", 1), ("SHA256SUMS", 0)] {
        fs::write(at("parts").join(file), vec![0; mib << 20]).unwrap();
    }
    let parts = carried().unwrap();
    assert!(parts.contains(&"# carry parts/kit.tar.gz.000, 3.0 MiB".to_owned()), "{parts:#?}");
    assert_eq!(parts.last().unwrap(), "# carry 3 files of parts, at most 3.0 MiB each, 4.0 MiB in all");
}

#[test]
fn a_kit_travels_in_parts_that_are_small_enough_and_is_put_together_whole_or_not_at_all() {
    let pack = fs::read_to_string(scripts().join("gpu-pack.sh")).unwrap();
    let default = pack.split_once("part_mib=").unwrap().1.split_whitespace().next().unwrap();
    assert!(default.parse::<u64>().unwrap() < MOST_MIB, "{default}");

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // As gpu-pack.sh does it, with parts of a kilobyte.
    let made = r#"
        set -e
        mkdir -p source parts
        head -c 5000 /dev/urandom >source/orchestra
        (cd source && sha256sum orchestra >SHA256SUMS)
        tar -C source -c . | gzip -3 | split -b 1k -d -a 3 - parts/kit.tar.gz.
        (cd parts && sha256sum kit.tar.* >SHA256SUMS)
    "#;
    let Some(made) = ran(Command::new("bash").args(["-c", made]).current_dir(folder.path())) else { return };
    assert!(made.status.success(), "{}", said(&made));
    let join = || {
        let mut join = Command::new("bash");
        join.arg(scripts().join("gpu-check.sh")).arg("--join").args([at("parts"), at("kit")]);
        ran(&mut join)
    };
    let Some(joined) = join() else { return };
    assert!(joined.status.success(), "{}", said(&joined));
    let contents = |name: &str| fs::read(at(name)).unwrap();
    assert_eq!(contents("kit/orchestra"), contents("source/orchestra"));
    // A part that was damaged on the way: the kit that is there stays.
    fs::write(at("parts/kit.tar.gz.001"), b"damaged").unwrap();
    fs::remove_file(at("kit/.parts")).unwrap();
    let Some(joined) = join() else { return };
    assert!(!joined.status.success() && said(&joined).contains("missing or damaged"), "{}", said(&joined));
    assert_eq!(contents("kit/orchestra"), contents("source/orchestra"));
}

/// A kit as scripts/gpu-pack.sh makes it, with pictures and models that cost next to nothing.
fn small_kit(kit: &Path) {
    for folder in ["lib", "models", "photos", "small"] {
        fs::create_dir_all(kit.join(folder)).unwrap();
    }
    let request = Request { flavor: Flavor::Cpu, explicit: None, offline: true };
    let library = library::find(&request, &Env::from_process()).0.unwrap().path;
    symlink(&library, kit.join("lib/libonnxruntime.so.1")).unwrap();
    symlink(ORCHESTRA, kit.join("orchestra")).unwrap();
    symlink(scripts().join("gpu_jpeg.py"), kit.join("gpu_jpeg.py")).unwrap();
    symlink(repository().join("examples"), kit.join("examples")).unwrap();
    symlink(repository().join("models/vector-add.onnx"), kit.join("models/vector-add.onnx")).unwrap();
    for index in 0..16 {
        write_picture(&kit.join("small"), index, 224, 224, Kind::Jpeg).unwrap();
        write_picture(&kit.join("photos"), index, 320, 240, Kind::Jpeg).unwrap();
    }
    let weights: Vec<f32> = (0..30_u16).map(|n| f32::from(n * 7 % 11) - 5.0).collect();
    for (name, dtype) in [("mobilenet-f32", DType::F32), ("resnet50-f16", DType::F16)] {
        ModelBuilder::new(name)
            .input(&spec("input", dtype, &[3, 224, 224]))
            .output(&spec("logits", DType::F32, &[10]))
            .constant("weights", &[3, 10], &weights)
            .node("Cast", &["input"], &["pixels"], &[("to", Attribute::Int(1))])
            .node("GlobalAveragePool", &["pixels"], &["mean"], &[])
            .node("Flatten", &["mean"], &["flat"], &[])
            .node("MatMul", &["flat", "weights"], &["logits"], &[])
            .write(&kit.join("models"))
            .unwrap();
    }
    let of_any_width = |name, row| TensorSpec { row, ..spec(name, DType::F32, &[]) };
    ModelBuilder::new("reader-f32")
        .input(&of_any_width("input", vec![Dim::Fixed(3), Dim::Fixed(32), Dim::Dynamic]))
        .output(&of_any_width("logits", vec![Dim::Dynamic, Dim::Fixed(10)]))
        .constant("weights", &[3, 10], &weights)
        .node(
            "ReduceMean",
            &["input"],
            &["columns"],
            &[("axes", Attribute::Ints(vec![2])), ("keepdims", Attribute::Int(0))],
        )
        .node("Transpose", &["columns"], &["steps"], &[("perm", Attribute::Ints(vec![0, 2, 1]))])
        .node("MatMul", &["steps", "weights"], &["logits"], &[])
        .metadata("character", "a\nb\nc\nd\ne\nf\ng\nh\ni")
        .write(&kit.join("models"))
        .unwrap();
}

/// What the script does to decide the lines of a set or of parts, with a CPU in place of the GPU: the lines, and what it said.
fn twin(kit: &Path, of: &[&str], seconds: &str) -> Option<(Vec<Value>, String)> {
    checked(kit, &[&["--device", "cpu", "--seconds", seconds], of].concat(), &[])
}

fn checked(kit: &Path, arguments: &[&str], variables: &[(&str, String)]) -> Option<(Vec<Value>, String)> {
    let python = python()?;
    let out = kit.with_file_name("out");
    let mut check = Command::new("bash");
    check.arg(scripts().join("gpu-check.sh")).args(arguments).envs(variables.iter().cloned());
    check.arg("--kit").arg(kit).arg("--output").arg(&out).env("PYTHON", python);
    let ended = ran(&mut check)?;
    assert!(ended.status.success(), "{}", said(&ended));
    let report: Value = serde_json::from_slice(&fs::read(out.join("gpu-check.json")).unwrap()).unwrap();
    Some((report["rows"].as_array().unwrap().clone(), said(&ended)))
}

#[track_caller]
fn must_be_well(parts: &[&str], rows: &[Value], said: &str) {
    for part in parts {
        let of_part = rows.iter().filter(|row| row["part"] == *part);
        let good = of_part.filter(|row| row["verdict"] == "ok").count();
        assert!(good > 0, "no line of `{part}` says that it is well: {said}");
    }
}

#[test]
fn the_twin_of_the_first_set_passes_and_decides_every_part() {
    let folder = tempfile::tempdir().unwrap();
    let kit = folder.path().join("kit");
    small_kit(&kit);
    let Some((rows, said)) = twin(&kit, &["--set", "first"], "900") else { return };
    let parts = ["devices", "isolation", "parity", "commands", "kernels", "faults", "overlap", "check"];
    must_be_well(&parts, &rows, &said);
    let bare = rows.iter().filter(|row| row["part"] == "rates").count();
    assert!(bare >= 4, "{said}");
}

/// Those that need neither large models nor much time.
#[test]
fn the_twin_of_parts_of_the_second_set_passes() {
    let folder = tempfile::tempdir().unwrap();
    let kit = folder.path().join("kit");
    small_kit(&kit);
    let Some((rows, said)) = twin(&kit, &["--only", "ragged,ways,python"], "900") else { return };
    must_be_well(&["ways", "python", "check"], &rows, &said);
    for (part, words) in
        [("ragged", "conv_search = heuristic"), ("ragged", "padded to one size"), ("ragged", "three widths")]
    {
        let is_there = |row: &Value| row["part"] == part && row["what"].as_str().unwrap().contains(words);
        assert!(rows.iter().any(is_there), "{words}: {said}");
    }
    assert!(!said.contains("UNDECIDED"), "{said}");
}

/// On a GPU that the CPU plays, which has memory for 25 rows of the example.
#[test]
fn the_kernels_of_the_check_pass_on_a_gpu_one_that_traps_and_one_that_lacks_memory_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let kit = folder.path().join("kit");
    small_kit(&kit);
    gpu::build(folder.path());
    symlink(scripts().join("gpu_hold.py"), kit.join("gpu_hold.py")).unwrap();
    fs::remove_file(kit.join("examples")).unwrap();
    for example in ["vector-add", "vector-add-cuda", "pycuda-queue"] {
        copy_folder(&repository().join("examples").join(example), &kit.join("examples").join(example));
    }
    // The twin of NVRTC starts `c++`, which no confined worker may.
    let file = kit.join("examples/vector-add-cuda/workflow.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(file, text.replace("kernel = \"vadd\"", "kernel = \"vadd\"\nsandbox = \"off\"")).unwrap();
    let mut variables = gpu::variables(folder.path()).to_vec();
    variables.push(("CUDA_FAKE_MEMORY", (25 * 12_000_000).to_string()));
    let arguments = ["--device", "cuda:0", "--only", "kernels", "--seconds", "900"];
    let Some((rows, said)) = checked(&kit, &arguments, &variables) else { return };
    must_be_well(&["check"], &rows, &said);
    for words in [
        "vector-add-cuda: 4000000 sums",
        "896 MiB left: 4000000 sums",
        "do not fit",
        "does not compile",
        "traps: 3000000 sums",
        "one fails, by name",
    ] {
        let is_well = |row: &Value| row["what"].as_str().unwrap().contains(words) && row["verdict"] == "ok";
        assert!(rows.iter().any(is_well), "{words}: {said}");
    }
}

#[test]
fn parts_that_defaults_are_chosen_by_are_named_if_time_cuts_them() {
    let folder = tempfile::tempdir().unwrap();
    let kit = folder.path().join("kit");
    small_kit(&kit);
    let Some((_, said)) = twin(&kit, &["--only", "ways,ragged"], "0") else { return };
    assert!(said.contains("UNDECIDED: ") && said.contains("run --only ragged,ways"), "{said}");
}

/// What Python says that has the scripts at hand, and a kit folder to write to.
fn python_says(code: &str, folder: &Path) -> Option<String> {
    let output = ran(Command::new("python3").args(["-c", code]).arg(folder).env("PYTHONPATH", scripts()))?;
    assert!(output.status.success(), "{}", said(&output));
    Some(said(&output))
}

/// Starts a daemon that keeps all it was started with, or hangs itself; on `quit` it ends what it has started.
const MPS_CONTROL: &str = r#"#!/bin/bash
here=$CUDA_MPS_PIPE_DIRECTORY
if [[ ${1:-} == -d ]]; then
    sleep 1000 &
    echo $! >"$here/daemon"
    [[ -z ${HANGS:-} ]] || { echo >"$HANGS"; wait; }
else
    read -r word
    [[ $word == quit ]] && kill "$(cat "$here/daemon")"
fi
"#;

#[test]
fn mps_is_measured_though_its_daemon_keeps_the_streams_and_is_ended_also_where_its_start_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("nvidia-cuda-mps-control");
    fs::write(&control, MPS_CONTROL).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    let code = r#"
import os, select, subprocess, sys, types
import gpu_check
folder = sys.argv[1]
os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"

def use(hangs):
    environment, daemons = {**os.environ, "HANGS": hangs}, []
    def tool(command, **options):
        try:
            if not (hangs and command[-1] == "-d"):
                return subprocess.run(command, **options)
            del options["timeout"]
            process = subprocess.Popen(command, **options)
            open(hangs).read()
            try:
                return process.wait(0)
            finally:
                process.kill()
                process.wait()
        finally:
            with open(os.path.join(options["env"]["CUDA_MPS_PIPE_DIRECTORY"], "daemon")) as file:
                daemons.append(os.pidfd_open(int(file.read())) if not daemons else None)
    check, said = types.SimpleNamespace(environment=environment, tool=tool), "fault"
    try:
        with gpu_check.mps(check):
            said = "used" if check.environment is not environment else "not used"
    except gpu_check.Fault as fault:
        assert str(fault).startswith(gpu_check.NO_MPS), fault
    assert check.environment is environment
    poll = select.poll()
    poll.register(daemons[0], select.POLLIN)
    return said if poll.poll(60_000) else f"{said}, and its daemon runs on"

print(use(""))
os.mkfifo(os.path.join(folder, "hangs"))
print(use(os.path.join(folder, "hangs")))
"#;
    let Some(said) = python_says(code, folder.path()) else { return };
    assert_eq!(said.lines().collect::<Vec<_>>(), ["used", "fault"]);
}

#[test]
fn what_waits_for_decoding_decides_no_sizes_of_batches() {
    let code = r#"
import argparse, pathlib, sys
import gpu_check, gpu_dry
for pace in ("inference", "loading"):
    gpu_dry.BENCH["bottleneck"] = pace
    folder = pathlib.Path(sys.argv[1])
    check = gpu_dry.DryRun(argparse.Namespace(kit=folder, device="cuda:0", set="rest", output=folder / "out", seconds=1))
    gpu_check.padded(check, 4, "1")
    print(pace, [decision["what"] for decision in check.decisions])
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(said) = python_says(code, folder.path()) else { return };
    assert_eq!(said.lines().collect::<Vec<_>>(), ["inference ['batch.sizes']", "loading []"]);
}

#[test]
fn a_kit_of_parts_too_large_for_a_transfer_is_not_packed() {
    for mib in ["61", "100", "99999999999999999999"] {
        let mut pack = Command::new("bash");
        pack.arg(scripts().join("gpu-pack.sh")).args(["--part-mib", mib]);
        let Some(ended) = ran(&mut pack) else { return };
        assert_eq!(ended.status.code(), Some(2), "{}", said(&ended));
        assert!(said(&ended).contains("more than 60 MiB"), "{}", said(&ended));
    }
}

/// A kit without ONNX Runtime takes that of a Python environment which has the provider for CUDA, and none that has not.
#[test]
fn the_provider_of_a_python_environment_does_where_the_kit_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let capi = folder.path().join("site/onnxruntime/capi");
    fs::create_dir_all(&capi).unwrap();
    fs::write(capi.join("libonnxruntime.so.1.31.1"), "").unwrap();
    let found = || {
        let code = "import gpu_kit, pathlib; print(gpu_kit.library_of(pathlib.Path('no-kit')))";
        let path = format!("{}:{}", scripts().display(), folder.path().join("site").display());
        let output = ran(Command::new("python3").args(["-c", code]).env("PYTHONPATH", path))?;
        assert!(output.status.success(), "{}", said(&output));
        Some(said(&output).trim().to_owned())
    };
    let Some(without) = found() else { return };
    assert!(!without.starts_with(&folder.path().display().to_string()), "{without}");
    fs::write(capi.join("libonnxruntime_providers_cuda.so"), "").unwrap();
    assert_eq!(found(), Some(capi.join("libonnxruntime.so.1.31.1").display().to_string()));
}

/// A library of nvJPEG and one of CUDA's runtime that decode nothing, and refuse what the real ones could not work with.
const NVJPEG: &str = r#"
    #include <stddef.h>
    #include <stdlib.h>
    #include <string.h>
    typedef struct { unsigned char *channel[4]; size_t pitch[4]; } image;
    static int size;
    int nvjpegCreateSimple(void **handle) { *handle = (void *)1; return 0; }
    int nvjpegJpegStateCreate(void *handle, void **state) { *state = (void *)2; return handle != (void *)1; }
    int nvjpegDecodeBatchedInitialize(void *handle, void *state, int batch, int threads, int format) {
        size = batch;
        return handle != (void *)1 || state != (void *)2 || format != 5;
    }
    int nvjpegGetImageInfo(void *handle, const unsigned char *data, size_t length, int *parts, int *sampling, int *widths, int *heights) {
        *parts = 3; widths[0] = 100; heights[0] = 50;
        return length < 4 || data[0] != 0xff || data[1] != 0xd8;
    }
    int nvjpegDecodeBatched(void *handle, void *state, const unsigned char *const *data, const size_t *lengths, image *to, void *stream) {
        for (int i = 0; i < size; i++) {
            if (data[i][0] != 0xff || lengths[i] < 4 || to[i].pitch[0] != 300) return 1;
            memset(to[i].channel[0], i, 300 * 50);
        }
        return 0;
    }
"#;
const CUDART: &str = r#"
    #include <stdlib.h>
    int cudaMalloc(void **place, size_t bytes) { *place = malloc(bytes); return *place == NULL; }
    int cudaStreamSynchronize(void *stream) { return stream != NULL; }
"#;

#[test]
fn decoding_on_the_gpu_is_tried_with_the_libraries_that_are_there_and_is_no_error_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("photos")).unwrap();
    fs::write(at("photos/one.jpg"), b"\xff\xd8\xff\xe0 a picture").unwrap();
    let says = |libraries: &Path| {
        let mut decode = Command::new("python3");
        decode.arg(scripts().join("gpu_jpeg.py")).arg(at("photos")).args(["4", "0"]).arg(libraries);
        let output = ran(&mut decode)?;
        assert!(output.status.success(), "{}", said(&output));
        Some(said(&output))
    };
    for (name, source) in [("libnvjpeg.so.13", NVJPEG), ("libcudart.so.13", CUDART)] {
        fs::write(at("source.c"), source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(at(name)).arg(at("source.c"));
        let Some(built) = ran(&mut compiler) else { return };
        assert!(built.status.success(), "{}", said(&built));
    }
    let Some(answer) = says(folder.path()) else { return };
    assert!(answer.contains("pictures_per_second"), "{answer}");
    // This one has no function of nvJPEG.
    fs::copy(at("libcudart.so.13"), at("libnvjpeg.so.13")).unwrap();
    assert!(says(folder.path()).unwrap().contains("why"));
}
