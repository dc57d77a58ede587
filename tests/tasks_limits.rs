//! What bounds commands: cores, memory, time and attempts, each by its class of end.

use std::fs;

use crate::common::Workplace;
use rustix::process::Signal;

#[test]
fn a_matrix_in_which_some_have_no_memory_and_one_hangs_ends_with_the_right_classes() {
    let place = Workplace::with_slots(
        4,
        r#"
[tasks.train]
command = '''
case {n} in
  3) ulimit -d; dd if=/dev/zero of=/dev/null bs=1G count=1;;
  8) echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"; exit 1;;
  5) echo "waiting for something"; sleep 1000;;
  *) echo "loss 0.{n}";;
esac
'''
matrix = { n = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }
memory = "200MB"
timeout = "10s"
grace = "1s"
retries = { out_of_memory = 1 }

[tasks.after-3]
command = ["true"]
after = "train[n=3]"

[tasks.after-4]
command = ["true"]
after = "train[n=4]"
"#,
    );
    let ended = place.run(&[]);
    ended.must_exit(65).must_say(&[
        "14 tasks, 10 done, 3 failed, 1 skipped",
        "train[n=8]: the command ran out of memory: torch.OutOfMemoryError: CUDA out of memory",
        "train[n=5]: the command took longer than its `timeout`, 10s: waiting for something",
    ]);
    place.no_process_is_left();
    let tasks = place.tasks();
    for (task, state, end, attempts) in [
        ("train[n=1]", "done", Some("done"), 1),
        ("train[n=3]", "failed", Some("out_of_memory"), 2),
        ("train[n=8]", "failed", Some("out_of_memory"), 2),
        ("train[n=5]", "failed", Some("timeout"), 1),
        ("after-3", "skipped", None, 0),
        ("after-4", "done", Some("done"), 1),
    ] {
        let of = &tasks[task];
        assert_eq!((of["state"].as_str(), of["end"].as_str()), (Some(state), end), "{of}");
        assert_eq!(of["attempts"], attempts, "{of}");
    }
    assert!(tasks["after-3"]["why"].as_str().unwrap().contains("`train[n=3]` has failed"));
    assert!(tasks["train[n=1]"]["peak_memory"].as_u64().unwrap() > 100_000);
    let log = fs::read_to_string(place.out().join("tasks/train/n=3/attempt-2.log")).unwrap();
    // A limit of the process refuses memory, and `dd` says so. A control group sets no such limit and kills, and then `dd` says nothing.
    let is_refused = log.contains("Z 195312");
    let words = if is_refused { "dd: memory exhausted" } else { "" };
    ended.must_say(&[&format!("train[n=3]: the command ran out of memory: {words}")]);
    assert_eq!(log.contains("Z dd: memory exhausted"), is_refused, "{log}");
}

/// As `torchrun` does: the process that failed says why, and what has started it writes a page about that.
#[test]
fn a_command_that_ran_out_of_memory_is_known_by_what_it_said_a_page_before_its_end() {
    let place = Workplace::with_slots(
        4,
        r#"
[tasks.page]
command = """
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
for n in $(seq 60); do echo "ChildFailedError: line $n"; done
exit 1
"""
retries = { out_of_memory = 1 }

[tasks.line]
command = "printf '%01000d MemoryError %01000d\\n' 0 0; exit 1"
retries = { out_of_memory = 1 }
"#,
    );
    place.run(&[]).must_exit(65);
    let tasks = place.tasks();
    for task in ["page", "line"] {
        let of = &tasks[task];
        assert_eq!((of["end"].as_str(), &of["attempts"]), (Some("out_of_memory"), &2.into()), "{of}");
    }
    let why = tasks["page"]["why"].as_str().unwrap();
    assert!(why.ends_with("line 60") && why.lines().count() == 21, "people are shown less: {why}");
    assert!(tasks["line"]["why"].as_str().unwrap().len() < 500);
}

