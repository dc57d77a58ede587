//! Every kind of source: the items and values that were written come out, whatever program wrote them, and a damaged file is told by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ended, ORCHESTRA, Workplace, npy, python_env};
use orchestra_testkit::images::{Kind, write_pictures};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::{Value, json};

/// Items of each file.
const N: u64 = 40;

/// An archive is written by another program: Python's own library.
const ARCHIVES: &str = r#"
import io, json, struct, sys, tarfile
n, folder = int(sys.argv[1]), sys.argv[2]
def npy(shape, values, descr, code):
    head = str({'descr': descr, 'fortran_order': False, 'shape': shape}).encode() + b'\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head + b''.join(struct.pack(code, v) for v in values)
with tarfile.open(f'{folder}/pax.tar', 'w', format=tarfile.PAX_FORMAT) as tar:
    for i in range(n):
        members = {'cls': str(i).encode(), 'json': json.dumps({'i': i}).encode(), 'npy': npy((2,), (i, i + 0.5), '<f4', '<f')}
        for extension, content in members.items():
            info = tarfile.TarInfo('long/' * 40 + f'{i:03}.{extension}')
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
"#;

fn place() -> Workplace {
    let place = Workplace::new();
    write_pictures(&place.images(), N, Kind::Png).unwrap();
    let (n, folder) = (N.to_string(), place.path(""));
    let status = Command::new("python3").args(["-c", ARCHIVES, &n]).arg(folder).status().unwrap();
    assert!(status.success());
    place
}

/// Runs a workflow that writes each of these columns of the source `s`, in the order of its items; of `picture:column` its pixels.
fn run(place: &Workplace, source: &str, columns: &[&str]) -> Ended {
    let mut text = format!("version = 1\n[sources.s]\n{source}\n");
    for (at, column) in columns.iter().enumerate() {
        let from = match column.strip_prefix("picture:") {
            Some(picture) => {
                text +=
                    &format!("[stages.pixels]\nkind = \"image\"\nfrom = \"s.{picture}\"\nsize = [8, 8]\n");
                "pixels".to_owned()
            }
            None => format!("s.{column}"),
        };
        text += &format!("[stages.all{at}]\nkind = \"reduce\"\nop = \"concat\"\nfrom = \"{from}\"\n");
        text += &format!("[sinks.file{at}]\nkind = \"jsonl\"\nfrom = \"all{at}\"\npath = \"{at}.jsonl\"\n");
    }
    place.write(text);
    place.run(&["--fresh"])
}

/// Names of items, and the data of tensors or the value itself.
fn records(place: &Workplace, at: usize) -> Vec<(String, Value)> {
    let record = |mut record: Value| {
        let mut result = record["result"].take();
        if let Value::Object(columns) = &mut result {
            result = columns.values_mut().next().unwrap().take();
            if result.is_object() {
                result = result["data"].take();
            }
        }
        (record["item"].as_str().unwrap().to_owned(), result)
    };
    place.lines(&format!("{at}.jsonl")).into_iter().map(record).collect()
}

#[track_caller]
fn must_be(found: &[(String, Value)], expected: impl Iterator<Item = (String, Value)>) {
    assert_eq!(found, expected.collect::<Vec<_>>());
}

fn numbered(
    name: impl Fn(u64) -> String,
    value: impl Fn(u64) -> Value,
) -> impl Iterator<Item = (String, Value)> {
    (0..N).map(move |i| (name(i), value(i)))
}

/// What Python's own library finds in archives: a line of JSON per member, `[name, content as hexadecimal digits]`.
const MEMBERS: &str = r#"
import json, sys, tarfile
for path in sys.argv[1:]:
    with tarfile.open(path, 'r:') as tar:
        for member in tar:
            assert member.isfile() and member.mode == 0o644
            print(json.dumps([member.name, tar.extractfile(member).read().hex()]))
"#;

