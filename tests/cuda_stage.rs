//! Stages that launch a CUDA kernel, over twins of the driver and of NVRTC that run on the CPU (`common/cuda`): what a kernel gives is exact, also
//! while workers lose the device or have too little memory, and what is wrong with a kernel is said with its place.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Run, Workplace, copy_folder, gpu, npy, repository};
use orchestra_testkit::records::items;
use orchestra_testkit::size::scaled;
use orchestra_testkit::workflow_file::WorkflowFile;

/// Items of most runs.
const ITEMS: u64 = 2000;

/// Items of runs in which something happens to workers.
fn many() -> u64 {
    scaled(20_000, 4_000)
}

/// A workplace beside a GPU of 8 GiB that the CPU plays.
struct Gpu {
    place: Workplace,
}

impl Gpu {
    fn new() -> Self {
        let place = Workplace::new();
        fs::create_dir(place.path("empty")).unwrap();
        gpu::build(&place.path(""));
        Self { place }
    }

    /// One whose `n` rows of four numbers, `4 i` to `4 i + 3`, go through the kernel `k`.
    fn with(n: u64, kernel: &str, more: &str) -> Self {
        let gpu = Self::new();
        let place = &gpu.place;
        fs::write(place.path("x.npy"), npy(&format!("({n}, 4)"), (0..4 * n).map(|x| x as f32))).unwrap();
        fs::write(place.path("k.cu"), kernel).unwrap();
        // The twin of NVRTC starts `c++`, which no confined worker may.
        let scaled =
            "outputs = { scaled = { dtype = 'f32', shape = [4] }, sum = { dtype = 'i64', shape = [] } }";
        let by = "arguments = { by = { dtype = 'f32', value = 2 }, plus = { dtype = 'i32', value = 1 } }";
        let keys = "source = 'k.cu'\nkernel = 'k'\ngrid = 'rows'\nbatch = { max = 16, wait = '5ms' }\nworkers = 1\nmemory = '1GiB'";
        let keys = format_args!("{scaled}\n{by}\n{keys}\nsandbox = \"off\"\n{more}").to_string();
        let flow =
            WorkflowFile::new().source("x", "tensors", "paths = ['x.npy']").stage("y", "cuda", "x", keys);
        place.write(flow.results("y"));
        gpu
    }

    fn start(&self, arguments: &[&str], more: &[(&str, &str)]) -> Run {
        let own = gpu::variables(&self.place.path(""));
        let mut variables: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, &value[..])).collect();
        variables.extend(more);
        self.place.start_command_with(arguments, &variables)
    }

    /// `orchestra run workflow.toml`, started.
    fn run(&self, more: &[(&str, &str)]) -> Run {
        self.start(&["run", self.place.workflow().to_str().unwrap()], more)
    }

    /// That all but `failed` are done, each with its own numbers.
    #[track_caller]
    fn must_be_exact(&self, n: u64, failed: &[u64]) {
        let done = items("x", (0..n).filter(|i| !failed.contains(i)));
        let records = self.place.must_hold(&done, &items("x", failed.iter().copied()));
        for (key, record) in &records.done {
            let first = 4 * key.index;
            let scaled: Vec<f32> = (0..4).map(|k| 2.0 * (first + k) as f32 + 1.0).collect();
            let expected = serde_json::json!({
                "scaled": { "dtype": "f32", "shape": [4], "data": scaled },
                "sum": 4 * first + 6,
            });
            assert_eq!(record["results.jsonl"]["result"], expected, "{key}");
        }
    }

    /// Workers that were lost so far, of all starts.
    fn workers_lost(&self) -> usize {
        let log = fs::read_to_string(self.place.out().join("logs/x.log")).unwrap();
        log.lines().filter(|line| line.contains("worker lost")).count()
    }
}

/// Twice each number and one more, and the sum of a row.
const SCALE: &str = "#include \"row.cuh\"
extern \"C\" __global__ void k(const float *__restrict__ input, float *scaled, long long *sum, long long rows, float by, int plus) {
    long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    sum[row] = 0;
    for (int i = 0; i < ROW_input; i++) {
        float x = input[row * ROW_input + i];
        scaled[row * ROW_scaled + i] = changed(x, by, plus);
        sum[row] += (long long)x;
    }
}
";

