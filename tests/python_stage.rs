//! Stages in Python: the example gives what numpy gives, and what is wrong with a script is said, or fails no more than its item.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Ended, Workplace, npy, python, python_env, repository};
use orchestra_testkit::records::items;
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

fn example(name: &str) -> PathBuf {
    repository().join("examples").join(name)
}

/// Runs an example whose stage `stage` is in Python to its end, on the cores, and has its `check.py` look at what it gave.
fn run_example(python: &str, name: &str, stage: &str) -> Workplace {
    let place = Workplace::new();
    let (folder, out, set) = (example(name), place.out(), format!("stages.{stage}.python={python:?}"));
    let file = folder.join("workflow.toml");
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let run = ["run", file, "--output", out, "--devices", "cpu", "--set", &set];
    place.command(&run).must_exit(0).must_say(&["400 items read, 400 done, 0 failed"]);
    let check = Command::new(python).arg(folder.join("check.py")).arg("--output").arg(out).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
    assert!(check.status.success(), "{said}{errors}");
    place
}

/// A workplace whose `n` rows of four numbers, `4 i` to `4 i + 3`, go through `script`.
fn place(python: &str, n: u64, script: &str, more: &str) -> Workplace {
    let place = Workplace::new();
    fs::write(place.path("x.npy"), npy(&format!("({n}, 4)"), (0..4 * n).map(|x| x as f32))).unwrap();
    fs::write(place.path("stage.py"), script).unwrap();
    let keys = format!("script = \"stage.py\"\npython = {python:?}");
    let flow =
        WorkflowFile::new().source("x", "tensors", "paths = ['x.npy']").stage("y", "python", "x", keys);
    place.write(format!("{}{more}\n", &*flow.results("y")));
    place
}

/// Twice the row, and its sum.
const TWICE: &str = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=16, outputs={"twice": ("float32", [4]), "sum": ("int64", [])})
class Twice:
    def __init__(self):
        self.two = np.float32(2)

    def __call__(self, x):
        assert not x.flags.writeable and not x.flags.owndata
        return {"twice": x * self.two, "sum": x.sum(axis=1).astype(np.int64)}
"#;

/// That all but `failed` are done, each with its own numbers.
#[track_caller]
fn must_be_exact(place: &Workplace, n: u64, failed: &[u64]) {
    let done = items("x", (0..n).filter(|i| !failed.contains(i)));
    let records = place.must_hold(&done, &items("x", failed.iter().copied()));
    for (key, record) in &records.done {
        let first = 4 * key.index;
        let expected = serde_json::json!({
            "twice": { "dtype": "f32", "shape": [4], "data": (0..4).map(|k| (2 * (first + k)) as f32).collect::<Vec<_>>() },
            "sum": (4 * first + 6),
        });
        assert_eq!(record["results.jsonl"]["result"], expected, "{key}");
    }
}

#[test]
fn the_example_gives_what_numpy_gives() {
    let Some(python) = python() else { return };
    run_example(python, "python-worker", "centre").nothing_is_left();
}

#[test]
fn a_queue_to_a_worker_of_a_gpu_gives_what_numpy_gives_and_says_that_numpy_was_taken() {
    let Some(python) = python() else { return };
    let place = run_example(python, "pycuda-queue", "calibrated");
    let log = fs::read_to_string(place.out().join("logs/readings.log")).unwrap();
    assert!(log.contains("calibrates with numpy"), "{log}");
    place.no_process_is_left();
    // So does the script that it was made of.
    let mut before = Command::new(python);
    before.arg(example("pycuda-queue").join("before.py")).env("CUDA_VISIBLE_DEVICES", "");
    let before = before.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&before.stdout), "400 readings\n", "{before:?}");
}

/// Notes each time that it is made. The sixth call of each waits for a file.
const NOTES: &str = r#"
import os, time
import numpy as np
import orchestra

