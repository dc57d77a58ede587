//! The parent opens, reads and maps no item, archive or table: `strace` sees every call of every thread of a run, and only loaders come near a file that
//! items lie in. It covers every kind of source that the registry has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{ORCHESTRA, Workplace, write_pictures};
use orchestra_testkit::skip::has_programs;

const ITEMS: u64 = 40;
/// What opens or reads a file, and what tells threads from processes.
const CALLS: &str = "open,openat,openat2,read,pread64,readv,preadv,preadv2,mmap,sendfile,copy_file_range,splice,clone,clone3,fork,vfork";

/// The calls of each thread, by its number.
fn calls(folder: &Path) -> BTreeMap<u32, String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let calls = files.map(|file| {
        let thread = file.extension().unwrap().to_str().unwrap().parse().unwrap();
        (thread, String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned())
    });
    calls.collect()
}

/// The threads of the process of which `first` is one: those that it has made, and those that these have made.
fn threads_of(first: u32, calls: &BTreeMap<u32, String>) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![first]);
    while let Some(thread) = next.pop() {
        found.insert(thread);
        let made = calls[&thread].lines().filter(|line| line.contains("CLONE_THREAD"));
        next.extend(made.filter_map(|line| line.rsplit_once("= ")?.1.parse::<u32>().ok()));
    }
    found
}

/// The pictures behind the descriptors of these calls: `3</path/of/images/00000000.png>`. Their names alone may be read, from the list of items.
fn pictures<'a>(calls: impl Iterator<Item = &'a String>, images: &Path) -> BTreeSet<String> {
    let folder = format!("<{}/", images.display());
    let lines = calls.flat_map(|calls| calls.lines());
    let named =
        lines.flat_map(|line| line.split(&folder).skip(1).filter_map(|rest| rest.split_once(".png>")));
    named.map(|(name, _)| name.to_owned()).collect()
}

