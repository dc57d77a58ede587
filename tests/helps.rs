//! Messages that tell what to write: the file with the mistake, mended as it was told, passes `check`; and a file that was converted as it was told is read.

use std::fs;
use std::process::Command;

use crate::common::{Ended, Workplace, npy, write_pictures};
use orchestra_core::DType;
use orchestra_testkit::models;

/// What is done with the fix.
enum Mend {
    /// It takes the place of this text.
    Replace(&'static str),
    /// It is a line of its own behind this one.
    Behind(&'static str),
    /// It is a command, which makes this file of the one that the workflow names.
    Run { from: &'static str, to: &'static str },
}

struct Case {
    /// The file that is read, where one is.
    file: &'static [u8],
    tables: &'static str,
    /// What is wrong, in words of the message.
    says: &'static str,
    /// What the help tells to write or to run, word for word.
    fix: &'static str,
    mend: Mend,
}

const LINES: &str = "[sources.s]\nkind = \"jsonl\"\npaths = [\"d.jsonl\"]\n[stages.t]\nkind = \"select\"\nfrom = \"s\"\ncolumns = { x = \"x\" }\n\
                     [sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n";
const CELLS: &str = "[sources.s]\nkind = \"csv\"\npaths = [\"d.csv\"]\n[stages.t]\nkind = \"select\"\nfrom = \"s\"\ncolumns = { id = \"id\", x = \"x\" }\n\
                     [sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n";
const LATIN: &str = "perhaps Windows-1252 or Latin-1";
const PATHS: &str = "paths = [\"d.jsonl\"]";

/// A file whose columns are not known by the first line, and the type that is named for the column.
const fn untyped(file: &'static [u8], says: &'static str, fix: &'static str) -> Case {
    Case { file, tables: LINES, says, fix, mend: Mend::Behind(PATHS) }
}

/// A file with another sign between its columns.
const fn between(file: &'static [u8], says: &'static str, fix: &'static str) -> Case {
    Case { file, tables: CELLS, says, fix, mend: Mend::Behind("paths = [\"d.csv\"]") }
}

const fn foreign(file: &'static [u8], says: &'static str, fix: &'static str) -> Case {
    Case { file, tables: CELLS, says, fix, mend: Mend::Run { from: "d.csv", to: "d.utf8.csv" } }
}

/// Tables with a word that is not the right one.
const fn word(tables: &'static str, word: &'static str, says: &'static str, fix: &'static str) -> Case {
    Case { file: b"", tables, says, fix, mend: Mend::Replace(word) }
}

const CASES: &[Case] = &[
    untyped(
        b"{\"id\": 1, \"x\": {\"a\": [1, 2]}}\n{\"id\": 2, \"x\": {\"a\": 3}}\n",
        "it is an object",
        "columns = { id = \"f64\", x = \"json\" }",
    ),
    untyped(
        b"{\"x\": [{\"b\": 1}]}\n{\"x\": []}\n",
        "a list that is no tensor",
        "columns = { x = \"json\" }",
    ),
    untyped(
        b"{\"x\": 18446744073709551615, \"first name\": \"a\"}\n{\"x\": 1, \"first name\": \"\"}\n",
        "a number that f64 does not hold",
        "columns = { x = \"text\", \"first name\" = \"text\" }",
    ),
    untyped(b"{\"x\": null}\n{\"x\": \"a\"}\n", "it is null", "columns = { x = \"json\" }"),
    between(b"id;x\n1;2\n", "in which \";\" stands", "delimiter = \";\""),
    between(b"id;x\n1,5;2\n", "in which \";\" stands", "delimiter = \";\""),
    between(b"\"id\"\tx\n1\t2\n", "in which \"\\t\" stands", "delimiter = \"\\t\""),
    foreign(b"id,x\n1,caf\xe9\n", LATIN, "iconv -f cp1252 -t utf8 d.csv > d.utf8.csv"),
    foreign(b"id,x,\xfcber\n1,2,3\n", LATIN, "iconv -f cp1252 -t utf8 d.csv > d.utf8.csv"),
    foreign(
        b"\xff\xfei\0d\0,\0x\0\n\x001\0,\x002\0\n\0",
        "it is UTF-16",
        "iconv -f utf-16 -t utf8 d.csv > d.utf8.csv",
    ),
    foreign(
        b"i\0d\0,\0x\0\n\x001\0,\x002\0\n\0",
        "it is UTF-16",
        "iconv -f utf-16le -t utf8 d.csv > d.utf8.csv",
    ),
    foreign(b"id,x\r1,2\r3,4\r", "old Macs", "tr '\\r' '\\n' < d.csv > d.utf8.csv"),
    Case {
        file: b"\xff\xfe{\0\"\0x\0\"\0:\x001\0}\0\n\0",
        tables: LINES,
        says: "it is UTF-16",
        fix: "iconv -f utf-16 -t utf8 d.jsonl > d.utf8.jsonl",
        mend: Mend::Run { from: "d.jsonl", to: "d.utf8.jsonl" },
    },
    word(
        "[sources.s]\nkind = \"range\"\nstop = 3\n[stages.t]\nkind = \"threshold\"\nfrom = \"s\"\nabove = 9007199254740993\n\
         [sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n",
        "above = 9007199254740993",
        "cannot be 9007199254740993",
        "above = 9007199254740992",
    ),
    word(
        "[sources.s]\nkind = \"random\"\nitems = 3\nshape = [2]\n[stages.v]\nkind = \"select\"\nfrom = \"s\"\ncolumns = { a = \"x\", b = \"x\" }\n\
         [stages.t]\nkind = \"argmax\"\nfrom = \"v\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n",
        "\"v\"",
        "must say which of the outputs",
        "\"v.a\"",
    ),
    word("[tasks.a]\ncommand = \"true\"\nretry = 3\n", "retry", "has no key `retry`", "retries"),
    word(
        "[tasks.a]\ncommand = \"true\"\noutput_files = \"x\"\ntimeouts = \"3s\"\n",
        "output_files = \"x\"\ntimeouts",
        "has no key `timeouts`",
        "timeout",
    ),
    word(
        "[tasks.a]\ncommand = \"echo {attempt}\"\n",
        "{attempt}",
        "nothing is called `attempt`",
        "$ORCHESTRA_ATTEMPT",
    ),
    word("[tasks.a]\ncommand = \"echo {slot}\"\n", "{slot}", "nothing is called `slot`", "$ORCHESTRA_SLOT"),
    word(
        "[tasks.a]\ncommand = \"echo {lr}\"\nmatrix = { learning = [1, 2] }\n",
        "{lr}",
        "nothing is called `lr`",
        "{{lr}}",
    ),
    word(
        "[tasks.a]\ncommand = \"true\"\n[tasks.b]\ncommand = \"cat {tasks.a.outputs}\"\n",
        "outputs",
        "tasks have no value `outputs`",
        "output",
    ),
];

fn check(place: &Workplace) -> Ended {
    place.on_file("check", &[])
}

#[test]
fn a_file_that_was_mended_as_it_was_told_passes() {
    for Case { file, tables, says, fix, mend } in CASES {
        let place = Workplace::of(format!("version = 1\n{tables}"));
        let name = if *tables == LINES { "d.jsonl" } else { "d.csv" };
        fs::write(place.path(name), file).unwrap();
        let ended = check(&place);
        let help =
            ended.stderr.lines().filter(|line| line.contains("= help: ")).collect::<Vec<_>>().join("\n");
        ended.must_exit(78).must_say(&[says]);
        assert!(help.contains(fix), "`{fix}` is not told:\n{}", ended.stderr);
        match mend {
            Mend::Replace(text) => place.edit(text, fix),
            Mend::Behind(line) => place.edit(line, &format!("{line}\n{fix}")),
            Mend::Run { from, to } => {
                let done = Command::new("sh").args(["-c", fix]).current_dir(place.path("")).status().unwrap();
                assert!(done.success(), "{fix}");
                place.edit(from, to);
            }
        }
        check(&place).must_exit(0);
        // What has items is read, too.
        if !file.is_empty() {
            place.run(&[]).must_exit(0).must_say(&[" 0 failed"]);
        }
    }
}

#[test]
fn a_column_may_be_called_with_its_stage_whatever_else_that_gives() {
    for (from, more) in [("", ""), ("", ", c = \"n * 2\""), ("two", ""), ("two", ", c = \"n * 2\"")] {
        let reads = if from.is_empty() { "\"same\"".to_owned() } else { "[\"same\", \"two\"]".to_owned() };
        let use_two = if from.is_empty() { "" } else { ", e = \"two.b + 1\"" };
        let text = format!(
            "version = 1\n[sources.n]\nkind = \"range\"\nstop = 3\n[stages.same]\nkind = \"select\"\nfrom = \"n\"\ncolumns = {{ a = \"n.n\"{more} }}\n\
             [stages.two]\nkind = \"select\"\nfrom = \"n\"\ncolumns = {{ b = \"n\" }}\n\
             [stages.both]\nkind = \"select\"\nfrom = {reads}\ncolumns = {{ a = \"same.a\", d = \"same.a + 1\"{use_two} }}\n\
             [sinks.o]\nkind = \"jsonl\"\nfrom = \"both\"\nordered = true\n[sinks.p]\nkind = \"jsonl\"\nfrom = \"two.b\"\n"
        );
        let place = Workplace::of(text);
        place.run(&[]).must_exit(0);
        let out = fs::read_to_string(place.out().join("o.jsonl")).unwrap();
        assert!(
            out.lines().count() == 3 && out.lines().next_back().unwrap().contains("\"a\":2,\"d\":3"),
            "{out}"
        );
    }
}

fn check_json(place: &Workplace, code: i32) -> serde_json::Value {
    let ended = place.on_file("check", &["--json"]);
    serde_json::from_str(&ended.must_exit(code).stdout).unwrap()
}

#[test]
fn a_check_for_scripts_finds_what_a_check_finds() {
    let place = Workplace::new();
    fs::write(place.path("a.csv"), "id,x\n1,2\n").unwrap();
    fs::write(place.path("b.csv"), "id,y\n1,2\n").unwrap();
    place.write(format!("version = 1\n{}", CELLS.replace("d.csv", "*.csv")));
    let said = "its columns are `id`, `y`, and those of the first file `id`, `x`";
    check(&place).must_exit(78).must_say(&[said]);
    let json = check_json(&place, 78);
    assert!(json["errors"][0]["message"].as_str().unwrap().contains(said), "{json}");
}

#[test]
fn a_delimiter_that_is_named_is_believed() {
    let place = Workplace::new();
    fs::write(place.path("d.csv"), "a;b\n1;2\n").unwrap();
    let named =
        LINES.replace("jsonl\"\npaths = [\"d.jsonl\"]", "csv\"\npaths = [\"d.csv\"]\ndelimiter = \",\"");
    fs::write(place.workflow(), format!("version = 1\n{}", named.replace("x = \"x\"", "x = \"a;b\"")))
        .unwrap();
    place.run(&[]).must_exit(0);
    assert!(fs::read_to_string(place.out().join("o.jsonl")).unwrap().contains("\"result\":\"1;2\""));
}

#[test]
fn an_integer_beyond_doubles_says_which_type_keeps_it_in_a_list_too() {
    let place = Workplace::new();
    for (rows, fix, kept) in [
        ("{\"x\": 1}\n{\"x\": 9007199254740993}\n", "columns = { x = \"text\" }", "\"9007199254740993\""),
        (
            "{\"x\": [1, 2]}\n{\"x\": [1, 9007199254740993]}\n",
            "columns = { x = \"json\" }",
            "[1, 9007199254740993]",
        ),
    ] {
        fs::write(place.path("d.jsonl"), rows).unwrap();
        place.write(format!("version = 1\n{LINES}"));
        place.run(&["--fresh"]).must_exit(65).must_say(&[fix]);
        place.edit(PATHS, &format!("{PATHS}\n{fix}"));
        place.run(&["--fresh"]).must_exit(0);
        let out = fs::read_to_string(place.out().join("o.jsonl")).unwrap();
        assert!(out.contains(kept), "{out}");
    }
}

#[test]
fn a_column_that_a_row_lacks_is_told_with_the_others() {
    let place = Workplace::new();
    for (kind, rows) in [
        ("csv", "id,x,n\n1,2,a\n2,,b\n"),
        ("jsonl", "{\"id\": 1, \"x\": 2, \"n\": \"a\"}\n{\"id\": 2, \"x\": null, \"n\": \"b\"}\n"),
    ] {
        fs::write(place.path(&format!("d.{kind}")), rows).unwrap();
        let tables = CELLS.replace("csv", kind).replace("x = \"x\"", "x = \"x\", n = \"n\"");
        place.write(format!("version = 1\n{tables}"));
        let fix = "columns = { id = \"f64\", x = \"f64?\", n = \"text\" }";
        place.run(&["--fresh"]).must_exit(65).must_say(&[fix]);
        let paths = format!("paths = [\"d.{kind}\"]");
        place.edit(&paths, &format!("{paths}\n{fix}"));
        place.run(&["--fresh"]).must_exit(0);
    }
}

#[test]
fn a_type_that_a_model_does_not_take_is_told_where_it_is_given() {
    let place = Workplace::new();
    let model = |dtype, row: &[usize]| {
        let written = models::identity(&place.path(""), dtype, row).unwrap();
        fs::rename(written, place.path("m.onnx")).unwrap();
    };
    let rest = "[models.m]\npath = \"m.onnx\"\n[stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\n[devices]\nuse = [\"cpu\"]\n";
    fs::write(place.path("d.jsonl"), "{\"x\": [1, 2]}\n").unwrap();
    let of = |source: &str| place.write(format!("version = 1\n[sources.s]\n{source}\n{rest}"));
    let lines = "kind = \"jsonl\"\npaths = [\"d.jsonl\"]\ncolumns = { x = \"i32[2]\" }";
    fs::write(place.path("d.csv"), "a,the b,c\n1,2,3\n4,5,6\n").unwrap();
    let cells = "kind = \"csv\"\npaths = [\"d.csv\"]";
    let range = "kind = \"range\"\nstop = 3";
    for (source, from, row, says, fix) in [
        (lines, "s", &[2][..], "gives another type", "x = \"f32(x)\""),
        (range, "s", &[], "gives another type", "x = \"f32(n)\""),
        (range, "s", &[1], "gives another shape", "x = \"f32([n])\""),
        (cells, "s", &[3], "feeds `x`, f32[batch, 3], by one tensor", "x = \"[a, the b, c]\""),
        (cells, "s.the b", &[1], "gives another shape", "x = \"[the b]\""),
        (cells, "s.a", &[3], "gives another shape", "x = \"[a, the b, c]\""),
    ] {
        model(DType::F32, row);
        of(source);
        place.edit("from = \"s\"", &format!("from = \"{from}\""));
        let fix = format!("columns = {{ {fix} }}");
        check(&place).must_exit(78).must_say(&[says, "kind = \"select\", from = \"s\"", &fix]);
        place.edit(&format!("from = \"{from}\""), "from = \"t\"");
        place.edit("[models.m]", &format!("[stages.t]\nkind = \"select\"\nfrom = \"s\"\n{fix}\n[models.m]"));
        place.run(&["--fresh"]).must_exit(0);
    }
    // A number alone is a list of one, where a list of one is meant.
    model(DType::F32, &[1]);
    of(&format!("{cells}\ncolumns = {{ a = \"f32[1]\" }}"));
    place.run(&["--fresh"]).must_exit(0);
}

#[test]
fn check_and_plan_say_how_many_items_there_are_and_what_each_is() {
    let array = |n: usize| npy(&format!("({n},)"), vec![0.0; n]);
    let place = Workplace::new();
    fs::write(place.path("x.npy"), array(12_345)).unwrap();
    fs::write(place.path("y.npy"), array(7)).unwrap();
    fs::write(place.path("a.csv"), "n\n1\n2\n").unwrap();
    fs::write(place.path("b.csv"), "n\n3\n").unwrap();
    write_pictures(&place.images(), 2);
    fs::write(place.path("list.txt"), "a.png\nb.png\nc.png\n").unwrap();
    for (source, says) in [
        ("kind = \"range\"\nstop = 1000000", "1,000,000 items, each one number (`n`, i64)"),
        ("kind = \"range\"\nstop = 1", "1 item, each one number (`n`, i64)"),
        ("kind = \"random\"\nitems = 12\nshape = [3, 2]", "12 items, each `x` f32[3, 2]"),
        ("kind = \"tensors\"\npaths = [\"x.npy\"]", "12,345 items, each one number (`x`, f32)"),
        // Several files are listed for that.
        ("kind = \"tensors\"\npaths = [\"*.npy\"]\nrows = 1", "12,352 items, each `x` f32[1]"),
        ("kind = \"csv\"\npaths = [\"*.csv\"]", "3 items, each one number (`n`, f64)"),
        ("kind = \"images\"\npaths = [\"images\"]", "2 items, each a picture"),
        ("kind = \"images\"\nmanifest = \"list.txt\"", "3 items, each a picture"),
    ] {
        let stage = match says.contains("picture") {
            true => "kind = \"image\"\nsize = [1, 1]",
            false => "kind = \"filter\"\nkeep = \"true\"",
        };
        let text = format!(
            "version = 1\n[sources.s]\n{source}\n[stages.t]\n{stage}\nfrom = \"s\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n"
        );
        place.write(text);
        check(&place).must_exit(0).must_print(&[says]);
        let json = check_json(&place, 0);
        assert!(json["sources"][0]["in_words"].as_str().unwrap().starts_with(says), "{json}");
        let number: String = says.split(' ').next().unwrap().replace(',', "");
        assert_eq!(json["sources"][0]["items"].to_string(), number);
        place.on_file("plan", &[]).must_exit(0).must_print(&[&format!("source s: {says}")]);
    }
}

#[test]
fn a_file_whose_items_are_requests_is_planned_and_no_run_is_made_of_it() {
    let text = "version = 1\n[sources.s]\nkind = \"request\"\ncolumns = { n = \"i64\" }\n[stages.t]\nkind = \"select\"\nfrom = \"s\"\n\
                columns = { m = \"n + n\" }\n[sinks.o]\nkind = \"reply\"\nfrom = \"t\"\n";
    let place = Workplace::of(text);
    let planned = place.on_file("plan", &[]);
    let planned = &planned.must_exit(0).stdout;
    assert!(planned.contains("source s: requests, each one number (`n`, i64)"), "{planned}");
    assert!(planned.contains("sink o <- t: the one who asked"), "{planned}");
    let says = ["items of source `s` are requests", "docs/guide/library.md", "kind = \"images\""];
    place.run(&[]).must_exit(78).must_say(&says);
    assert!(!place.out().exists(), "nothing is written");
}
