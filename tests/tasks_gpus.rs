//! Commands on GPUs that `common/nvml.c` lists: one, or three. They may use them, though no worker could: nothing that ONNX Runtime needs is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::common::{Ended, Workplace, python};
use serde_json::Value;

/// A workplace with these tables, and the library of a driver.
fn place(tables: &str) -> Workplace {
    let place = Workplace::with_slots(4, tables);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/nvml.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-DDRIVER=\"580.65.06\"", "-DCUDA=13000", source, "-o"]);
    assert!(cc.arg(place.path("libnvidia-ml.so.1")).status().unwrap().success());
    place
}

/// A run that finds the library, and these variables.
fn run(place: &Workplace, variables: &[(&str, &str)]) -> Ended {
    let folder = place.path("");
    let own = [("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("CUDA_VISIBLE_DEVICES", "0")];
    place.start_with(&[&own, variables].concat()).wait()
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
    place.write(text);
    fs::write(place.path("looks"), "").unwrap();
    // Looks are noted where there is a process to be listed.
    fs::write(place.path("processes"), "1 1000\n").unwrap();
    let paths = ["free", "looks", "processes"].map(|name| place.path(name).to_str().unwrap().to_owned());
    let variables = [("GPU_FREE", &*paths[0]), ("GPU_LOOKS", &*paths[1]), ("GPU_PROCESSES", &*paths[2])];
    run(&place, &variables).must_exit(0).must_say(&["3 tasks, 3 done"]);
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
    let mut order = place.text_lines("order");
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
    let ended = place.command(&[&run[..], &[file.to_str().unwrap()]].concat());
    ended.must_exit(0).must_say(&["40 items read, 40 done", "6 tasks, 6 done"]);
    assert_eq!(order(&place), ["prepare", "high", "stage", "low", "last"]);
    // At the same priority both go on together: a command that waits for the stage comes to its end.
    let wait = "n=0; until grep -q stage order || [ $((n += 1)) = 20000 ]; do sleep 0.01; done";
    place.edit("echo high >> order", &format!("{wait}; echo high >> order"));
    fs::remove_file(place.path("order")).unwrap();
    place.edit("priority = 21", "priority = 20");
    place.edit("matrix = { n = [1, 2] }", "matrix = { n = [1] }");
    place.command(&["run", "--fresh", "--devices", "cpu", file.to_str().unwrap()]).must_exit(0);
    let order = place.text_lines("order");
    assert!(
        order.iter().position(|it| it == "stage") < order.iter().position(|it| it == "high"),
        "{order:?}"
    );
}

const UUIDS: [&str; 3] = ["GPU-0a5f0000", "GPU-1a5f0000", "GPU-2a5f0000"];
const THREE: [(&str, &str); 2] = [("GPU_COUNT", "3"), ("CUDA_VISIBLE_DEVICES", "0,1,2")];

/// `take.sh HOW TABLE N`: takes the lock of each GPU that it sees, alone (`-x`) or beside one other (`-s`), and notes in `seen` which these are, from when to
/// when. It ends when N commands of the table have begun.
const TAKE: &str = r#"
begun=$(date +%s%N) fd=3
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
    eval "exec $fd> lock-$gpu"
    flock -n $1 $fd || { echo "$gpu has another owner"; exit 9; }
    test $1 = -x || { exec 7> "first-$gpu" 8> "second-$gpu"; flock -n 7 || flock -n 8 || { echo "a third has $gpu"; exit 7; }; }
    fd=$((fd + 1))
done
: > "begun-$2-$ORCHESTRA_TASK"
until [ $(ls | grep -c "^begun-$2-") -ge $3 ]; do sleep 0.01; done
echo "$2 $CUDA_VISIBLE_DEVICES $begun $(date +%s%N)" >> seen
"#;

/// A workplace with these tables, whose commands may use `take.sh`.
fn place_to_take(tables: &str) -> Workplace {
    let place = place(tables);
    fs::write(place.path("take.sh"), TAKE).unwrap();
    place
}

/// A line of `seen`.
struct Seen {
    table: String,
    gpus: BTreeSet<String>,
    nanoseconds: (u64, u64),
}

fn seen(place: &Workplace) -> Vec<Seen> {
    let seen = |line: &String| {
        let [table, gpus, begun, ended]: [&str; 4] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        Seen {
            table: table.to_owned(),
            gpus: gpus.split(',').map(str::to_owned).collect(),
            nanoseconds: (begun.parse().unwrap(), ended.parse().unwrap()),
        }
    };
    place.text_lines("seen").iter().map(seen).collect()
}

/// How many commands of a table had each GPU.
fn had<'a>(seen: &'a [Seen], table: &str) -> BTreeMap<&'a str, usize> {
    let mut had = BTreeMap::new();
    for gpu in seen.iter().filter(|seen| seen.table == table).flat_map(|seen| &seen.gpus) {
        *had.entry(&gpu[..]).or_default() += 1;
    }
    had
}