fn scaling(n: u64, more: &str) -> Gpu {
    scaling_by(SCALE, n, more)
}

fn scaling_by(kernel: &str, n: u64, more: &str) -> Gpu {
    let gpu = Gpu::with(n, kernel, more);
    let header = "__device__ float changed(float x, float by, int plus) { return by * x + plus; }\n";
    fs::write(gpu.place.path("row.cuh"), header).unwrap();
    gpu
}

#[test]
fn a_kernel_gives_each_row_its_own_numbers_confined_or_not_page_locked_or_not() {
    let gpu = scaling(ITEMS, "");
    gpu.run(&[]).wait().must_exit(0).must_say(&["2,000 items read, 2,000 done, 0 failed"]);
    gpu.must_be_exact(ITEMS, &[]);
    let report = gpu.place.report();
    assert_eq!(report["devices"][0]["device"], "cuda:0", "{report}");
    gpu.place.nothing_is_left();
    // The kernel is compiled by now, so its worker can be confined.
    gpu.place.edit("sandbox = \"off\"", "sandbox_read = [\"cache\"]");
    let file = gpu.place.workflow();
    let again = ["run", file.to_str().unwrap(), "--fresh"];
    gpu.start(&again, &[("CUDA_FAKE_PAGEABLE", "1")]).wait().must_exit(0);
    gpu.must_be_exact(ITEMS, &[]);
    gpu.place.nothing_is_left();
}

#[test]
fn two_arrays_of_ten_million_floats_are_added_bit_for_bit_as_by_the_twin_on_the_cpu() {
    let gpu = Gpu::new();
    let place = &gpu.place;
    for example in ["vector-add", "vector-add-cuda"] {
        copy_folder(&repository().join("examples").join(example), &place.path("examples").join(example));
    }
    fs::copy(repository().join("models/vector-add.onnx"), place.path("models/vector-add.onnx")).unwrap();
    let data = place.path("examples/vector-add/data.py");
    if !place.path("examples/vector-add/vectors.npz").exists() {
        assert!(Command::new("python3").arg(data).status().unwrap().success());
    }
    let run = |example: &str, more: &[&str]| {
        let (file, out) = (place.path("examples").join(example).join("workflow.toml"), place.path(example));
        let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        let ended = gpu.start(&[&arguments[..], more].concat(), &[]).wait();
        ended.must_exit(0).must_say(&["10 items read, 10 done"]);
        fs::read(out.join("sum/whole.npy")).unwrap()
    };
    let by_kernel = run("vector-add-cuda", &["--set", "stages.add.sandbox=off"]);
    let by_model = run("vector-add", &["--devices", "cpu"]);
    assert!(by_kernel.len() > 40_000_000 && by_kernel == by_model, "the arrays differ");
}

#[test]
fn a_batch_for_which_the_device_has_no_memory_is_halved_and_nothing_is_lost() {
    let gpu = scaling(ITEMS, "");
    gpu.place.edit("max = 16", "max = 64");
    // 16 bytes of input, 24 of outputs: 16 rows fit, and 32 do not.
    gpu.run(&[("CUDA_FAKE_MEMORY", "1024")]).wait().must_exit(0).must_say(&["2,000 done, 0 failed"]);
    gpu.must_be_exact(ITEMS, &[]);
    assert_eq!(gpu.workers_lost(), 0, "a worker is kept");
    let log = fs::read_to_string(gpu.place.out().join("logs/x.log")).unwrap();
    assert!(log.contains("the device's memory holds 16 rows of this kernel"), "{log}");
    gpu.place.nothing_is_left();
}

#[test]
fn a_device_that_is_lost_costs_a_worker_and_no_item() {
    let gpu = scaling(many(), "");
    let lost = gpu.place.path("lost");
    fs::write(&lost, "").unwrap();
    gpu.run(&[("CUDA_FAKE_LOST", lost.to_str().unwrap())]).wait().must_exit(0);
    assert!(!lost.exists() && gpu.place.restarts() == 1, "{}", gpu.place.report());
    gpu.must_be_exact(many(), &[]);
    gpu.place.nothing_is_left();
}

