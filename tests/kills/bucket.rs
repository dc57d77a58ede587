//! Objects of every form in a real store while the loaders that read them are killed: in the middle of the rows of an array, a table or an archive, and
//! before the first one. Each row has one record, with its own number.

use std::fs;

use super::Moment::{MidBatch, Reading};
use super::Struck;
use super::shapes::{self, Shape};
use crate::moto::Moto;
use orchestra_testkit::size::storm;

/// Rows of arrays and tables: more than a run reads ahead. And pictures.
const ROWS: u64 = 1_500;
const PICTURES: u64 = 900;

/// Of the array and the pictures of the place: one of each form that an object can have.
const MAKE: &str = "
import io, json, pathlib, tarfile, zipfile
array = (root / 'x.npy').read_bytes()
objects = {'x.npy': array}
for name, method in (('stored.npz', zipfile.ZIP_STORED), ('deflated.npz', zipfile.ZIP_DEFLATED)):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', method) as archive:
        archive.writestr('x.npy', array)
    objects[name] = file.getvalue()
objects['x.jsonl'] = ''.join(json.dumps({'x': [100 + n]}) + '\\n' for n in range(ROWS)).encode()
objects['x.csv'] = ('x\\n' + ''.join(f'[{100 + n}]\\n' for n in range(ROWS))).encode()
pictures = sorted((root / 'images').iterdir())
for picture in pictures:
    objects[f'img/{picture.name}'] = picture.read_bytes()
objects['named.jsonl'] = ''.join(json.dumps({'p': f's3://digits/kills/img/{picture.name}'}) + '\\n' for picture in pictures).encode()
zipped, tarred = io.BytesIO(), io.BytesIO()
with zipfile.ZipFile(zipped, 'w', zipfile.ZIP_DEFLATED) as archive:
    for picture in pictures:
        archive.write(picture, picture.name)
with tarfile.open(fileobj=tarred, mode='w') as archive:
    for picture in pictures:
        archive.add(picture, picture.name)
objects['pictures.zip'], objects['pictures.tar'] = zipped.getvalue(), tarred.getvalue()
for name, body in objects.items():
    s3.put_object(Bucket='digits', Key=f'kills/{name}', Body=body)
";

/// A source of rows, and of the column that the model reads.
const ROWS_OF: [(&str, &str, &str); 6] = [
    ("tensors", "x.npy", ""),
    ("tensors", "stored.npz", ""),
    ("tensors", "deflated.npz", ""),
    ("parquet", "table.parquet", "columns = { x = \"f32[1]\" }"),
    ("jsonl", "x.jsonl", "columns = { x = \"f32[1]\" }"),
    ("csv", "x.csv", "columns = { x = \"f32[1]\" }"),
];

/// A source of pictures, and its column of pictures.
const PICTURES_OF: [(&str, &str, &str, &str); 3] = [
    ("jsonl", "named.jsonl", "columns = { p = \"picture\" }", "scans.p"),
    ("zip", "pictures.zip", "", "scans"),
    ("tar", "pictures.tar", "columns = [\"png\"]", "scans.png"),
];

/// One run of a source in the bucket.
fn loaders_die(moto: &Moto, shape: &'static Shape, n: u64, source: &str, column: &str, file: &str) {
    let Some(struck) = Struck::new(shape, n) else { return };
    let place = &struck.place;
    let text = fs::read_to_string(place.workflow()).unwrap();
    let (before, rest) = text.split_once(&format!("[sources.{}]\n", shape.source)).unwrap();
    let (_, behind) = rest.split_once("[models").unwrap();
    let from = format!("from = \"{}\"", shape.source);
    let behind = behind.replacen(&from, &format!("from = \"{column}\""), 1);
    place.write(format!("{before}[sources.{}]\n{source}\n[models{behind}", shape.source));
    struck.gate.close_after(0).unwrap();
    let mut run = struck.start(&moto.variables(), &[]);
    let mut stood = 0;
    for moment in [Reading, MidBatch] {
        assert!(struck.stands(&mut run, stood), "{}", run.said());
        struck.kill_loader(&mut run, moment);
        stood = struck.gate.n_waiting();
        struck.kill_and_let_through(&mut run, moment, n * shape.rows / 3);
    }
    struck.gate.open().unwrap();
    run.wait().must_exit(0);
    struck.assert_exact();
    let restarts = place.report()["loaders"]["restarts"].as_u64().unwrap();
    println!("{file}: two loaders were killed, {restarts} restarts");
    assert!(restarts > 0);
}

#[test]
fn rows_arrays_and_pictures_of_objects_have_their_records_whatever_dies() {
    let Some(moto) = Moto::start() else { return };
    let _turn = storm();
    let Some(arrays) = Struck::new(&shapes::LOOP, ROWS) else { return };
    let place = &arrays.place;
    crate::common::write_pictures(&place.images(), PICTURES);
    let root = format!(
        "import pathlib\nROWS = {ROWS}\nroot = pathlib.Path({:?})\n",
        place.path("").to_str().unwrap()
    );
    moto.python(&format!("{root}{MAKE}"));
    // The table is what our own sink makes of the array.
    let text = "version = 1\n[sources.x]\nkind = \"tensors\"\npaths = [\"x.npy\"]\n[stages.all]\nkind = \"filter\"\nkeep = \"true\"\nfrom = \"x\"\n\
                [sinks.table]\nkind = \"parquet\"\nfrom = \"all\"\nordered = true\n";
    place.run_file(text, "table", &[]).must_exit(0);
    moto.python(&format!(
        "{root}s3.upload_file(str(root / 'table/table-00000.parquet'), 'digits', 'kills/table.parquet')"
    ));

    for (kind, file, more) in ROWS_OF {
        let source = format!("kind = \"{kind}\"\npaths = [\"s3://digits/kills/{file}\"]\n{more}");
        loaders_die(&moto, &shapes::LOOP, ROWS, &source, if more.is_empty() { "x" } else { "x.x" }, file);
    }
    for (kind, file, more, column) in PICTURES_OF {
        let source = format!("kind = \"{kind}\"\npaths = [\"s3://digits/kills/{file}\"]\n{more}");
        loaders_die(&moto, &shapes::PLAIN, PICTURES, &source, column, file);
    }
}
