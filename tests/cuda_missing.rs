//! Asked for a GPU: it runs there, or it says why not and ends with 69. Never a quiet run on the CPU. Where there is no driver, `common/nvml.c`
//! takes its place: it lists one GPU, on which nothing can run.

use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Workplace};

#[test]
fn a_gpu_that_is_asked_for_is_used_or_its_absence_is_an_error() {
    let place = Workplace::with_pictures(100);
    let ended = place.run(&["--devices", "cuda:0"]);
    let machine = orchestra_launch::usable_machine(None, false);
    match machine.gpus_unusable.or(machine.gpu_error) {
        None => {
            ended.must_exit(0);
            place.holds_exactly(100);
            let device = &place.report()["devices"][0];
            assert!(device["device"] == "cuda:0" && device["batches"].as_u64() > Some(0), "{device}");
        }
        Some(why) => {
            ended.must_exit(69).must_say(&["device `cuda:0` is not available", &why]);
            assert!(!place.out().join("results.jsonl").exists(), "something ran");
        }
    }
    place.nothing_is_left();
}

#[test]
fn a_gpu_that_no_machine_has_is_an_error_everywhere() {
    let place = Workplace::with_pictures(100);
    place.edit("use = [\"cpu\", \"cpu\"]", "use = [\"cuda:99\"]");
    // One of several that is missing stops all of them.
    for more in [&[][..], &["--devices", "cpu,cuda:99"]] {
        place.run(more).must_exit(69).must_say(&["device `cuda:99` is not available"]);
    }
    // What the machine has decides about `run` and `plan`; the file is in order.
    place.on_file("plan", &[]).must_exit(69);
    place.on_file("check", &["--offline"]).must_exit(0);
    assert!(!place.out().join("results.jsonl").exists(), "something ran");
    place.nothing_is_left();
}

/// What the provider of ONNX Runtime does not load without, for CUDA 13.
const NEEDED: [&str; 4] = ["libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"];

fn cc(arguments: &[&str]) {
    let ended = Command::new("cc").args(["-shared", "-fPIC"]).args(arguments).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

fn empty_library(path: &Path) {
    cc(&["-x", "c", "/dev/null", "-o", path.to_str().unwrap()]);
}

/// A place with a driver of this version and CUDA, which lists a GPU, and with a GPU build of ONNX Runtime that is a name and no more.
struct Pretended {
    place: Workplace,
}

impl Pretended {
    fn new(driver: &str, cuda: u32) -> Self {
        let place = Workplace::with_pictures(100);
        place.edit("use = [\"cpu\", \"cpu\"]", "use = \"auto\"");
        for folder in ["driver", "cuda", "ort"] {
            std::fs::create_dir(place.path(folder)).unwrap();
        }
        for name in ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_cuda.so"] {
            empty_library(&place.path("ort").join(name));
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/nvml.c");
        let library = place.path("driver/libnvidia-ml.so.1");
        let defines = [format!("-DDRIVER=\"{driver}\""), format!("-DCUDA={cuda}")];
        cc(&[source, "-o", library.to_str().unwrap(), &defines[0], &defines[1]]);
        Self { place }
    }

    fn add_cuda(&self) {
        for name in NEEDED {
            empty_library(&self.place.path("cuda").join(name));
        }
    }

    /// With the driver and the GPU build.
    fn command(&self, arguments: &[&str]) -> Ended {
        let ort = self.place.path("ort");
        self.with_driver(arguments, &[("ORT_DYLIB_PATH", ort.to_str().unwrap())])
    }

    /// With the driver, and with the library of ONNX Runtime that all tests use.
    fn with_driver(&self, arguments: &[&str], more: &[(&str, &str)]) -> Ended {
        let (driver, cuda) = (self.place.path("driver"), self.place.path("cuda"));
        let mut variables = vec![
            ("LD_LIBRARY_PATH", driver.to_str().unwrap()),
            ("ORCHESTRA_CUDA_LIBRARIES", cuda.to_str().unwrap()),
            ("CUDA_VISIBLE_DEVICES", "0"),
        ];
        variables.extend(more);
        self.place.start_command_with(arguments, &variables).wait()
    }

    fn workflow(&self) -> String {
        self.place.workflow().to_str().unwrap().to_owned()
    }
}

#[test]
fn auto_on_a_machine_whose_gpu_lacks_a_library_takes_the_cpu_and_says_which_and_a_named_gpu_is_an_error() {
    let with = Pretended::new("580.65.06", 13000);
    let file = with.workflow();
    let why = ["no GPU can be used", "`libcublas.so.13`", "pip install nvidia-cuda-runtime"];
    with.command(&["plan", &file]).must_exit(0).must_print(&why);
    with.command(&["devices"]).must_exit(0).must_print(&why).must_print(&["Test GPU"]);
    with.command(&["doctor"]).must_exit(69).must_print(&why);
    with.command(&["run", &file, "--devices", "cuda:0"])
        .must_exit(69)
        .must_say(&["device `cuda:0` is not available", "`libcublas.so.13`"]);
    assert!(!with.place.out().join("results.jsonl").exists(), "something ran");
    with.with_driver(&["run", &file], &[])
        .must_exit(0)
        .must_say(&["devices: the CPU, because no GPU can be used"]);
    with.place.holds_exactly(100);
    assert_eq!(with.place.report()["devices"][0]["device"], "cpu");
    with.place.nothing_is_left();
}

#[test]
fn a_driver_that_is_too_old_for_the_runtime_is_named_with_what_is_needed() {
    let old = Pretended::new("570.86.15", 12080);
    old.add_cuda();
    let file = old.workflow();
    let why = ["driver 570.86.15 runs CUDA up to 12.8", "built for CUDA 13", "driver 580 or newer"];
    old.command(&["plan", &file]).must_exit(0).must_print(&why);
    old.command(&["devices"]).must_exit(0).must_print(&["Test GPU"]);
    old.command(&["doctor"]).must_exit(69).must_print(&why);
    old.command(&["plan", &file, "--devices", "cuda:0"]).must_exit(69).must_say(&why);
    old.place.nothing_is_left();

    let new = Pretended::new("580.65.06", 13000);
    new.add_cuda();
    new.command(&["plan", &new.workflow()]).must_exit(0).must_print(&["auto takes the only GPU", "cuda:0"]);
    new.place.nothing_is_left();
}