#[test]
fn a_row_that_breaks_the_device_fails_alone() {
    let gpu = Gpu::with(
        200,
        &SCALE
            .replace("#include \"row.cuh\"\n", "")
            .replace("changed(x, by, plus)", "by * x + plus")
            .replace("        sum[row] +=", "        if (x == 4 * 77) __trap();\n        sum[row] +="),
        "",
    );
    gpu.run(&[]).wait().must_exit(65).must_say(&["200 items read, 199 done, 1 failed"]);
    gpu.must_be_exact(200, &[77]);
    let failure = &gpu.place.failures()[0];
    let error = failure["error"].as_str().unwrap();
    assert!(error.contains("`k` of `k.cu`") && error.contains("CUDA_ERROR_LAUNCH_FAILED"), "{failure}");
    // The error sticks to the process, so each batch that the row lay in has cost one.
    assert!(gpu.place.restarts() >= 2, "{}", gpu.place.report());
    gpu.place.nothing_is_left();
}

#[test]
fn what_the_compiler_has_against_a_kernel_is_said_with_file_and_line_before_any_batch() {
    let says = |gpu: Gpu, words: &[&str]| {
        let ended: Ended = gpu.run(&[]).wait();
        ended.must_exit(69).must_say(&["no device is left for stage `y`"]).must_say(words);
        assert_eq!(gpu.place.n_results(), 0);
        gpu.place.nothing_is_left();
    };
    let broken = SCALE.replace("sum[row] = 0", "sum[rwo] = 0");
    says(
        Gpu::with(20, &broken.replace("#include \"row.cuh\"", ""), ""),
        &["`k.cu` cannot be compiled", "k.cu(5): error"],
    );
    says(Gpu::with(20, SCALE, ""), &["`k.cu` cannot be compiled", "k.cu(1): ", "row.cuh"]);
    let other = scaling(20, "");
    fs::write(other.place.path("k.cu"), SCALE.replace("const float *", "const double *")).unwrap();
    let must_be = "the kernel must be: __global__ void k(const float *input, float *scaled, long long *sum, long long rows, float by, int plus)";
    says(other, &[must_be]);
    says(scaling(20, "options = [\"--use_fast_mth\"]"), &["unrecognized option --use_fast_mth"]);
}

#[test]
fn a_machine_that_lacks_something_says_what_and_what_to_do_before_anything_is_read() {
    let gpu = scaling(20, "");
    let file = gpu.place.workflow();
    let file = file.to_str().unwrap();
    let nothing = gpu.place.path("empty");
    let nothing = nothing.to_str().unwrap();
    // No compiler, unless this machine has one where the system keeps it.
    let without = [("ORCHESTRA_CUDA_LIBRARIES", nothing), ("PATH", nothing)];
    if !gpu.start(&["plan", file], &without).wait().status.success() {
        for command in ["run", "check", "plan"] {
            gpu.start(&[command, file], &without)
                .wait()
                .must_exit(69)
                .must_say(&["NVRTC, CUDA's compiler, is not here", "pip install nvidia-cuda-nvrtc"]);
        }
    }
    // No GPU.
    for (command, more) in [("run", &[][..]), ("check", &[]), ("run", &["--devices", "cpu"])] {
        let ended = gpu.start(&[&[command, file], more].concat(), &[("CUDA_VISIBLE_DEVICES", "")]).wait();
        ended
            .must_exit(69)
            .must_say(&["stage `y` launches a CUDA kernel, which runs on GPUs alone", "`orchestra doctor`"]);
    }
    // The file is in order.
    gpu.start(&["check", "--offline", file], &[]).wait().must_exit(0);
    // A driver without its library, unless this machine has a real one.
    fs::remove_file(gpu.place.path("driver/libcuda.so.1")).unwrap();
    if !Path::new("/dev/nvidiactl").exists() {
        gpu.run(&[]).wait().must_exit(69).must_say(&[
            "the library of the NVIDIA driver cannot be used",
            "libcuda.so.1",
            "install the driver",
        ]);
        assert!(gpu.place.failures().is_empty());
    }
}