#[test]
fn three_gpus_have_one_command_each_or_two_halves_and_one_that_asks_for_two_has_both_alone() {
    let place = place_to_take(
        r#"
[tasks.one]
command = ["sh", "take.sh", "-x", "one", "3"]
matrix = { n = [1, 2, 3, 4, 5, 6, 7, 8, 9] }
timeout = "60s"

[tasks.two]
command = ["sh", "take.sh", "-x", "two", "1"]
device = 2
matrix = { n = [1, 2, 3] }

[tasks.half]
command = ["sh", "take.sh", "-s", "half", "6"]
device = 0.5
after = ["one", "two"]
matrix = { n = [1, 2, 3, 4, 5, 6] }
timeout = "60s"
"#,
    );
    run(&place, &THREE).must_exit(0).must_say(&["18 tasks, 18 done"]);
    let seen = seen(&place);
    // The first three had one each, and all six halves were there at once.
    assert_eq!(had(&seen, "one").into_keys().collect::<Vec<_>>(), UUIDS);
    assert_eq!(had(&seen, "half"), BTreeMap::from(UUIDS.map(|gpu| (gpu, 2))));
    for (table, count) in [("one", 1), ("two", 2), ("half", 1)] {
        assert!(
            seen.iter().filter(|seen| seen.table == table).all(|seen| seen.gpus.len() == count),
            "{table}"
        );
    }
    for gpu in UUIDS {
        let alone = seen.iter().filter(|seen| seen.table != "half" && seen.gpus.contains(gpu));
        let mut times: Vec<(u64, u64)> = alone.map(|seen| seen.nanoseconds).collect();
        times.sort_unstable();
        assert!(times.windows(2).all(|two| two[0].1 <= two[1].0), "two commands on {gpu}: {times:?}");
    }
    place.no_process_is_left();
}

#[test]
fn an_inherited_list_of_numbers_or_uuids_hides_all_other_gpus_from_commands() {
    let [zero, one, two] = UUIDS;
    let uuids = format!("{one},{two}");
    for (list, expected) in [("2,0", [zero, two]), (&uuids[..], [one, two])] {
        let place = place_to_take(
            r#"
[tasks.one]
command = ["sh", "take.sh", "-x", "one", "2"]
matrix = { n = [1, 2, 3, 4] }
timeout = "60s"
"#,
        );
        let variables = [("GPU_COUNT", "3"), ("CUDA_VISIBLE_DEVICES", list)];
        run(&place, &variables).must_exit(0).must_say(&["4 tasks, 4 done"]);
        assert_eq!(had(&seen(&place), "one").into_keys().collect::<Vec<_>>(), expected, "{list}");
        let hidden = UUIDS.into_iter().find(|gpu| !expected.contains(gpu)).unwrap();
        let device = |value: &str| {
            let text = fs::read_to_string(place.workflow()).unwrap();
            let kept = text.lines().filter(|line| !line.starts_with("device ="));
            place.write(kept.collect::<Vec<_>>().join("\n") + "\ndevice = " + value);
            run(&place, &variables)
        };
        device(&format!("{hidden:?}")).must_exit(69).must_say(&["is not among the devices in use"]);
        device("3").must_exit(69).must_say(&["asks for 3 GPUs, and no lease can have that"]);
    }
}

