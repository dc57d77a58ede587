//! Commands on a GPU that `common/nvml.c` lists. They may use it, though no worker could: nothing that ONNX Runtime needs is there.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Ended, Workplace, python};
use serde_json::Value;

/// A workplace with these tables, and the library of a driver.
fn place(tables: &str) -> Workplace {
    let place = Workplace::new();
    fs::write(place.workflow(), format!("version = 1\n[devices]\nslots = 4\n{tables}")).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/nvml.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-DDRIVER=\"580.65.06\"", "-DCUDA=13000", source, "-o"]);
    assert!(cc.arg(place.path("libnvidia-ml.so.1")).status().unwrap().success());
    place
}

/// A run that finds the library, and these variables.
fn run(place: &Workplace, variables: &[(&str, &str)]) -> Ended {
    let (file, folder) = (place.workflow(), place.path(""));
    let own = [("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("CUDA_VISIBLE_DEVICES", "0")];
    place.start_command_with(&["run", file.to_str().unwrap()], &[&own, variables].concat()).wait()
}

fn tasks(place: &Workplace) -> BTreeMap<String, Value> {
    let report = place.report();
    let tasks = report["tasks"].as_array().unwrap();
    tasks.iter().map(|task| (task["task"].as_str().unwrap().to_owned(), task.clone())).collect()
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_gpu_has_one_command_or_two_with_half_of_it_and_is_named_by_its_uuid() {
    let place = place(
        r#"
[tasks.half]
command = '''
exec 9> gpu; flock -n -s 9 || { echo "it is not shared"; exit 9; }
exec 7> first 8> second; flock -n 7 || flock -n 8 || { echo "a third has it"; exit 7; }
echo "$CUDA_VISIBLE_DEVICES" >> seen; sleep 0.05
'''
device = 0.5
matrix = { n = [1, 2, 3, 4, 5, 6] }

[tasks.whole]
command = '''
exec 9> gpu; flock -n -x 9 || { echo "it is not alone"; exit 9; }
echo "$CUDA_VISIBLE_DEVICES" >> seen; sleep 0.05
'''
matrix = { n = [1, 2, 3] }

[tasks.none]
command = 'test -z "$CUDA_VISIBLE_DEVICES"'
device = "none"
"#,
    );
    let ended = run(&place, &[]);
    ended.must_exit(0).must_say(&["10 tasks, 10 done"]);
    assert_eq!(lines(&place.path("seen")), vec!["GPU-0a5f0000"; 9]);
    assert!(tasks(&place)["whole[n=1]"]["place"].as_str().unwrap().ends_with(", cuda:0"));
}

#[test]
fn what_commands_take_of_a_gpu_is_learned_and_one_without_a_lease_is_killed() {
    let place = place(
        r#"
[tasks.half]
command = """
: BEGIN
echo "$$ 6000000000" >> processes
n=$(wc -c < looks)
until [ $(wc -c < looks) -ge $((n + 3)) ]; do sleep 0.05; done
"""
device = 0.5
matrix = { n = [1, 2] }

[tasks.stray]
command = 'echo "$$ 1000" >> processes; sleep 1000'
device = "none"
"#,
    );
    fs::write(place.path("looks"), "").unwrap();
    let (processes, looks) = (place.path("processes"), place.path("looks"));
    let variables = [("GPU_PROCESSES", processes.to_str().unwrap()), ("GPU_LOOKS", looks.to_str().unwrap())];
    let stray = "`GPU-0a5f0000`, a GPU that it has no lease on";
    run(&place, &variables).must_exit(65).must_say(&["3 tasks, 2 done, 1 failed", stray]);
    place.no_process_is_left();
    assert_eq!(tasks(&place)["stray"]["end"], "wrong_device");
    assert_eq!(tasks(&place)["half[n=1]"]["gpu_memory"], 6_000_000_000_u64);
    // Twice as much is more than the GPU has: from now on they take turns.
    place.edit(": BEGIN", "exec 9> turn; flock -n 9 || exit 9");
    run(&place, &variables).must_exit(65).must_say(&["3 tasks, 2 done, 1 failed"]);
}

/// Others fill the GPU after the plan was made, and leave it again.
#[test]
fn a_command_that_asks_for_memory_waits_until_others_have_given_it_back() {
    let place = place(
        r#"
[tasks.fill]
command = """
echo 1000000000 > fill; mv fill free
: LOOKS
"""
device = "none"

[tasks.asks]
command = "test -e is_free"
after = "fill"
device = 0.5
gpu_memory = "4GiB"

[tasks.others]
command = """
: LOOKS
touch is_free; echo 8000000000 > fill; mv fill free
"""
after = "fill"
device = "none"
"#,
    );
    let three = "n=$(wc -c < looks); until [ $(wc -c < looks) -ge $((n + 3)) ]; do sleep 0.05; done";
    let text = fs::read_to_string(place.workflow()).unwrap().replace(": LOOKS", three);
    fs::write(place.workflow(), text).unwrap();
    fs::write(place.path("looks"), "").unwrap();
    // Looks are noted where there is a process to be listed.
    fs::write(place.path("processes"), "1 1000\n").unwrap();
    let paths = ["free", "looks", "processes"].map(|name| place.path(name).to_str().unwrap().to_owned());
    let variables = [("GPU_FREE", &*paths[0]), ("GPU_LOOKS", &*paths[1]), ("GPU_PROCESSES", &*paths[2])];
    run(&place, &variables).must_exit(0).must_say(&["3 tasks, 3 done"]);
}

#[test]
fn of_a_matrix_of_twelve_two_run_out_of_memory_and_one_hangs_and_the_rest_is_done() {
    let place = place(
        r#"
[tasks.train]
command = """
exec 9> gpu
case {n}-$ORCHESTRA_ATTEMPT in
1-1) echo 'RuntimeError: CUDA out of memory'; exit 1 ;;
1-2) flock -n -x 9 || { echo 'it is not alone'; exit 9; } ;;
2-*) dd if=/dev/zero of=/dev/null bs=256M count=1 || exit 3 ;;
3-*) sleep 1000 ;;
*) flock -n -s 9 || { echo 'it is not shared'; exit 9; } ;;
esac
echo {n} >> done
"""
matrix = { n = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }
device = 0.5
memory = "64MiB"
timeout = "5s"
retries = { out_of_memory = 1, timeout = 1 }
"#,
    );
    run(&place, &[]).must_exit(65).must_say(&["12 tasks, 10 done, 2 failed"]);
    place.no_process_is_left();
    for (id, task) in tasks(&place) {
        let expected = match &id[..] {
            "train[n=1]" => ("done", "done", 2),
            "train[n=2]" => ("failed", "out_of_memory", 2),
            "train[n=3]" => ("failed", "timeout", 2),
            _ => ("done", "done", 1),
        };
        assert_eq!(
            (&task["state"], &task["end"], &task["attempts"]),
            (&expected.0.into(), &expected.1.into(), &expected.2.into()),
            "{task}"
        );
    }
    let mut done = lines(&place.path("done"));
    done.sort();
    assert_eq!(done, ["1", "10", "11", "12", "4", "5", "6", "7", "8", "9"]);
}

/// A stage in Python with priority 20, and commands above, beside and below it: all but those beside it note in `order` when they begin.
fn with_a_stage(python: &str) -> Workplace {
    let place = place(&format!(
        r#"
[sources.x]
kind = "range"
stop = 40

[stages.y]
kind = "python"
from = "x"
script = "stage.py"
python = {python:?}
priority = 20
sandbox = "off"

[sinks.results]
kind = "jsonl"
from = "y"

[tasks.low]
command = "test $(wc -l < out/results.jsonl) = 40 && echo low >> order"
priority = 19

[tasks.prepare]
command = "echo prepare >> order"
device = "none"
priority = 1

[tasks.high]
command = "echo high >> order; test {{n}}$ORCHESTRA_ATTEMPT != 21"
after = "prepare"
matrix = {{ n = [1, 2] }}
priority = 21
retries = {{ code = 1, pause = "100ms" }}

[tasks.beside]
command = "true"
device = 0.5
priority = 20

[tasks.last]
command = "echo last >> order"
after = ["low", "sinks.results"]
"#
    ));
    let script = r#"
import orchestra

@orchestra.stage(batch=4, outputs={"y": ("int64", [])})
class Noted:
    def __init__(self):
        with open("ORDER", "a") as order:
            order.write("stage\n")

    def __call__(self, n):
        return {"y": n}
"#;
    let order = place.path("order");
    fs::write(place.path("stage.py"), script.replace("ORDER", order.to_str().unwrap())).unwrap();
    place
}

/// What has begun, each kind once.
fn order(place: &Workplace) -> Vec<String> {
    let mut order = lines(&place.path("order"));
    order.dedup();
    order
}

#[test]
fn the_side_with_the_higher_priority_has_a_gpu_first_and_hands_it_over_when_it_has_ended() {
    let Some(python) = python() else { return };
    let place = with_a_stage(python);
    place.edit("sandbox = \"off\"", "sandbox = \"off\"\ndevices = \"cuda:0\"");
    // By their names, these are what ONNX Runtime needs; the stage does not.
    let ort = place.path("ort");
    fs::create_dir(&ort).unwrap();
    let cuda = ["libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"];
    let of_ort = ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_cuda.so"];
    for library in cuda.map(|name| place.path(name)).into_iter().chain(of_ort.map(|name| ort.join(name))) {
        let mut cc = Command::new("cc");
        assert!(cc.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(library).status().unwrap().success());
    }
    let folder = place.path("");
    let variables =
        [("ORT_DYLIB_PATH", ort.to_str().unwrap()), ("ORCHESTRA_CUDA_LIBRARIES", folder.to_str().unwrap())];
    run(&place, &variables).must_exit(0).must_say(&["40 items read, 40 done", "6 tasks, 6 done"]);
    assert_eq!(order(&place), ["prepare", "high", "stage", "low", "last"]);
    assert_eq!(place.report()["devices"][0]["device"], "cuda:0");
}

#[test]
fn the_side_with_the_higher_priority_has_the_cores_first_where_there_is_no_gpu() {
    let Some(python) = python() else { return };
    let place = with_a_stage(python);
    let (file, run) = (place.workflow(), ["run", "--devices", "cpu"]);
    let ended = place.start_command(&[&run[..], &[file.to_str().unwrap()]].concat()).wait();
    ended.must_exit(0).must_say(&["40 items read, 40 done", "6 tasks, 6 done"]);
    assert_eq!(order(&place), ["prepare", "high", "stage", "low", "last"]);
    // At the same priority both go on together: a command that waits for the stage comes to its end.
    let wait = "n=0; until grep -q stage order || [ $((n += 1)) = 2000 ]; do sleep 0.01; done";
    place.edit("echo high >> order", &format!("{wait}; echo high >> order"));
    fs::remove_file(place.path("order")).unwrap();
    place.edit("priority = 21", "priority = 20");
    place.edit("matrix = { n = [1, 2] }", "matrix = { n = [1] }");
    let ended = place.start_command(&["run", "--fresh", "--devices", "cpu", file.to_str().unwrap()]).wait();
    ended.must_exit(0);
    let order = lines(&place.path("order"));
    assert!(
        order.iter().position(|it| it == "stage") < order.iter().position(|it| it == "high"),
        "{order:?}"
    );
}