/// The calls of the threads of the parent, and those of all other processes of a run that does all items.
fn traced(place: &Workplace) -> (Vec<String>, Vec<String>) {
    let traces = place.path("traces");
    fs::create_dir(&traces).unwrap();
    let run = Command::new("strace")
        .args(["-ff", "-y", "-s", "256", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(traces.join("thread"))
        .arg(ORCHESTRA)
        .arg("run")
        .arg(place.workflow())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(place.n_results() as u64, ITEMS);

    let calls = calls(&traces);
    fs::remove_dir_all(traces).unwrap();
    // The run was the first process, so that the others have larger numbers, unless these began anew: then a thread is missing below.
    let parent = *calls.keys().find(|thread| calls[thread].contains("workflow.toml")).unwrap();
    let threads = threads_of(parent, &calls);
    assert!(threads.len() > 3 && threads.len() < calls.len(), "{threads:?} of {:?}", calls.keys());
    let (of_parent, of_others): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|(thread, _)| threads.contains(thread));
    let text = |calls: Vec<(u32, String)>| calls.into_iter().map(|(_, calls)| calls).collect();
    (text(of_parent), text(of_others))
}

/// Loaders have opened all pictures, and the parent none.
fn only_loaders_open_pictures(place: &Workplace, of: &str) {
    let (of_parent, of_others) = traced(place);
    let seen = pictures(of_others.iter(), &place.images());
    assert_eq!(seen.len() as u64, ITEMS, "{of}: the traces show what loaders open: {seen:?}");
    let seen = pictures(of_parent.iter(), &place.images());
    assert!(seen.is_empty(), "{of}: the parent has opened pictures: {seen:?}");
}

#[test]
fn every_picture_is_opened_by_loaders_and_none_by_the_parent() {
    if !has_programs(&["strace"], "install it") {
        return;
    }
    let place = Workplace::with_pictures(ITEMS);
    only_loaders_open_pictures(&place, "images");
    place.holds_exactly(ITEMS);
}

/// Bytes of each item that lies in a file with others, at least.
const ITEM_BYTES: u64 = 256 << 10;

/// Files of many items, by a program that is not ours. Behind its end a picture may have any bytes.
const FILES: &str = r#"
import io, json, os, struct, sys, tarfile, zipfile
item_bytes, folder = int(sys.argv[1]), sys.argv[2]
names = sorted(os.listdir(f'{folder}/images'))
picture = lambda name: open(f'{folder}/images/{name}', 'rb').read() + b'x' * item_bytes
with open(f'{folder}/list.txt', 'w') as lines:
    lines.writelines(f'images/{name}\n' for name in names)
with open(f'{folder}/rows.jsonl', 'w') as lines:
    lines.writelines(json.dumps({'scan': f'images/{name}'}) + '\n' for name in names)
with open(f'{folder}/rows.csv', 'w') as lines:
    lines.write('scan\n')
    lines.writelines(f'images/{name}\n' for name in names)
with tarfile.open(f'{folder}/all.tar', 'w') as tar, zipfile.ZipFile(f'{folder}/all.zip', 'w', zipfile.ZIP_STORED) as z:
    for name in names:
        info = tarfile.TarInfo(name)
        info.size = len(picture(name))
        tar.addfile(info, io.BytesIO(picture(name)))
        z.writestr(name, picture(name))
head = str({'descr': '<f4', 'fortran_order': False, 'shape': (len(names), item_bytes // 4)}).encode() + b'\n'
with open(f'{folder}/rows.py', 'w') as script:
    script.write('import orchestra\n@orchestra.source\ndef rows():\n')
    script.write(f"    return [{{'scan': f'images/{{name}}'}} for name in {names}]\n")
array = b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head + b'\x00' * item_bytes * len(names)
open(f'{folder}/all.npy', 'wb').write(array)
with zipfile.ZipFile(f'{folder}/all.npz', 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('x.npy', array)
"#;

/// The keys of a source of this kind, the file in which its items lie, and a stage that takes them; `None`: its items lie in no file.
fn of_kind(kind: &str) -> Option<Vec<(&'static str, &'static str, &'static str)>> {
    let picture = "kind = \"image\"\nfrom = \"scans\"\nsize = [4, 8]";
    let column = "kind = \"image\"\nfrom = \"scans.scan\"\nsize = [4, 8]";
    let sum = "kind = \"argmax\"\nfrom = \"scans\"";
    Some(match kind {
        "images" => vec![("manifest = \"list.txt\"", "images", picture)],
        "files" => vec![(
            "manifest = \"list.txt\"",
            "images",
            "kind = \"select\"\nfrom = \"scans\"\ncolumns = { t = \"path\", size = \"size\" }",
        )],
        "jsonl" => vec![
            (
                "paths = [\"rows.jsonl\"]",
                "rows.jsonl",
                "kind = \"select\"\nfrom = \"scans\"\ncolumns = { t = \"scan\" }",
            ),
            ("paths = [\"rows.jsonl\"]\ncolumns = { scan = \"picture\" }", "rows.jsonl", column),
        ],
        "csv" => vec![
            (
                "paths = [\"rows.csv\"]",
                "rows.csv",
                "kind = \"select\"\nfrom = \"scans\"\ncolumns = { t = \"scan\" }",
            ),
            ("paths = [\"rows.csv\"]\ncolumns = { scan = \"picture\" }", "rows.csv", column),
        ],
        "parquet" => vec![(
            "paths = [\"rows.parquet\"]",
            "rows.parquet",
            "kind = \"select\"\nfrom = \"scans\"\ncolumns = { t = \"t\" }",
        )],
        "tar" => vec![(
            "paths = [\"all.tar\"]",
            "all.tar",
            "kind = \"image\"\nfrom = \"scans.png\"\nsize = [4, 8]",
        )],
        "zip" => vec![("paths = [\"all.zip\"]", "all.zip", picture)],
        "tensors" => {
            vec![("paths = [\"all.npy\"]", "all.npy", sum), ("paths = [\"all.npz\"]", "all.npz", sum)]
        }
        // Its items lie in the script: the planner, too, looks at it in another process.
        "python" => vec![(
            "script = \"rows.py\"\npython = \"python3\"\ncolumns = { scan = \"picture\" }",
            "rows.py",
            column,
        )],
        "random" | "range" | "request" => return None,
        kind => panic!("say here what the parent must not read of a source of kind `{kind}`"),
    })
}

#[test]
fn of_each_kind_of_source_the_parent_opens_no_file_that_items_lie_in() {
    if !has_programs(&["strace", "python3"], "install it") {
        return;
    }
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    let mut made = Command::new("python3");
    assert!(
        made.args(["-c", FILES, &ITEM_BYTES.to_string()]).arg(place.path("")).status().unwrap().success()
    );
    let write = |source: &str, stage: &str, sink: &str| {
        place.write(format!(
            "version = 1\n[sources.scans]\n{source}\n[stages.all]\n{stage}\n[sinks.results]\n{sink}\nfrom = \"all\"\n[limits]\nloaders = 2\n"
        ));
        let _ = fs::remove_dir_all(place.out());
    };
    let select = "kind = \"select\"\nfrom = \"scans\"\ncolumns = { t = \"scan\" }";
    write("kind = \"jsonl\"\npaths = [\"rows.jsonl\"]", select, "kind = \"parquet\"");
    place.run(&[]).must_exit(0);
    let mut parts = fs::read_dir(place.out()).unwrap().map(|entry| entry.unwrap().path());
    let part = parts.find(|path| path.extension().is_some_and(|end| end == "parquet")).unwrap();
    fs::rename(part, place.path("rows.parquet")).unwrap();
    for kind in orchestra_kinds::builtin().sources {
        let kind = kind.name();
        for (keys, file, stage) in of_kind(kind).into_iter().flatten() {
            write(&format!("kind = \"{kind}\"\n{keys}"), stage, "kind = \"jsonl\"\npath = \"results.jsonl\"");
            let (of_parent, of_others) = traced(&place);
            let opened = |calls: &[String], what: &Path| {
                let named = [format!("<{}>", what.display()), format!("<{}/", what.display())];
                let of_files = calls.iter().flat_map(|calls| calls.lines());
                of_files.filter(|line| named.iter().any(|named| line.contains(named))).count()
            };
            let images = place.images();
            for what in [place.path(file), images] {
                let by_parent = opened(&of_parent, &what);
                assert_eq!(by_parent, 0, "{kind}: the parent came near `{}`", what.display());
            }
            assert!(opened(&of_others, &place.path(file)) > 0, "{kind}: the traces show what loaders open");
        }
    }
    place.no_process_is_left();
}