fn members(archives: &[PathBuf]) -> BTreeMap<String, Vec<u8>> {
    let listed = Command::new("python3").args(["-c", MEMBERS]).args(archives).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).unwrap();
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    let member = |line: &str| {
        let (name, digits): (String, String) = serde_json::from_str(line).unwrap();
        (name, digits.as_bytes().chunks(2).map(byte).collect())
    };
    let all: Vec<(String, Vec<u8>)> = text.lines().map(member).collect();
    let n = all.len();
    let all: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(all.len(), n, "a member is there once");
    all
}

/// Runs a workflow whose sink writes archives, and moves them to the folder `shards`.
fn shards(place: &Workplace, workflow: &str) -> Vec<PathBuf> {
    place.write(format!("version = 1\n{workflow}"));
    place.run(&["--fresh"]).must_exit(0);
    let verified = Command::new(ORCHESTRA).arg("verify").arg(place.out()).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    let folder = place.path("shards");
    let _ = fs::remove_dir_all(&folder);
    fs::rename(place.out().join("shards"), &folder).unwrap();
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn samples_that_the_sink_wrote_are_those_that_it_got_for_python_and_for_the_source() {
    let place = place();
    let files = shards(
        &place,
        "[sources.s]\nkind = \"tar\"\npaths = [\"pax.tar\"]\n[stages.all]\nkind = \"filter\"\nkeep = \"cls >= 0\"\nfrom = \"s\"\n\
         [sinks.t]\nkind = \"tar\"\nfrom = \"all\"\npath = \"shards/s.tar\"\nrows_per_file = 5\n",
    );
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    let expected: Vec<_> = (0..names.len()).map(|n| format!("s-{n:05}.tar")).collect();
    assert_eq!(names, expected);
    let full = files.iter().rev().skip(1).all(|file| members(std::slice::from_ref(file)).len() >= 5 * 4);
    assert!(full, "all but the last one have as many rows as they shall");
    let (before, after) = (members(&[place.path("pax.tar")]), members(&files));
    assert_eq!(after.len(), before.len() / 3 * 4);
    for (name, content) in &before {
        let (key, extension) = name.rsplit_once('.').unwrap();
        // The record of a sample has the name that the source would give to a text.
        let of = |extension: &str| &after[&format!("pax.tar/{key}.{extension}")];
        match extension {
            "json" => assert_eq!(of("result.json"), content),
            "npy" => assert_eq!(of("npy")[of("npy").len() - 8..], content[content.len() - 8..]),
            _ => assert_eq!(of(extension), content),
        }
        let record: Value = serde_json::from_slice(of("json")).unwrap();
        assert_eq!(record["item"], format!("pax.tar/{key}"));
    }
    let columns = ["cls", "result.json", "npy"];
    run(&place, "kind = \"tar\"\npaths = [\"shards/*\"]", &columns).must_exit(0);
    let sorted = |at: usize| {
        let mut found = records(&place, at);
        for (name, _) in &mut found {
            *name = name.split_once('/').unwrap().1.to_owned();
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    };
    let key = |i: u64| format!("pax.tar/{}{i:03}", "long/".repeat(40));
    must_be(&sorted(0), numbered(key, |i| json!(i)));
    must_be(&sorted(1), numbered(key, |i| json!(format!("{{\"i\": {i}}}"))));
    must_be(&sorted(2), numbered(key, |i| json!([i as f64, i as f64 + 0.5])));

    // Pictures, and an archive for as many bytes as one of them has.
    run(&place, "kind = \"images\"\npaths = [\"images/*\"]", &["picture:picture"]).must_exit(0);
    let pixels = records(&place, 0);
    let files = shards(
        &place,
        "[sources.s]\nkind = \"images\"\npaths = [\"images\"]\n[stages.all]\nkind = \"select\"\ncolumns = { photo = \"picture\", says = \"'any'\" }\n\
         from = \"s\"\n[sinks.t]\nkind = \"tar\"\nfrom = \"all\"\npath = \"shards/s.tar\"\nbytes_per_file = 1\n",
    );
    assert!(members(&files).values().any(|content| content == b"any"));
    run(&place, "kind = \"tar\"\npaths = [\"shards/*\"]", &["picture:png"]).must_exit(0);
    let written: BTreeMap<String, Value> = records(&place, 0)
        .into_iter()
        .map(|(name, value)| (name.split_once('/').unwrap().1.replace("_png", ".png"), value))
        .collect();
    assert_eq!(written, pixels.into_iter().collect());

    for (setting, says) in
        [("bytes_per_file = \"2 GiB\"", "1 byte to 1 GiB"), ("rows_per_file = 0", "rows_per_file")]
    {
        let text = fs::read_to_string(place.workflow()).unwrap();
        let text =
            format!("{}[sinks.u]\nkind = \"tar\"\nfrom = \"all0\"\npath = \"u.tar\"\n{setting}\n", text);
        fs::write(place.path("bad.toml"), text).unwrap();
        let bad = Command::new(ORCHESTRA).arg("check").arg(place.path("bad.toml")).output().unwrap();
        let said = String::from_utf8_lossy(&bad.stderr).into_owned() + &String::from_utf8_lossy(&bad.stdout);
        assert!(!bad.status.success() && said.contains(says), "{said}");
    }
    place.no_process_is_left();
}

/// Samples with a picture and a file, each larger than what a loader holds of rows whose size is known: with `make` they are written, else the archives
/// that a run has made of them are compared with them.
const LARGE: &str = r#"
import io, random, struct, sys, tarfile, zlib
def png(width, height, rows):
    def chunk(kind, content):
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows, 1)) + chunk(b'IEND', b'')
def sample(i):
    rows = b''.join(b'\0' + random.Random(i).randbytes(3 * 700) for _ in range(500))
    return {'png': png(700, 500, rows), 'bin': random.Random(i).randbytes(900_000 + i), 'cls': b'1'}