#[test]
fn a_command_with_auto_has_any_gpu_alone_and_one_that_names_its_gpu_has_that_alone() {
    let place = place_to_take(
        r#"
[tasks.auto]
command = ["sh", "take.sh", "-x", "auto", "3"]
device = "auto"
matrix = { n = [1, 2, 3, 4, 5, 6] }
timeout = "10m"

[tasks.named]
command = ["sh", "take.sh", "-x", "named", "1"]
device = "cuda:1"
matrix = { n = [1, 2, 3] }

[tasks.by_uuid]
command = ["sh", "take.sh", "-x", "by_uuid", "1"]
device = "GPU-2a5f0000"
"#,
    );
    run(&place, &THREE).must_exit(0).must_say(&["10 tasks, 10 done"]);
    let (seen, [_, one, two]) = (seen(&place), UUIDS);
    assert_eq!(had(&seen, "named"), BTreeMap::from([(one, 3)]));
    assert_eq!(had(&seen, "by_uuid"), BTreeMap::from([(two, 1)]));
    // Three of them were there at once.
    assert_eq!(had(&seen, "auto").into_keys().collect::<Vec<_>>(), UUIDS);
    assert!(seen.iter().all(|seen| seen.gpus.len() == 1));
    let tasks = place.tasks();
    let ends_with = |task: &str, gpu: &str| tasks[task]["place"].as_str().unwrap().ends_with(gpu);
    assert!((1..=3).all(|n| ends_with(&format!("named[n={n}]"), ", cuda:1")), "{tasks:?}");
    // Without a GPU one has a slot of the CPU, and the other one is an error.
    let none = [("CUDA_VISIBLE_DEVICES", "")];
    run(&place, &none).must_exit(69).must_say(&["device `cuda:1` is not among the devices in use"]);
    let text = fs::read_to_string(place.workflow()).unwrap();
    place.write(text.split("[tasks.named]").next().unwrap());
    fs::remove_dir_all(place.out()).unwrap();
    run(&place, &none).must_exit(0).must_say(&["6 tasks, 6 done"]);
    assert!(place.tasks().values().all(|task| !task["place"].as_str().unwrap().contains("cuda")));
}