@orchestra.stage(batch=4, outputs={"pid": ("int64", [])})
class Notes:
    def __init__(self):
        with open("notes/made", "a") as made:
            made.write(f"{os.getpid()}\n")
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if self.calls == 6:
            open(f"notes/waits-{os.getpid()}", "w").close()
        while self.calls == 6 and not os.path.exists("notes/go"):
            time.sleep(0.01)
        return {"pid": np.full(len(x), os.getpid())}
"#;

#[test]
fn a_class_is_made_once_in_each_worker_and_once_more_for_the_successor_of_one_that_was_killed() {
    const ROWS: u64 = 100;
    let Some(python) = python() else { return };
    let place = place(python, ROWS, "", "[limits]\nbatch_timeout = \"1h\"");
    let notes = place.path("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(place.path("stage.py"), NOTES.replace("notes/", &format!("{}/", notes.display()))).unwrap();
    let keys = "workers = 2\nbatch = { max = 4 }\nsandbox_write = [\"notes\"]\npython =";
    place.edit("python =", keys);
    let made = || -> Vec<u32> {
        let text = fs::read_to_string(notes.join("made")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let mut run = place.start(&[]);
    let n_waiting = || {
        let files = fs::read_dir(&notes).unwrap().flatten();
        files.filter(|file| file.file_name().to_string_lossy().starts_with("waits-")).count()
    };
    run.must_reach("both have done five batches", || n_waiting() == 2);
    let sorted = |mut pids: Vec<u32>| {
        pids.sort_unstable();
        pids
    };
    let workers = sorted(run.workers());
    assert_eq!(sorted(made()), workers);
    assert!(strike(run.pid(), workers[0], Fault::Kill));
    run.must_reach("there is another one", || made().len() >= 3);
    fs::write(notes.join("go"), "").unwrap();
    run.wait().must_exit(0);
    let records = place.must_hold(&items("x", 0..ROWS), &BTreeSet::new());
    let made = made();
    let by: BTreeSet<u32> = made.iter().copied().collect();
    assert_eq!((made.len(), by.len()), (3, 3), "{made:?}");
    let pid = |of: &BTreeMap<String, Value>| of["results.jsonl"]["result"]["pid"].as_u64().unwrap();
    assert!(records.done.values().all(|record| by.contains(&(pid(record) as u32))));
    let device = &place.report()["devices"][0];
    assert_eq!((&device["starts"], &device["restarts"]), (&3.into(), &1.into()), "{device}");
    assert!(device["batches"].as_u64().unwrap() >= ROWS / 4, "{device}");
    place.nothing_is_left();
}

/// 32 pictures of 3 x 224 x 224 floats are 19 MB. The call says whether they lie in shared memory, and by how many bytes the process has grown over them.
const LARGE: &str = r#"
import numpy as np
import orchestra

def own():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))

def is_shared(x):
    address = x.__array_interface__["data"][0]
    with open("/proc/self/maps") as lines:
        for line in lines:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address and address + x.nbytes <= last:
                return "memfd" in line and line.split()[1] == "r--s"

@orchestra.stage(batch=32, outputs={"shared": ("bool", []), "first": ("float32", [])})
class Large:
    def __init__(self):
        self.before = own()

    def __call__(self, x):
        sums = np.add.reduce(x.reshape(len(x), -1), axis=1)
        assert (sums > 0).all()
        print(f"{len(x)} rows, grown by", own() - self.before)
        return {"shared": np.ones(len(x)) * is_shared(x) > 0, "first": x[:, 0, 0, 0]}
"#;

#[test]
fn a_batch_of_19_mb_crosses_without_a_copy() {
    const ROW: usize = 3 * 224 * 224;
    let Some(python) = python() else { return };
    let place = place(python, 1, LARGE, "");
    place.edit("python =", "workers = 1\nbatch = { max = 32, wait = \"60s\" }\npython =");
    let rows = (0..32 * ROW).map(|x| (x / ROW + 1) as f32);
    fs::write(place.path("x.npy"), npy("(32, 3, 224, 224)", rows)).unwrap();
    place.run(&[]).must_exit(0);
    let records = place.must_hold(&items("x", 0..32), &BTreeSet::new());
    for (key, record) in &records.done {
        let result = &record["results.jsonl"]["result"];
        assert_eq!(result["shared"], true, "{key}");
        assert_eq!(result["first"].as_f64(), Some((key.index + 1) as f64));
    }
    let grown = said(&place, "32 rows, grown by ");
    assert!(matches!(grown[..], [grown] if grown < 2 << 20), "{grown:?}");
}

/// The numbers behind these words in what the stage has printed.
fn said(place: &Workplace, words: &str) -> Vec<i64> {
    let logs = fs::read_dir(place.out().join("logs")).unwrap().flatten();
    let logs: String = logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect();
    let numbers = logs.split(words).skip(1);
    numbers
        .map(|rest| rest.split(|c: char| c != '-' && !c.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect()
}

/// Each call fills eight arrays of 512 kB, one after the other, and says how many pages the system had to give it for that.
const FILLS: &str = r#"
import resource
import numpy as np
import orchestra

@orchestra.stage(batch=4, outputs={"y": ("float32", [4])})
def fills(x):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(1 << 17, np.float32)
    print("faults:", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {"y": x}
"#;

#[test]
fn a_function_of_more_than_each_row_ends_the_run_and_says_what_to_do() {
    let Some(python) = python() else { return };
    let script = |outputs: &str, body: &str| {
        format!(
            "import numpy as np\nimport orchestra\ncalls = []\n@orchestra.stage(batch=4, outputs={{'y': {outputs}}})\ndef f(x):\n    {body}\n"
        )
    };
    for (outputs, body, is_refused) in [
        // Four rows of four numbers.
        ("('f32', [4])", "return {'y': x.T}", true),
        ("('f32', [4])", "return {'y': x - x.mean(0)}", true),
        ("('f32', [None])", "return {'y': x[:, :int(x[:, 0].max()) // 4 % 4 + 1]}", true),
        ("('i64', [])", "return {'y': np.full(len(x), len(x))}", true),
        // Another one at each call.
        ("('f32', [4])", "return {'y': x + np.random.rand(*x.shape)}", false),
        ("('i64', [])", "calls.append(0); return {'y': np.full(len(x), len(calls))}", false),
        ("('f32', [4])", "return {'y': x * np.nan}", false),
    ] {
        let place = place(python, 16, &script(outputs, body), "");
        place.edit("python =", "batch = { max = 4, wait = \"60s\" }\npython =");
        let ended = place.run(&[]);
        if !is_refused {
            ended.must_exit(0);
            continue;
        }
        ended.must_exit(78).must_say(&[
            "output `y`",
            "the items of a batch change each other",
            "batch = { max = 1 }",
            "--fresh",
        ]);
        assert!(fs::read(place.out().join("results.jsonl")).unwrap_or_default().is_empty(), "{body}");
        // What was told works.
        place.edit("max = 4", "max = 1");
        let alone = place.run(&["--fresh"]);
        if !body.contains(".T") {
            alone.must_exit(0);
        }
    }
}

#[test]
fn memory_that_a_call_has_freed_is_there_for_the_next_one() {
    let Some(python) = python() else { return };
    let place = place(python, 40, FILLS, "");
    place.edit("python =", "workers = 1\nbatch = { max = 4 }\npython =");
    place.run(&[]).must_exit(0);
    let mut faults = said(&place, "faults: ");
    faults.sort_unstable();
    // The first calls make the heap grow. One array alone has 128 pages.
    assert!(faults[faults.len() / 2] < 64, "{faults:?}");
}

#[test]
fn cupy_keeps_in_memory_what_it_compiles_since_its_folder_is_closed() {
    let Some(python) = python() else { return };
    let script = TWICE.replace("np.float32(2)", "np.float32(1 + int(os.environ['CUPY_CACHE_IN_MEMORY']))");
    let place = place(python, 40, &format!("import os\n{script}"), "");
    place.run(&[]).must_exit(0);
    must_be_exact(&place, 40, &[]);
}

#[test]
fn an_item_that_a_call_cannot_take_fails_alone_with_the_words_of_the_script() {
    let Some(python) = python() else { return };
    // Row 7 of the first batch raises, row 3 of the second is rejected by its number, row 5 of the third is called for ever, row 2 of the fourth ends the process.
    let script = TWICE.replace(
        "        return",
        r#"        print('{"not": "a frame"}', x[0, 0])
        for row, first in enumerate(x[:, 0]):
            if first == 4 * 7:
                raise KeyError("seven")
            if first == 4 * 19 and len(x) > 1:
                raise orchestra.ItemError(row, "no nineteen")  # Of a row alone nothing would be said.
            while first == 4 * 37:
                pass
            if first == 4 * 50:
                import os
                os._exit(3)
        return"#,
    );
    let place = place(python, 100, &script, "[limits]\nbatch_timeout = \"5s\"");
    place.edit("python =", "batch = { max = 16 }\npython =");
    place.run(&[]).must_exit(65).must_say(&["100 items read, 96 done, 4 failed"]);
    must_be_exact(&place, 100, &[7, 19, 37, 50]);
    let mut failures = place.failures();
    failures.sort_by_key(|failure| failure["index"].as_u64());
    let words = |at: usize| failures[at]["error"].as_str().unwrap();
    let kinds: Vec<_> = failures.iter().map(|failure| failure["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["model", "model", "timeout", "crash"]);
    assert_eq!((words(0), words(1)), ("KeyError: 'seven' (stage.py:15)", "no nineteen"));
    place.nothing_is_left();
}

#[test]
fn what_is_wrong_with_a_script_is_said_with_its_place_before_anything_runs() {
    let Some(python) = python() else { return };
    let said = |script: &str, code: i32, words: &[&str]| {
        let place = place(python, 20, script, "");
        let ended: Ended = place.run(&[]);
        ended.must_exit(code).must_say(words);
        place.nothing_is_left();
        place
    };
    let stage = |body: &str| {
        format!("import orchestra, sys\n@orchestra.stage(outputs={{'y': ('f32', [4])}})\ndef f(x):\n{body}\n")
    };
    for (script, words) in [
        ("def f(x:\n", &["script `stage.py`: SyntaxError", "line 1)", "workflow.toml:8:10"][..]),
        ("import orchestra\n", &["no function has @orchestra.stage"]),
        (
            "import orchestra\nimport no_such_module\n",
            &["No module named 'no_such_module' (stage.py:2)", "pip install"],
        ),
        ("open('/etc/passwd').read()\n", &["PermissionError", "sandbox_read"]),
        (
            "import orchestra\n@orchestra.stage\ndef f(x):\n    return {'y': x}\n",
            &["`f` does not say what it gives", "outputs = {"],
        ),
        (
            "import orchestra\n@orchestra.stage(outputs={'y': ('complex64', [4])})\ndef f(x): pass\n",
            &["`y` cannot be complex64"],
        ),
        ("import os, sys\nsys.stdout.write('{' * 99999)\nos._exit(0)\n", &["its answer cannot be read"]),
        ("import os\nprint('last words', flush=True)\nos.abort()\n", &["signal: 6", "last words"]),
        (
            "import orchestra\n@orchestra.stage(inputs={'x': ('f32', [5])}, outputs={'y': ('f32', [4])})\ndef f(x): pass\n",
            &["gives another shape than input `x` of script `stage.py` takes"],
        ),
    ] {
        said(script, 78, words);
    }
    // What only a call shows fails the items, with what was expected.
    for (body, words) in [
        ("    return {'z': x}", "it must give a dict of ['y'], and gave ['z']"),
        ("    x[:] = 0\n    return {'y': x}", "assignment destination is read-only"),
    ] {
        let place = said(&stage(body), 65, &["20 items read, 0 done, 20 failed"]);
        let errors = BTreeSet::from_iter(place.errors());
        assert!(errors.len() == 1 && errors.iter().all(|error| error.contains(words)), "{errors:?}");
    }
    // A class that cannot be made ends the run: no other worker will do better.
    let script = "import orchestra\n@orchestra.stage(outputs={'y': ('f32', [4])})\nclass F:\n    def __init__(self):\n        1 / 0\n    def __call__(self, x):\n        pass\n";
    said(
        script,
        69,
        &["no device is left for stage `y`", "ZeroDivisionError: division by zero (stage.py:5)"],
    );
}

/// A program that stands where an interpreter of the workflow is looked for: it tries what an interpreter of the user may, then becomes Python.
fn interpreter(python: &str, tried: &Path) -> String {
    format!("#!/bin/sh\necho tried > {tried:?}\nexec {python} \"$@\"\n")
}

#[test]
fn a_folder_with_modules_named_like_those_of_python_is_planned_and_nothing_in_it_runs_unconfined() {
    let Some(python) = python() else { return };
    let place = place(python, 20, TWICE, "");
    let run = place.path("was-run");
    for module in ["json", "types", "os", "posix", "encodings"] {
        let text = format!("open({run:?}, 'w').write(__name__)\nraise ImportError('no module of Python')\n");
        fs::write(place.path(&format!("{module}.py")), text).unwrap();
    }
    place.run(&[]).must_exit(0);
    must_be_exact(&place, 20, &[]);
    assert!(!run.exists(), "{:?}", fs::read_to_string(run));
}

#[test]
fn an_interpreter_that_comes_with_the_workflow_is_confined_before_it_says_what_it_reads() {
    let Some(python) = python() else { return };
    let place = place(python, 20, TWICE, "");
    let (tried, folder) = (place.path("tried"), place.path(".venv/bin"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("python"), interpreter(python, &tried)).unwrap();
    fs::set_permissions(folder.join("python"), fs::Permissions::from_mode(0o755)).unwrap();
    place.edit(&format!("python = {python:?}\n"), "");
    place.run(&[]).must_exit(0);
    must_be_exact(&place, 20, &[]);
    assert!(!tried.exists(), "it wrote a file");
}

#[test]
fn a_script_inherits_no_descriptor_of_who_plans_it() {
    let Some(python) = python() else { return };
    let script = format!(
        "import os\nopened = [n for n in range(3, 50) if os.path.exists(f'/proc/self/fd/{{n}}') and 'inherited' in os.readlink(f'/proc/self/fd/{{n}}')]\n\
         assert not opened, opened\n{TWICE}"
    );
    let place = place(python, 20, &script, "");
    fs::write(place.path("inherited"), "").unwrap();
    place.run_under(&format!("exec 9< {:?}", place.path("inherited")), &[]).must_exit(0);
    must_be_exact(&place, 20, &[]);
}

#[test]
fn a_script_that_starts_a_thread_is_planned_and_an_error_without_words_fails_its_item_alone() {
    let Some(python) = python() else { return };
    let thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n";
    let place = place(python, 20, &format!("{thread}{TWICE}"), "");
    place.run(&[]).must_exit(0);
    let mute = "class Mute(Exception):\n    def __str__(self):\n        raise ValueError(self)\n\n";
    let script = fs::read_to_string(place.path("stage.py")).unwrap();
    let raises = script.replace(
        "        return {",
        "        if (x[:, 0] == 12).any():\n            raise Mute\n        return {",
    );
    fs::write(place.path("stage.py"), raises.replace(thread, &format!("{thread}{mute}"))).unwrap();
    place.run(&["--fresh"]).must_exit(65).must_say(&["1 failed", "Mute: its words cannot be read"]);
}

#[test]
fn a_plan_whose_script_was_killed_from_outside_may_be_tried_again() {
    let Some(python) = python() else { return };
    let place = place(
        python,
        20,
        &format!(
            "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True:\n    pass\n{TWICE}"
        ),
        "",
    );
    place.run(&[]).must_exit(75).must_say(&["script `stage.py`: it ended with signal: 9", "start it again"]);
}

#[test]
fn no_start_goes_on_with_records_of_another_module_wherever_it_is_imported() {
    let Some(python) = python() else { return };
    for import in [
        "import inner",
        "def later():\n    import inner",
        "def later():\n    from one import inner",
        "def later():\n    import two",
    ] {
        let place = place(python, 20, &format!("{import}\n{TWICE}"), "");
        fs::create_dir(place.path("one")).unwrap();
        fs::write(place.path("two.py"), "class Two:\n    from one.inner import A\n").unwrap();
        let files = ["inner.py", "one/inner.py"].map(|file| place.path(file));
        files.iter().for_each(|file| fs::write(file, "A = 1\n").unwrap());
        place.run(&[]).must_exit(0);
        place.run(&[]).must_exit(0);
        files.iter().for_each(|file| fs::write(file, "A = 2\n").unwrap());
        place.run(&[]).must_exit(78).must_say(&["model `y/stage.py` changed"]);
    }
}

#[test]
fn no_other_program_takes_the_place_of_a_script_and_outlives_the_run() {
    let Some(python) = python() else { return };
    let script = format!(
        "import ctypes, os, sys, threading\nrefused = []\ndef other():\n    for name in (sys.executable, sys.executable.encode()):\n        \
         try: os.execv(name, [name, '-c', 'pass'])\n        except OSError as error: refused.append(error.errno)\n    \
         ctypes.CDLL(None, use_errno=True).fexecve(os.open(sys.executable, os.O_RDONLY), (ctypes.c_char_p * 2)(b'x', None), (ctypes.c_char_p * 1)(None))\n    \
         refused.append(ctypes.get_errno())\n\
         one = threading.Thread(target=other)\none.start(), one.join()\nassert refused == [1, 1, 1], refused\n{TWICE}"
    );
    let place = place(python, 20, &script, "");
    place.run(&[]).must_exit(0);
    must_be_exact(&place, 20, &[]);
}

#[test]
fn an_array_of_another_type_becomes_the_declared_one_or_fails_the_rows_that_it_cannot_hold() {
    let Some(python) = python() else { return };
    // The numbers of the rows are 0 to 3 and 4 to 7, and `bad` holds one for the second.
    let types = [
        ("f32", "f8", true, "1e39"),
        ("f16", "f4", true, "-1e6"),
        ("i32", "i8", true, "2**31"),
        ("i32", "f8", true, "4.5"),
        ("i16", "u8", true, "65536"),
        ("u8", "i4", true, "-1"),
        ("i64", "f8", true, "2.0**53"),
        ("i64", "u8", true, "2**64 - 1"),
        ("i32", "f4", true, "float('nan')"),
        ("f64", "i8", true, "2**53 + 1"),
        ("f64", "u8", true, "2**64 - 1"),
        ("f64", "i8", false, "7"),
        ("f64", "f4", false, "7"),
        ("i64", "u1", false, "7"),
    ]
    .map(|(declared, made, fails, bad)| {
        let body = format!("y = x.astype('{made}')\n    y[(x == 7).nonzero()] = {bad}");
        (declared, body, fails, ["output `y` is declared as", "which cannot hold"])
    });
    let masked = [
        ("np.ma.masked_equal(x, 7)", true),
        ("list(np.ma.masked_equal(x, 7))", true),
        ("np.ma.masked_equal(x, 7).astype('f8')", true),
        ("np.ma.masked_equal(x, 99)", false),
        ("np.ma.masked_equal(x, 7).filled(7)", false),
    ]
    .map(|(given, fails)| {
        (
            "f32",
            format!("y = {given}"),
            fails,
            ["output `y` is masked", "say what stands there, with .filled(..)"],
        )
    });
    for (declared, body, fails, words) in types.into_iter().chain(masked) {
        let script = format!(
            "import numpy as np\nimport orchestra\n@orchestra.stage(outputs={{'y': ('{declared}', [4])}})\ndef f(x):\n    {body}\n    return {{'y': y}}\n"
        );
        let place = place(python, 3, &script, "");
        let (done, code) = if fails { (2, 65) } else { (3, 0) };
        place.run(&[]).must_exit(code).must_say(&[&format!("3 items read, {done} done")]);
        let failed = items("x", fails.then_some(1));
        let records = place.must_hold(&items("x", (0..3).filter(|n| !fails || *n != 1)), &failed);
        for (item, record) in &records.done {
            let first = 4.0 * item.index as f64;
            let numbers: Vec<f64> =
                serde_json::from_value(record["results.jsonl"]["result"]["y"]["data"].clone()).unwrap();
            assert_eq!(numbers, [first, first + 1.0, first + 2.0, first + 3.0], "{declared} {body}");
        }
        for error in place.errors() {
            let is_said = words.iter().chain(&["at [3] of its row"]).all(|word| error.contains(word));
            assert!(is_said, "{declared} {body}: {error}");
            let is_told = error.contains("a float from 2^53 on may stand for another integer");
            assert_eq!(is_told, body.contains("2.0**53"), "{declared} {body}: {error}");
        }
    }
}

#[test]
fn an_array_that_is_turned_round_fits_in_no_part_of_its_batch() {
    let Some(python) = python() else { return };
    let script = "import orchestra\n@orchestra.stage(outputs={'y': ('f32', [2])})\ndef f(x):\n    return {'y': x[:, :2].T.copy()}\n";
    let place = place(python, 4, script, "");
    // Two rows of two numbers would fit.
    place.edit("python =", "workers = 1\nbatch = { max = 4, wait = \"60s\" }\npython =");
    place.run(&[]).must_exit(65).must_say(&["4 items read, 0 done"]);
    place.must_hold(&BTreeSet::new(), &items("x", 0..4));
    assert!(place.errors().iter().all(|error| error.contains("must have the shape [1, 2]")));
}

#[test]
fn what_the_sandbox_refuses_a_script_names_the_sandbox_and_its_keys() {
    let Some(python) = python() else { return };
    let bodies = [
        "open('/etc/passwd').read()",
        "open('/tmp/orchestra-was-here', 'w')",
        "import os; os.mkdir('made')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://orchestra.example/')",
        "import tempfile; tempfile.TemporaryFile()",
        "import multiprocessing; multiprocessing.Pool(2)",
        "from concurrent.futures import ProcessPoolExecutor; list(ProcessPoolExecutor().map(abs, [1]))",
        "try:\n        open('/etc/passwd')\n    except OSError as error: raise RuntimeError('no settings') from error",
    ];
    let errors = |body: &str, keys: &str| {
        let script = format!(
            "import orchestra\n@orchestra.stage(outputs={{'y': ('f32', [4])}})\ndef f(x):\n    {body}\n    return {{'y': x}}\n"
        );
        let place = place(python, 2, &script, "");
        place.edit("script =", &format!("{keys}script ="));
        place.run(&[]).must_exit(65);
        place.errors()
    };
    for body in bodies {
        let errors = errors(body, "");
        let is_said = |error: &String| {
            ["the worker is confined", "`sandbox_read`", "`sandbox_write`", "`sandbox = \"off\"`"]
                .iter()
                .all(|words| error.contains(words))
        };
        assert!(errors.len() == 2 && errors.iter().all(is_said), "{body}: {errors:?}");
    }
    let own = "raise PermissionError(13, 'Permission denied')";
    let unconfined = errors(own, "sandbox = \"off\"\n");
    assert!(
        unconfined.len() == 2 && !unconfined.iter().any(|error| error.contains("confined")),
        "{unconfined:?}"
    );
    let other = errors("raise ValueError('no such row')", "");
    assert!(other.len() == 2 && !other.iter().any(|error| error.contains("confined")), "{other:?}");
}

#[test]
fn the_package_for_scripts_passes_its_own_tests() {
    let Some(python) = python() else { return };
    let mut tests = Command::new(python);
    tests
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .current_dir(repository().join("clients/python"));
    tests.env("PYTHONPATH", ".").env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    let output = tests.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_types_of_the_package_for_scripts_are_sound() {
    let Some(python) = python_env("mypy") else { return };
    let mut check = Command::new(python);
    check.args(["-m", "mypy", "--strict", "orchestra", "orchestra_stages"]);
    check.args(["--cache-dir", "/dev/null"]).current_dir(repository().join("clients/python"));
    let output = check.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