samples = {f's{i}': sample(i) for i in range(6)}
if sys.argv[1] == 'make':
    with tarfile.open(sys.argv[2], 'w') as tar:
        for key, members in samples.items():
            for extension, content in members.items():
                info = tarfile.TarInfo(f'{key}.{extension}')
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
else:
    found = {}
    for path in sys.argv[2:]:
        with tarfile.open(path) as tar:
            found |= {member.name.removeprefix('large.tar/'): tar.extractfile(member).read() for member in tar}
    for key, members in samples.items():
        assert found[f'{key}.bin'] == members['bin'], key
        assert found[f'{key}.png'][16:24] == struct.pack('>II', 700, 500), key
"#;

#[test]
fn pictures_and_files_go_to_a_sink_however_large_they_are() {
    let place = Workplace::new();
    let python = |arguments: &[PathBuf]| {
        let status = Command::new("python3").args(["-c", LARGE]).args(arguments).status().unwrap();
        assert!(status.success());
    };
    python(&["make".into(), place.path("large.tar")]);
    // With as little memory as one loader needs, too.
    for memory in ["", "[limits]\nmemory = \"200 MiB\"\nloaders = 1\n"] {
        let files = shards(
            &place,
            &format!(
                "{memory}[sources.s]\nkind = \"tar\"\npaths = [\"large.tar\"]\n[stages.all]\nkind = \"filter\"\nkeep = \"cls >= 0\"\n\
                 from = \"s\"\n[sinks.t]\nkind = \"tar\"\nfrom = \"all\"\npath = \"shards/s.tar\"\n"
            ),
        );
        python(&[vec!["compare".into()], files].concat());
    }
    place.no_process_is_left();
}

