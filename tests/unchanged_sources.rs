//! A second start looks at files that hold many items, and reads of those that did not change no more than a block, for the plan: `strace` counts the bytes of all
//! processes. The list of the run itself is tested in `orchestra-store`, what an edit makes of a run in `edited_sources.rs`.

use std::fs;
use std::process::{Command, Stdio};

use orchestra_testkit::skip::has_programs;

use crate::common::{ORCHESTRA, Workplace};
use crate::edited_sources::{edit_and_hide, file_of, rows_of};

const ITEMS: usize = 40;
/// Bytes of an item.
const ITEM: usize = 16 << 10;
/// What a plan may read of a file to know its columns.
const BLOCK: u64 = 128 << 10;

/// What the processes of a start have read of each file that ends in this name.
fn bytes_read(place: &Workplace, code: i32, files: &[&str]) -> Vec<u64> {
    let traces = place.path("traces");
    fs::create_dir(&traces).unwrap();
    let calls = "trace=read,pread64,readv,preadv,preadv2,mmap,sendfile,copy_file_range,splice";
    let run = Command::new("strace")
        .args(["-ff", "-y", "-s", "0", "-e", calls, "-o"])
        .arg(traces.join("thread"))
        .args([ORCHESTRA, "run"])
        .arg(place.workflow())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(code), "{}", String::from_utf8_lossy(&run.stderr));
    let all: Vec<String> = fs::read_dir(&traces)
        .unwrap()
        .map(|entry| String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap()).into_owned())
        .collect();
    fs::remove_dir_all(traces).unwrap();
    let of_file = |file: &&str| {
        let named = format!("<{}>", place.path(file).display());
        let lines = all.iter().flat_map(|calls| calls.lines()).filter(|line| line.contains(&named));
        // What is mapped may be read without a call: all of it.
        let read = |line: &str| match line.strip_prefix("mmap(") {
            Some(rest) => rest.split(", ").nth(1)?.parse::<u64>().ok(),
            None => line.rsplit_once("= ")?.1.split(' ').next()?.parse().ok(),
        };
        lines.filter_map(read).sum()
    };
    files.iter().map(of_file).collect()
}

#[test]
fn a_second_start_looks_at_files_that_did_not_change_and_lists_those_that_did() {
    if !has_programs(&["strace"], "install it") {
        return;
    }
    // With whether its items are called by their place, so that an edit of its bytes is one of finished items.
    for (kind, end, by_place) in [
        ("csv", "csv", true),
        ("jsonl", "jsonl", true),
        ("tensors", "npy", true),
        ("tensors", "npz", true),
        ("parquet", "parquet", true),
        ("tar", "tar", false),
        ("zip", "zip", false),
    ] {
        let place = rows_of(kind, &format!("?.{end}"));
        let [first, second] = ["b", "c"].map(|name| format!("{name}.{end}"));
        let numbers: Vec<u64> = (0..ITEMS as u64).collect();
        let (bytes, files) = (file_of(&first, &numbers, ITEM).0, [&*first, &*second]);
        let len = bytes.len() as u64;
        fs::write(place.path(&first), &bytes).unwrap();
        let read = bytes_read(&place, 0, &files)[0];
        assert!(read > len / 2, "{end}: the traces show what is read, {read} of {len} bytes");
        assert_eq!(place.n_results(), ITEMS);
        let read = bytes_read(&place, 0, &files)[0];
        assert!(read <= BLOCK, "{end}: {read} bytes of {len} are read again");
        // A file that is new is listed and read, and the other one is not.
        fs::copy(place.path(&first), place.path(&second)).unwrap();
        let read = bytes_read(&place, 0, &files);
        assert!(read[0] <= BLOCK && read[1] > len / 2, "{end}: {read:?} bytes of {len}");
        assert_eq!(place.n_results(), 2 * ITEMS);
        let read = bytes_read(&place, 0, &files);
        assert!(read.iter().sum::<u64>() <= BLOCK, "{end}: {read:?} bytes of {len} are read again");
        // An edit that hides is found: the list of that file is made anew.
        let mut edited = bytes;
        let at = edited.len() / 2;
        edited[at] ^= 1;
        edit_and_hide(&place.path(&second), &edited);
        let ended = place.run(&[]);
        match by_place {
            // The checksum of its member is wrong.
            true if end == "npz" => ended.must_say(&[&*second, "damaged"]),
            true => ended.must_exit(78).must_say(&["not the same any more", &*second]),
            false => ended.must_exit(0),
        };
        assert_eq!(place.n_results(), 2 * ITEMS);
    }
}