#[test]
fn cores_of_one_command_are_of_no_other_one_and_its_memory_is_bounded() {
    let place = Workplace::with_slots(
        4,
        r#"
[tasks.pinned]
command = '''
test "$(nproc)" = 1 || exit 7
exec 9> core-$(taskset -cp $$ | sed 's/.*: //')
flock -n 9 || { echo "the core has two owners"; exit 9; }
sleep 0.05
'''
cpus = 1
matrix = { n = [1, 2, 3, 4, 5, 6] }

[tasks.bounded]
command = '''
group=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)
test "$(ulimit -d)" = 65536 || test "$(cat $group/memory.max)" = 67108864 || exit 7
'''
memory = "64MiB"
"#,
    );
    // With as many slots as cores none is ever short of one.
    place.edit("[devices]\nslots = 4\n", "");
    place.run(&[]).must_exit(0).must_say(&["7 tasks, 7 done, 0 failed"]);
    let cores = fs::read_dir(place.path("")).unwrap().flatten();
    let cores = cores.filter(|file| file.file_name().to_string_lossy().starts_with("core-")).count();
    let all = std::thread::available_parallelism().unwrap().get();
    assert!((1..=all.min(4)).contains(&cores), "{cores} of {all} cores");
    place.no_process_is_left();
}

#[test]
fn a_command_is_asked_to_end_by_the_signal_that_it_names() {
    let place = Workplace::with_slots(
        4,
        r#"
[tasks.asked]
command = '''
for signal in INT TERM USR1; do trap "echo $signal > {output}/asked; exit 4" $signal; done
sleep 1000 & wait
'''
stop_signal = "SIGUSR1"
timeout = "10s"
"#,
    );
    place.run(&[]).must_exit(65).must_say(&["took longer than its `timeout`, 10s"]);
    let asked = fs::read_to_string(place.out().join("tasks/asked/output/asked")).unwrap();
    assert_eq!((&asked[..], &place.tasks()["asked"]["end"]), ("USR1\n", &"timeout".into()));
    place.no_process_is_left();
}

#[test]
fn a_command_that_writes_nothing_for_too_long_is_ended_and_tried_again_as_one_that_takes_too_long() {
    let place = Workplace::with_slots(
        2,
        r#"
[tasks.hangs]
command = "echo began; ! test -e hung || exit 0; touch hung; sleep 1000"
quiet = "2s"
retries = { timeout = 1 }

[tasks.talks]
command = "for n in $(seq 40); do printf $n; sleep 0.1; done"
quiet = "3s"
"#,
    );
    place.run(&[]).must_exit(0).must_say(&["wrote nothing for as long as its `quiet`, 2s"]);
    let attempts = |task: &str| place.tasks()[task]["attempts"].clone();
    assert_eq!((attempts("hangs"), attempts("talks")), (2.into(), 1.into()));
    place.edit("retries = { timeout = 1 }", "grace = \"0s\"");
    place.edit("! test -e hung || exit 0;", "trap '' TERM;");
    place.run(&[]).must_exit(65);
    let hangs = &place.tasks()["hangs"];
    assert_eq!((&hangs["state"], &hangs["end"]), (&"failed".into(), &"timeout".into()));
    place.no_process_is_left();
}

#[test]
fn a_start_knows_of_a_command_that_was_ended_for_its_silence_although_the_run_was_killed() {
    let place = Workplace::with_slots(
        1,
        r#"
[tasks.hangs]
command = """
! test -e go || exit 0
trap 'touch asked' TERM
until test -e go; do sleep 0.05; done
exit 3
"""
quiet = "1s"
grace = "1h"
"#,
    );
    let mut run = place.start(&[]);
    run.must_reach("it was asked to end", || place.path("asked").exists());
    run.signal(Signal::KILL);
    run.wait();
    fs::write(place.path("go"), "").unwrap();
    place.no_process_is_left();
    let ended = place.run(&[]);
    ended.must_exit(0);
    assert!(!ended.stderr.contains("runs again"), "its end is known: {}", ended.stderr);
    assert_eq!(place.tasks()["hangs"]["attempts"], 2);
}