#[test]
fn rows_of_an_array_come_together_as_asked_and_a_file_that_cannot_be_beside_them_is_refused() {
    let place = Workplace::new();
    let array = npy(&format!("({N},)"), (0..N).map(|n| n as f32));
    fs::write(place.path("b.npy"), &array).unwrap();
    fs::write(place.path("empty.npz"), [b"PK\x05\x06", &[0; 18][..]].concat()).unwrap();
    let source = "kind = \"tensors\"\npaths = [\"b.npy\"]\ncolumn = \"b\"\n";
    run(&place, &format!("{source}rows = 10"), &["b"]).must_exit(0);
    let chunk = |at: u64| json!((at * 10..at * 10 + 10).map(|n| n as f64).collect::<Vec<_>>());
    must_be(
        &records(&place, 0),
        (0..N / 10).map(|at| (format!("b.npy[{}:{}]", at * 10, at * 10 + 10), chunk(at))),
    );
    for (more, says) in [
        ("rows = 16", &["40 rows", "`rows = 10`"][..]),
        ("beside = { c = \"none.npy\" }", &["none.npy`, which cannot be read: "]),
        ("beside = { c = \"empty.npz\" }", &["empty.npz`, which cannot be read: "]),
        ("beside = { b = \"b.npy\" }", &["has `b` twice"]),
        ("beside = { c = 3 }", &["must be the path of a file, in quotes"]),
        ("beside = \"b.npy\"", &["must be a table"]),
    ] {
        run(&place, &format!("{source}{more}"), &["b"]).must_exit(78).must_say(says);
    }
}

/// A record may name any file; a loader opens those beside it, and where the workflow file allows it.
fn records_name_no_picture_elsewhere(place: &Workplace, pixels: &[Value]) {
    let elsewhere = tempfile::tempdir().unwrap();
    let first = fs::read_dir(place.images()).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    let far = elsewhere.path().join("far.png");
    fs::copy(&first, &far).unwrap();
    fs::create_dir(place.path("lists")).unwrap();
    let up = format!("../{}", first.strip_prefix(place.path("")).unwrap().display());
    let lines = ["/etc/passwd", far.to_str().unwrap(), &up];
    let lines: Vec<_> = lines.map(|path| json!({ "path": path }).to_string()).to_vec();
    fs::write(place.path("lists/far.jsonl"), lines.join("\n")).unwrap();
    let source = "kind = \"jsonl\"\npaths = [\"lists/far.jsonl\"]\ncolumns = { path = \"picture\" }";
    run(place, source, &["picture:path"]).must_exit(65);
    let refused = place.errors();
    assert!(
        refused.len() == 3 && refused.iter().all(|error| error.contains("`sandbox_read`")),
        "{refused:?}"
    );
    let allowed = format!("{source}\nsandbox_read = [\"images\", {:?}]", elsewhere.path());
    run(place, &allowed, &["picture:path"]).must_exit(65);
    let refused = place.errors();
    assert!(refused.len() == 1 && refused[0].contains("`/etc/passwd`: Permission denied"), "{refused:?}");
    let found: Vec<Value> = records(place, 0).into_iter().map(|(_, value)| value).collect();
    assert_eq!(found, [pixels[0].clone(), pixels[0].clone()]);
}