#[test]
fn a_command_is_told_its_task_attempt_slot_folder_and_gpus_whatever_the_run_has_in_its_environment() {
    const TELLS: &str = r#"
names='ORCHESTRA_TASK ORCHESTRA_ATTEMPT ORCHESTRA_SLOT ORCHESTRA_OUTPUT CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER'
for name in $names; do printenv $name || echo "no $name"; done > "told-$ORCHESTRA_TASK-$ORCHESTRA_ATTEMPT"
touch "$ORCHESTRA_OUTPUT/$ORCHESTRA_ATTEMPT"
test $ORCHESTRA_TASK-$ORCHESTRA_ATTEMPT != pair-1 || exit 3
until [ $(ls | grep -c "^told-$1") -ge $2 ]; do sleep 0.01; done
"#;
    let place = place(
        r#"
[tasks.pair]
command = ["sh", "tells.sh", "pair", "1"]
device = 2
retries = 1

[tasks.one]
command = ["sh", "tells.sh", "one", "2"]
matrix = { n = [1, 2] }
after = "pair"

[tasks.none]
command = ["sh", "tells.sh", "none", "1"]
device = "none"
after = "one"
"#,
    );
    fs::write(place.path("tells.sh"), TELLS).unwrap();
    let variables = [
        ("GPU_COUNT", "2"),
        ("CUDA_VISIBLE_DEVICES", "1,0"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ("ORCHESTRA_TASK", "another"),
        ("ORCHESTRA_ATTEMPT", "77"),
        ("ORCHESTRA_SLOT", "77"),
        ("ORCHESTRA_OUTPUT", "/tmp"),
    ];
    run(&place, &variables).must_exit(0).must_say(&["4 tasks, 4 done"]);
    let [zero, one, _] = UUIDS;
    let told = |task: &str, folder: &str, attempt: u64| {
        let output = place.out().join("tasks").join(folder).join("output");
        assert!(output.join(attempt.to_string()).exists(), "{task} has no folder {folder}");
        let told: [String; 6] = place.text_lines(&format!("told-{task}-{attempt}")).try_into().unwrap();
        let [id, number, slot, told_output, gpus, order] = told;
        let attempt = attempt.to_string();
        assert_eq!(
            [id, number, told_output, order],
            [task, &attempt, output.to_str().unwrap(), "PCI_BUS_ID"],
        );
        (slot, gpus)
    };
    for attempt in [1, 2] {
        let (slot, gpus) = told("pair", "pair", attempt);
        assert_eq!((&slot[..], gpus.split(',').collect()), ("0", BTreeSet::from([zero, one])));
    }
    // They ran at once.
    let ones = [1, 2].map(|n| told(&format!("one[n={n}]"), &format!("one/n={n}"), 1));
    let slots: BTreeSet<&str> = ones.iter().map(|(slot, _)| &slot[..]).collect();
    let gpus: BTreeSet<&str> = ones.iter().map(|(_, gpus)| &gpus[..]).collect();
    assert_eq!((slots, gpus), (BTreeSet::from(["0", "1"]), BTreeSet::from([zero, one])));
    assert_eq!(told("none", "none", 1), ("0".to_owned(), String::new()));
}

/// The cells of the row of a task in a table, by the heads of their columns.
fn cells<'a>(table: &'a str, task: &str) -> BTreeMap<&'a str, &'a str> {
    let heads = table.lines().next().unwrap();
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(task)).unwrap();
    let names = heads.split_whitespace();
    let mut begin: Vec<usize> =
        names.clone().map(|name| heads.find(&format!(" {name}")).map_or(0, |at| at + 1)).collect();
    begin.push(row.len());
    names.zip(begin.windows(2)).map(|(name, at)| (name, row[at[0]..at[1]].trim())).collect()
}

