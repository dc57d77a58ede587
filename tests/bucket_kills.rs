//! Rows of tables and arrays in a bucket while the loaders that read them are killed: each row has one record, with its own number. Loaders of other
//! kinds of objects are killed in `objects.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::common::{Ended, Workplace, until_struck};
use crate::moto::Moto;
use orchestra_testkit::striker::{Fault, Striker};
use serde_json::Value;

const ROWS: u64 = 20_000;
const EVERY: Duration = Duration::from_millis(250);
/// So many kills must have hit for the test to mean anything.
const LEAST_KILLS: usize = 3;

/// Writes the numbers from 0 as an array, and as that in an archive, stored and deflated.
const ARRAYS: &str = "
import pathlib, struct, zipfile
head = str({'descr': '<i8', 'fortran_order': False, 'shape': (N,)}).encode() + b'\\n'
array = b'\\x93NUMPY\\x01\\x00' + struct.pack('<H', len(head)) + head + struct.pack(f'<{N}q', *range(N))
(root / 'x.npy').write_bytes(array)
for name, method in (('stored', zipfile.ZIP_STORED), ('deflated', zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(root / f'{name}.npz', 'w', method) as z:
        z.writestr('x.npy', array)
";

/// Writes the rows of this source to lines and to a table.
fn workflow(place: &Workplace, kind: &str, path: &str) {
    let columns = if kind == "parquet" { "columns = { x = \"i64\" }" } else { "" };
    let text = format!(
        "version = 1\n[sources.s]\nkind = \"{kind}\"\npaths = [\"{path}\"]\n{columns}\n[stages.all]\nkind = \"filter\"\nkeep = \"true\"\nfrom = \"s\"\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"all\"\npath = \"results.jsonl\"\n\
         [sinks.table]\nkind = \"parquet\"\nfrom = \"all\"\nordered = true\n"
    );
    fs::write(place.workflow(), text).unwrap();
}

#[track_caller]
fn each_row_is_there_once(place: &Workplace, ended: &Ended) {
    ended.must_exit(0).must_say(&["20,000 done, 0 failed"]);
    let text = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let index = record["index"].as_u64().unwrap();
        assert_eq!(record["result"]["x"].as_u64(), Some(index), "the record of another row: {line}");
        assert!(found.insert(index), "a row is there twice: {line}");
    }
    assert!(found.into_iter().eq(0..ROWS));
}

#[test]
fn tables_and_arrays_of_a_bucket_are_read_exactly_while_loaders_are_killed() {
    let Some(moto) = Moto::start() else { return };
    let place = Workplace::new();
    let root =
        format!("import pathlib\nN = {ROWS}\nroot = pathlib.Path({:?})\n", place.path("").to_str().unwrap());
    moto.python(&format!("{root}{ARRAYS}"));
    // The table is what our own sink makes of the array.
    workflow(&place, "tensors", "x.npy");
    each_row_is_there_once(&place, &place.run(&[]));
    fs::copy(place.out().join("table-00000.parquet"), place.path("table.parquet")).unwrap();
    let files = [
        ("tensors", "x.npy"),
        ("tensors", "stored.npz"),
        ("tensors", "deflated.npz"),
        ("parquet", "table.parquet"),
    ];
    for (kind, file) in files {
        moto.python(&format!("{root}s3.upload_file(str(root / '{file}'), 'digits', 'rows/{file}')"));
        workflow(&place, kind, &format!("s3://digits/rows/{file}"));
        let file_of_run = place.workflow();
        let arguments = ["run", file_of_run.to_str().unwrap(), "--fresh", "--set", "limits.loaders=4"];
        until_struck(LEAST_KILLS, EVERY, |every| {
            let run = place.start_command_with(&arguments, &moto.variables());
            let striker = Striker::of_loaders(run.pid(), every, Fault::Kill);
            let ended = run.wait();
            let kills = striker.stop().len();
            let restarts = place.report()["loaders"]["restarts"].as_u64().unwrap();
            println!("{file}: {kills} loaders were killed, {restarts} restarts");
            each_row_is_there_once(&place, &ended);
            kills.min(restarts as usize)
        });
    }
    place.no_process_is_left();
}
