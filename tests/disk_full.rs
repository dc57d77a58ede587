//! A disk that fills up while results are written: the run stops with 75 and says which file, what is there is whole, and with room again
//! the same command completes it exactly. It is played by the limit on file sizes that the running process is given, which puts the end
//! at any byte, and where a process may mount one, by a small file system of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::under::runs_under;
use crate::common::{Run, Workplace};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

const ITEMS: u64 = 3_000;

/// From now on no file of the run may grow beyond this.
fn limit_files_of(run: &Run, bytes: u64) {
    let pid = i32::try_from(run.pid()).ok().and_then(Pid::from_raw);
    // The limit that a process may set for itself again stays as it is.
    let old = rustix::process::getrlimit(Resource::Fsize);
    prlimit(pid, Resource::Fsize, Rlimit { current: Some(bytes), maximum: old.maximum }).unwrap();
}

#[test]
fn a_disk_that_is_full_again_and_again_costs_no_record_and_tears_none() {
    let place = Workplace::with_gate(ITEMS);
    let mut stopped = 0;
    // Room for no byte more, for a part of a record, and for some records and a part.
    for room in [0, 1, 100, 3_333, 20_000] {
        let run = place.start_until(150);
        let size = fs::metadata(place.out().join("results.jsonl")).unwrap().len();
        limit_files_of(&run, size + room);
        place.open_gate();
        run.wait().must_exit(75).must_say(&["results could not be written", "results.jsonl", "go on"]);
        stopped += 1;
        // No torn record, none twice: also before anything is mended.
        let records = place.records();
        assert!(records.failed.is_empty() && (records.done.len() as u64) < ITEMS);
        assert_eq!(place.report()["items"]["done"], records.done.len());
        assert_eq!(place.report()["exit_code"], 75);
        place.nothing_is_left();
    }
    assert_eq!(stopped, 5);
    place.run(&[]).must_exit(0).must_say(&["going on: "]);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}

/// A file system in memory, seen by this process and its children alone.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, size: &str) -> Self {
        fs::create_dir(at).unwrap();
        let disk = Self(at.to_owned());
        disk.call("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none"]);
        disk
    }

    fn resize(&self, size: &str) {
        self.call("mount", &["-o", &format!("remount,size={size}")]);
    }

    fn call(&self, program: &str, arguments: &[&str]) {
        let ended = Command::new(program).args(arguments).arg(&self.0).output().unwrap();
        assert!(ended.status.success(), "{program}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The folder could not be removed otherwise; at the end of the process it is gone anyway.
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_file_system_without_room_costs_no_record_and_each_next_start_gets_further() {
    let own_mounts = ["unshare", "--user", "--map-root-user", "--mount"];
    let test = "disk_full::a_file_system_without_room_costs_no_record_and_each_next_start_gets_further";
    if !runs_under(&own_mounts, test) {
        return;
    }
    let place = Workplace::with_gate(ITEMS);
    place.open_gate();
    // No room for the list of items, for the logs, for the first results, for all of them.
    let disk = SmallDisk::mount(&place.out(), "16k");
    let mut before = 0;
    for size in ["16k", "48k", "128k", "256k", "320k", "384k"] {
        disk.resize(size);
        place.run(&[]).must_exit(75).must_say(&["No space left on device"]);
        place.nothing_is_left();
        if place.out().join("results.jsonl").is_file() {
            let records = place.records();
            let done = records.done.len();
            assert!(records.failed.is_empty() && done as u64 >= before && (done as u64) < ITEMS, "{done}");
            before = done as u64;
        }
    }
    assert!(before > 0, "some of the sizes had room for results");
    disk.resize("64m");
    place.run(&[]).must_exit(0).must_say(&["going on: "]);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}