#[test]
fn the_table_of_tasks_has_state_device_attempts_time_peak_memory_and_last_metrics_of_what_has_run() {
    let place = place(
        r#"
[tasks.train]
command = """
date +%s%N > from-$ORCHESTRA_ATTEMPT
dd if=/dev/zero of=/dev/null bs=64M count=1 2> dd
test $ORCHESTRA_ATTEMPT = 2 || exit 3
echo 'loss=0.5 step=1'
echo 'loss=0.125 step=2'
date +%s%N > to
"""
metrics = [{ name = "loss", regex = 'loss=(\S+)' }, { name = "step", regex = 'step=(\S+)' }]
retries = { code = 1 }

[tasks.broken]
command = "exit 4"
device = "none"
after = "train"

[tasks.later]
command = "true"
after = "broken"
"#,
    );
    let began = Instant::now();
    run(&place, &[]).must_exit(65).must_say(&["3 tasks, 1 done, 1 failed, 1 skipped"]);
    let took = began.elapsed().as_secs_f64();
    let folder = place.path("");
    let variables = [("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("CUDA_VISIBLE_DEVICES", "0")];
    let tasks = |more: &[&str]| place.start_on_file("tasks", more, &variables).wait().exited(0).stdout;
    let (table, json) = (tasks(&[]), serde_json::from_str::<Value>(&tasks(&["--json"])).unwrap());
    let train = cells(&table, "train");
    let column = |name: &str| train[name];
    assert_eq!(
        ["state", "place", "attempts", "metrics"].map(column),
        ["done", "slot 0, cuda:0", "2", "loss 0.1250, step 2"],
        "{table}"
    );
    // That of the last attempt, which the command has measured as well; what is longer than 10 s is rounded otherwise.
    let nanoseconds = |file: &str| place.text_lines(file)[0].parse::<u64>().unwrap() as f64;
    let own = (nanoseconds("to") - nanoseconds("from-2")) / 1e9;
    let seconds = json[0]["known"]["seconds"].as_f64().unwrap();
    assert!((own..took).contains(&seconds), "{own} s of {took} s, and {seconds} s are told");
    let told = if seconds < 9.5 { format!("{seconds:.1} s") } else { column("time").to_owned() };
    assert!(column("time") == told && told.ends_with(" s"), "{table}");
    let mebibytes: f64 = column("memory").strip_suffix(" MiB").unwrap().parse().unwrap();
    assert!((64.0..128.0).contains(&mebibytes), "{table}");
    let broken = cells(&table, "broken");
    let column = |name: &str| broken[name];
    assert_eq!(
        ["state", "place", "attempts", "metrics"].map(column),
        ["code", "slot 0", "1", "-"],
        "{table}"
    );
    assert!(column("time").ends_with(" s") && column("memory").ends_with("iB"), "{table}");
    let later = cells(&table, "later");
    let column = |name: &str| later[name];
    let all = ["state", "place", "attempts", "time", "memory", "metrics"].map(column);
    assert_eq!(all, ["new", "-", "-", "-", "-", "-"], "{table}");
}

/// The others are busy until two commands have lost the GPU; after that it is left alone.
#[test]
fn a_gpu_that_every_command_loses_is_left_out_and_the_others_do_its_work() {
    let place = place(
        r#"
[tasks.train]
command = """
echo "$CUDA_VISIBLE_DEVICES" >> seen
case $CUDA_VISIBLE_DEVICES in GPU-1a5f0000) echo 'CUDA error: device lost'; exit 1 ;; esac
until [ $(grep -c GPU-1a5f0000 seen) -ge 2 ]; do sleep 0.01; done
"""
matrix = { n = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }
retries = { device_lost = 1 }
timeout = "60s"
"#,
    );
    run(&place, &THREE).must_exit(0).must_say(&["12 tasks, 12 done"]);
    let lost = place.text_lines("seen").iter().filter(|gpu| *gpu == UUIDS[1]).count();
    assert_eq!((lost, place.text_lines("seen").len()), (2, 14));
    let attempts = place.tasks().into_values().map(|task| task["attempts"].as_u64().unwrap());
    assert_eq!(attempts.max(), Some(2));
}

#[test]
fn a_command_on_another_gpu_than_its_own_or_without_one_is_named_and_one_on_both_of_its_own_is_not() {
    let place = place(
        r#"
[tasks.both]
command = '''
for n in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' ' | xargs -n 1 | cut -c 5); do echo "$$ 2000000000 $n" >> processes; done
n=$(wc -c < looks); until [ $(wc -c < looks) -ge $((n + 9)) ]; do sleep 0.05; done
'''
device = 2

[tasks.stray]
command = '''
n=$(echo "$CUDA_VISIBLE_DEVICES" | cut -c 5); n=$(((n + 1) % 3))
echo $n > stray; echo "$$ 1000 $n" >> processes
n=$(wc -c < looks); until [ $(wc -c < looks) -ge $((n + 9)) ]; do sleep 0.05; done
'''

[tasks.without]
command = '''
echo "$$ 1000 0" >> processes
n=$(wc -c < looks); until [ $(wc -c < looks) -ge $((n + 9)) ]; do sleep 0.05; done
'''
device = "none"
"#,
    );
    fs::write(place.path("looks"), "").unwrap();
    let (processes, looks) = (place.path("processes"), place.path("looks"));
    let files = [("GPU_PROCESSES", processes.to_str().unwrap()), ("GPU_LOOKS", looks.to_str().unwrap())];
    let ended = run(&place, &[&THREE[..], &files].concat());
    ended.must_exit(0).must_say(&["3 tasks, 3 done", "task=without, gpu=GPU-0a5f0000"]);
    let stray: usize = place.text_lines("stray")[0].parse().unwrap();
    ended.must_say(&[&format!("task=stray, gpu={}", UUIDS[stray])]);
    assert!(!ended.stderr.contains("task=both"), "{}", ended.stderr);
    place.no_process_is_left();
    // The most of one GPU, not the sum.
    assert_eq!(place.tasks()["both"]["gpu_memory"], 2_000_000_000_u64);
}
