//! The scripts that check a machine with a GPU, as far as they go without one: what they would run, and how a kit travels.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{ORCHESTRA, python, repository};
use orchestra_core::DType;
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
}

/// What the script does to decide each line, with a CPU in place of the GPU.
#[test]
fn the_twin_of_the_first_set_passes_and_decides_every_part() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (kit, out) = (folder.path().join("kit"), folder.path().join("out"));
    small_kit(&kit);
    let mut check = Command::new("bash");
    check.arg(scripts().join("gpu-check.sh")).args(["--device", "cpu", "--set", "first", "--seconds", "900"]);
    check.arg("--kit").arg(&kit).arg("--output").arg(&out).env("PYTHON", python);
    let Some(ended) = ran(&mut check) else { return };
    assert!(ended.status.success(), "{}", said(&ended));
    let report: Value = serde_json::from_slice(&fs::read(out.join("gpu-check.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for part in ["devices", "isolation", "parity", "commands", "kernels", "faults", "overlap", "check"] {
        let of_part = rows.iter().filter(|row| row["part"] == part);
        let good = of_part.filter(|row| row["verdict"] == "ok").count();
        assert!(good > 0, "no line of `{part}` says that it is well: {}", said(&ended));
    }
    let bare = rows.iter().filter(|row| row["part"] == "rates").count();
    assert!(bare >= 4, "{}", said(&ended));
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