#[test]
fn fields_of_records_come_out_as_they_were_put_in_and_bad_records_fail_alone() {
    let place = place();
    let picture = |i: u64| {
        let mut names: Vec<_> =
            fs::read_dir(place.images()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        Path::new("images").join(&names[i as usize]).to_str().unwrap().to_owned()
    };
    let (mut jsonl, mut csv) = (String::new(), "id,caption,score,path\n".to_owned());
    for i in 0..N {
        let (score, path) = (i as f64 / 4.0 + 0.125, picture(i));
        jsonl += &json!({ "id": i, "caption": format!("line\n{i}"), "score": score, "emb": [i, i + 1], "path": path }).to_string();
        jsonl.push('\n');
        csv += &format!("{i},\"line\n{i}\",{score},{path}\n");
    }
    fs::write(place.path("r.jsonl"), &jsonl).unwrap();
    fs::write(place.path("r.csv"), &csv).unwrap();
    run(&place, "kind = \"images\"\npaths = [\"images/*\"]", &["picture:picture"]).must_exit(0);
    let pixels: Vec<Value> = records(&place, 0).into_iter().map(|(_, value)| value).collect();

    let lines = |i: u64| format!("r.jsonl:{}", i + 1);
    run(&place, "kind = \"jsonl\"\npaths = [\"r.jsonl\"]", &["id", "caption", "score", "emb"]).must_exit(0);
    must_be(&records(&place, 0), numbered(lines, |i| json!(i as f64)));
    must_be(&records(&place, 1), numbered(lines, |i| json!(format!("line\n{i}"))));
    must_be(&records(&place, 2), numbered(lines, |i| json!(i as f64 / 4.0 + 0.125)));
    must_be(&records(&place, 3), numbered(lines, |i| json!([i as f64, i as f64 + 1.0])));
    for (file, name) in
        [("jsonl", &lines as &dyn Fn(u64) -> String), ("csv", &|i| format!("r.csv:{}", 2 * i + 2))]
    {
        let columns = "columns = { id = \"i64\", caption = \"text\", path = \"picture\" }";
        let source = format!("kind = \"{file}\"\npaths = [\"r.{file}\"]\n{columns}");
        run(&place, &source, &["id", "caption", "picture:path"]).must_exit(0);
        must_be(&records(&place, 0), numbered(name, |i| json!(i)));
        must_be(&records(&place, 1), numbered(name, |i| json!(format!("line\n{i}"))));
        must_be(&records(&place, 2), numbered(name, |i| pixels[i as usize].clone()));
    }

    records_name_no_picture_elsewhere(&place, &pixels);

    fs::write(place.path("r.jsonl"), jsonl.replace("\"id\":7,", "").replace("\"id\":8,", "\"id\":\"8\","))
        .unwrap();
    fs::write(place.path("r.csv"), csv.replace("\n7,", "\nx,") + "41,\"never closed").unwrap();
    for (file, whys) in
        [("jsonl", ["no field `id`", "`id` is no f64"]), ("csv", ["`id` is no f64", "never closed"])]
    {
        run(&place, &format!("kind = \"{file}\"\npaths = [\"r.{file}\"]"), &["id"]).must_exit(65);
        let errors = place.errors();
        assert!(
            errors.len() == 2 && whys.iter().all(|why| errors.iter().any(|error| error.contains(why))),
            "{errors:?}"
        );
    }
    place.no_process_is_left();
}

#[test]
fn rows_of_parquet_are_read_whatever_they_are_compressed_with() {
    let Some(python) = python_env("pyarrow") else { return };
    let place = Workplace::new();
    let script = "import sys, pyarrow, pyarrow.parquet as pq\n\
                  table = pyarrow.table({'n': range(40), 'text': [f't{n}' * 30 for n in range(40)], 'x': [[n / 2, -n] for n in range(40)]})\n\
                  pq.write_table(table, sys.argv[1], compression=sys.argv[2], data_page_version=sys.argv[3], row_group_size=15)";
    for (codec, version) in [
        ("none", "1.0"),
        ("snappy", "2.0"),
        ("zstd", "1.0"),
        ("zstd", "2.0"),
        ("gzip", "1.0"),
        ("lz4", "1.0"),
        ("brotli", "2.0"),
    ] {
        let file = place.path("t.parquet");
        let written = Command::new(&python).args(["-c", script]).arg(&file).args([codec, version]).output();
        let written = written.unwrap();
        assert!(written.status.success(), "{codec}: {}", String::from_utf8_lossy(&written.stderr));
        let source = "kind = \"parquet\"\npaths = [\"t.parquet\"]\ncolumns = { n = \"i64\", text = \"text\", x = \"f32[2]\" }";
        run(&place, source, &["n", "text", "x"]).must_exit(0);
        let row = |i: u64| format!("t.parquet[{i}]");
        must_be(&records(&place, 0), numbered(row, |i| json!(i)));
        must_be(&records(&place, 1), numbered(row, |i| json!(format!("t{i}").repeat(30))));
        must_be(&records(&place, 2), numbered(row, |i| json!([i as f64 / 2.0, -(i as f64)])));
    }
    place.no_process_is_left();
}

/// A table of pictures as bytes and as paths, and of both in a struct, as data sets have them. Some of the rows are bad: one kind of trouble each.
const PICTURES: &str = r#"
import os, sys, pyarrow as pa, pyarrow.parquet as pq
folder = sys.argv[1]
names = sorted(os.listdir(f'{folder}/images'))
photos = [open(f'{folder}/images/{name}', 'rb').read() for name in names]
paths = [f'images/{name}' for name in names]
open(f'{folder}/text.png', 'w').write('no picture')
image = pa.array([{'bytes': photo, 'path': path} for photo, path in zip(photos, paths)])
photos[5], photos[9], photos[17] = b'no picture', None, b''
paths[6], paths[10], paths[18], paths[19], paths[20] = 'images/none.png', None, '', '/etc/passwd', 'text.png'
table = pa.table({'n': range(len(names)), 'photo': pa.array(photos, pa.binary()), 'path': pa.array(paths, pa.string()), 'image': image})
pq.write_table(table, f'{folder}/t.parquet', row_group_size=15, compression=sys.argv[2], data_page_version=sys.argv[3], use_dictionary=sys.argv[4] == 'True')
"#;

#[test]
fn pictures_in_columns_of_parquet_are_those_of_their_rows_and_a_bad_one_fails_by_name() {
    let Some(python) = python_env("pyarrow") else { return };
    let place = Workplace::new();
    write_pictures(&place.images(), N, Kind::Png).unwrap();
    run(&place, "kind = \"images\"\npaths = [\"images/*\"]", &["picture:picture"]).must_exit(0);
    let pixels: Vec<Value> = records(&place, 0).into_iter().map(|(_, value)| value).collect();
    assert!((1..N as usize).all(|i| pixels[i] != pixels[i - 1]), "each row has a picture of its own");

    let bad_photos = [
        (5, "pixels", "decode", "no picture"),
        (9, "all0", "decode", "`photo` is missing"),
        (17, "pixels", "decode", "empty"),
    ];
    let bad_paths = [
        (6, "all0", "read", "images/none.png"),
        (10, "all0", "decode", "`path` is missing"),
        (18, "all0", "decode", "the path of a picture is expected"),
        (19, "all0", "read", "`sandbox_read`"),
        (20, "pixels", "decode", "no picture"),
    ];
    for (codec, version, dictionary) in [("none", "1.0", "True"), ("zstd", "2.0", "False")] {
        let mut writer = Command::new(&python);
        writer.args(["-c", PICTURES]).arg(place.path("")).args([codec, version, dictionary]);
        let written = writer.output().unwrap();
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        let row = |i: u64| format!("t.parquet[{i}]");
        for (column, bad) in
            [("photo", &bad_photos[..]), ("path", &bad_paths), ("image.bytes", &[]), ("image.path", &[])]
        {
            let source = format!(
                "kind = \"parquet\"\npaths = [\"t.parquet\"]\ncolumns = {{ n = \"i64\", {column:?} = \"picture\" }}"
            );
            let code = if bad.is_empty() { 0 } else { 65 };
            run(&place, &source, &["n", &format!("picture:{column}")]).must_exit(code);
            let is_good = |i: u64| bad.iter().all(|(at, ..)| *at != i);
            let good = |(name, _): &(String, Value)| (0..N).any(|i| is_good(i) && row(i) == *name);
            let expected: Vec<_> = numbered(row, |i| pixels[i as usize].clone()).filter(good).collect();
            let found = records(&place, 1);
            let names =
                |rows: &[(String, Value)]| -> Vec<String> { rows.iter().map(|row| row.0.clone()).collect() };
            assert_eq!(names(&found), names(&expected), "{column}");
            let differs = found.iter().zip(&expected).find(|(a, b)| a.1 != b.1).map(|(row, _)| &row.0);
            assert!(differs.is_none(), "{column}: {differs:?} has the picture of another row");
            let failures = place.failures();
            let found: BTreeMap<_, _> =
                failures.iter().map(|failure| (failure["item"].as_str().unwrap(), failure)).collect();
            assert_eq!((failures.len(), found.len()), (bad.len(), bad.len()), "{column}: {failures:?}");
            for (i, stage, kind, error) in bad {
                let failure = found[&*row(*i)];
                assert_eq!((&failure["stage"], &failure["kind"]), (&json!(stage), &json!(kind)), "{failure}");
                assert!(failure["error"].as_str().unwrap().contains(error), "{failure}");
            }
        }
    }
    place.no_process_is_left();
}

#[test]
fn a_sink_has_columns_of_a_source_beside_what_was_made_of_them() {
    let place = Workplace::new();
    let text = WorkflowFile::new()
        .source("numbers", "range", "stop = 80")
        .stage("twice", "select", "numbers", "columns = { twice = 'n * 2' }")
        .sink("both", "csv", ["twice", "numbers"]);
    place.write(&*text);
    place.run(&[]).must_exit(0);
    let mut lines: Vec<String> =
        fs::read_to_string(place.path("out/both.csv")).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.remove(0), "item,index,source,twice,numbers");
    let expected = (0..80).map(|n| format!("{n},{n},numbers,{},{n}", 2 * n)).collect::<BTreeSet<_>>();
    assert_eq!((lines.len(), lines.into_iter().collect::<BTreeSet<_>>()), (80, expected));
    place.write(text.replace("[\"twice\", \"numbers\"]", "\"numbers\""));
    place.run(&["--fresh"]).must_exit(78).must_say(&["cannot read from source `numbers` alone", "select"]);
}