/// Says which GPU it sees, and takes each row as its own.
const ON_A_GPU: &str = r#"
import os
import numpy as np
import orchestra

@orchestra.stage(batch=16, gpu=True, outputs={"scaled": ("float32", [4]), "sum": ("int64", [])})
def k(x):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0a5f0000"
    return {"scaled": 2 * x + 1, "sum": x.sum(axis=1).astype(np.int64)}
"#;

/// The same rows through a stage in Python.
fn in_python(n: u64, python: &str, script: &str) -> Gpu {
    let gpu = Gpu::with(n, "", "");
    fs::write(gpu.place.path("stage.py"), script).unwrap();
    let text = fs::read_to_string(gpu.place.workflow()).unwrap();
    let (begin, end) = (text.find("kind = \"cuda\"").unwrap(), text.find("[sinks").unwrap());
    let stage = format!(
        "kind = \"python\"\nfrom = \"x\"\nscript = \"stage.py\"\npython = {python:?}\nworkers = 1\nsandbox_read = [\"driver\"]\n"
    );
    fs::write(gpu.place.workflow(), text[..begin].to_owned() + &stage + &text[end..]).unwrap();
    gpu
}

/// Breaks the device for its process at one row, as a kernel with a wrong address does; each call behind it fails, too.
const BREAKS_ITS_GPU: &str = r#"
import ctypes
import numpy as np
import orchestra

cuda = ctypes.CDLL("libcuda.so.1")
kernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)

@orchestra.stage(batch=16, gpu=True, outputs={"scaled": ("float32", [4]), "sum": ("int64", [])})
def k(x):
    traps = kernel(lambda *_: 700 * bool((x[:, 0] == 4 * 77).any()))
    cuda.cuLaunchKernel(traps, *[1] * 6, 0, None, None, None)
    if code := cuda.cuCtxSynchronize():
        raise RuntimeError(f"the device says {code}")
    return {"scaled": 2 * x + 1, "sum": x.sum(axis=1).astype(np.int64)}
"#;

#[test]
fn a_row_that_breaks_the_gpu_of_a_stage_in_python_fails_alone() {
    let Some(python) = crate::common::python() else { return };
    let gpu = in_python(ITEMS, python, BREAKS_ITS_GPU);
    gpu.run(&[]).wait().must_exit(65).must_say(&["2,000 items read, 1,999 done, 1 failed"]);
    gpu.must_be_exact(ITEMS, &[77]);
    let failure = &gpu.place.failures()[0];
    assert!(failure["error"].as_str().unwrap().contains("RuntimeError: the device says 700"), "{failure}");
    assert!(gpu.place.restarts() >= 2, "{}", gpu.place.report());
    gpu.place.nothing_is_left();
}

#[test]
fn the_slots_of_a_stage_in_python_on_a_gpu_are_page_locked_or_it_is_said_why_not() {
    let Some(python) = crate::common::python() else { return };
    let refused = " not page-locked: cuMemHostRegister_v2 gives 801";
    for (variables, inputs, outputs) in [
        (&[][..], " page-locked", " page-locked"),
        (&[("CUDA_FAKE_PAGEABLE", "1")], refused, refused),
        (&[("CUDA_FAKE_NO_READ_ONLY", "1")], refused, " page-locked"),
    ] {
        let gpu = in_python(ITEMS, python, ON_A_GPU);
        gpu.run(variables).wait().must_exit(0);
        gpu.must_be_exact(ITEMS, &[]);
        assert_eq!(gpu.place.report()["devices"][0]["device"], "cuda:0");
        let log = fs::read_to_string(gpu.place.out().join("logs/x.log")).unwrap();
        for said in [format!("the input slots are{inputs}"), format!("the output slots are{outputs}")] {
            assert!(log.contains(&said), "{said}: {log}");
        }
        gpu.place.nothing_is_left();
    }
}