#[test]
fn a_summary_names_the_results_that_are_there_and_says_where_no_rows_came() {
    let sink = |kind: &str| format!("[sinks.{kind}]\nkind = \"{kind}\"\nfrom = \"few\"\n");
    let sinks: String = ["jsonl", "csv", "npy", "parquet", "tar"].map(sink).concat();
    for least in [2, 9] {
        let text = format!(
            "version = 1\n[sources.numbers]\nkind = \"range\"\nstop = 5\n[stages.all]\nkind = \"select\"\nfrom = \"numbers\"\n\
             columns = {{ n = \"n\" }}\n[stages.few]\nkind = \"filter\"\nfrom = \"all\"\nkeep = \"n >= {least}\"\n{sinks}"
        );
        let place = Workplace::of(text);
        // The second start says what the first one has left.
        for _ in 0..2 {
            let ended = place.run(&[]);
            let named =
                ended.must_exit(0).stderr.lines().filter_map(|line| line.trim().strip_prefix("results "));
            let (told, paths): (Vec<&str>, Vec<&str>) =
                named.map(str::trim).partition(|what| what.contains("no rows"));
            let none: &[&str] =
                &["no rows for sink `parquet`, so no file", "no rows for sink `tar`, so no file"];
            assert_eq!(told, if least == 9 { none } else { &[] });
            assert_eq!(paths.len() + told.len(), 5, "{ended:?}");
            for path in paths {
                // Of part files, a glob.
                let (stem, rest) = path.split_once('*').unwrap_or((path, ""));
                let stem = Path::new(stem);
                let is_named = |name: &str| {
                    name.starts_with(stem.file_name().unwrap().to_str().unwrap()) && name.ends_with(rest)
                };
                let mut files = fs::read_dir(stem.parent().unwrap()).unwrap();
                assert!(files.any(|file| is_named(file.unwrap().file_name().to_str().unwrap())), "{path}");
            }
        }
    }
}
