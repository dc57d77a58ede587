//! Small files that become huge, or say that they are: pictures of each format, archives, arrays and tables. Each is one failure by name, or what it is
//! after all; what lies beside it is done, and all processes together stay below the limit. How the files are made stands in `bombs/`.

use std::fs::{self, File};
use std::path::Path;

use crate::common::{Workplace, npy_of, write_pictures};
use crate::hostile_files::ends::must_end;
use crate::hostile_files::pictures::{pictures, repeated_zlib};
use crate::peak::{MOST, peak_and_end, peak_of};
use orchestra_testkit::records::items;

const NEIGHBOURS: u64 = 60;

#[test]
fn each_crafted_picture_is_a_failure_by_name_or_its_row_and_its_neighbours_are_done() {
    let place = Workplace::with_pictures(NEIGHBOURS);
    // Behind the others by their names, in their own order.
    let bombs = pictures();
    for (name, bytes, _) in &bombs {
        assert!(bytes.len() < 6 << 20, "{name} is small: {}", bytes.len());
        fs::write(place.images().join(format!("bomb-{name}")), bytes).unwrap();
    }
    let peak = peak_of(&place, &[], 65);
    let records = place.records();
    let files = bombs.into_iter().map(|(name, _, ends)| (format!("bomb-{name}"), ends)).collect();
    let (mut done, failed) = must_end(&records, "scans", NEIGHBOURS, files);
    done.extend(items("scans", 0..NEIGHBOURS));
    place.must_hold(&done, &failed);
    assert!(peak < MOST, "{peak} bytes");
}

/// A workflow with this source `s`, and nothing but its column.
fn place_of(source: &str, column: &str) -> Workplace {
    let stage = match column {
        "picture" => "[stages.all]\nkind = \"image\"\nfrom = \"s\"\nsize = [8, 8]\n",
        _ => "[stages.all]\nkind = \"filter\"\nkeep = \"true\"\nfrom = \"s\"\n",
    };
    Workplace::of(format!(
        "version = 1\n[sources.s]\n{source}\n{stage}[sinks.results]\nkind = \"jsonl\"\nfrom = \"all\"\npath = \"results.jsonl\"\n[limits]\nmemory = \"512MiB\"\n"
    ))
}

/// Runs it, which ends with this code and says this; failures are of these kinds, one each.
fn ends_with(place: &Workplace, code: i32, says: &[&str], n_done: usize, kinds: &[&str]) {
    let (peak, ended) = peak_and_end(place, &[], code);
    ended.must_say(says);
    assert!(peak < MOST, "{peak} bytes");
    let failures = place.failures();
    let found: Vec<&str> = failures.iter().map(|failure| failure["kind"].as_str().unwrap()).collect();
    assert_eq!((place.n_results(), &found[..]), (n_done, kinds), "{failures:#?}");
    // No list that could fill a disk.
    let listed = place.out().join(".orchestra/items-s").metadata().map_or(0, |list| list.len());
    assert!(listed < 1 << 20, "the list has {listed} bytes");
}

/// An array without its elements.
fn npy(shape: &str) -> Vec<u8> {
    npy_of("|u1", shape, &[])
}

/// Makes the file so long, without writing to it.
fn grow(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn an_array_that_claims_more_items_than_are_allowed_is_refused_before_anything_is_written() {
    let rows = 1_u64 << 36;
    let says = "it claims 68719476736 items, and at most `limits.max_items = 100000000` are allowed";
    // Really that long, and all holes.
    let place = place_of("kind = \"tensors\"\npaths = [\"a.npy\"]", "x");
    let head = npy(&format!("({rows},)"));
    fs::write(place.path("a.npy"), &head).unwrap();
    grow(&place.path("a.npy"), rows + head.len() as u64);
    ends_with(&place, 78, &["a.npy", says], 0, &[]);
    assert!(!place.out().exists(), "nothing is written");
    // Behind a good one, which was looked at.
    fs::rename(place.path("a.npy"), place.path("b.npy")).unwrap();
    fs::write(place.path("a.npy"), [npy("(3,)"), vec![1, 2, 3]].concat()).unwrap();
    place.edit("\"a.npy\"", "\"a.npy\", \"b.npy\"");
    let (_, ended) = peak_and_end(&place, &[], 78);
    ended.must_say(&["b.npy", says]);
    let list = place.out().join(".orchestra/items-s").metadata().map_or(0, |list| list.len());
    assert!(list < 4096, "{list} bytes are listed");
    // So many in several files.
    fs::write(place.path("b.npy"), [npy("(3,)"), vec![1, 2, 3]].concat()).unwrap();
    place
        .run(&["--set", "limits.max_items=5"])
        .must_exit(78)
        .must_say(&["b.npy", "more than `limits.max_items = 5`"]);
    place.run(&["--fresh", "--set", "limits.max_items=6"]).must_exit(0);
    assert_eq!(place.n_results(), 6);
}

/// Records are lists within lists: with 20,001 of them, whatever writes one would run out of stack, and with it all pipelines of the run.
#[test]
fn an_array_of_more_dimensions_than_any_record_has_is_refused_by_name_wherever_it_comes_from() {
    let ones = "1,".repeat(20_001);
    let array = [npy(&format!("({ones})")), vec![7]].concat();
    let says = "it has 20001 dimensions, and at most 64 are read";
    let place = place_of("kind = \"tensors\"\npaths = [\"a.npy\"]", "x");
    fs::write(place.path("a.npy"), &array).unwrap();
    ends_with(&place, 78, &["a.npy", says], 0, &[]);
    // Behind a good one, which was looked at.
    fs::rename(place.path("a.npy"), place.path("b.npy")).unwrap();
    fs::write(place.path("a.npy"), [npy("(1,)"), vec![7]].concat()).unwrap();
    place.edit("\"a.npy\"", "\"a.npy\", \"b.npy\"");
    let (_, ended) = peak_and_end(&place, &[], 78);
    ended.must_say(&["b.npy", says]);
    let place = place_of(&format!("kind = \"random\"\nitems = 1\nshape = [{ones}]"), "x");
    ends_with(&place, 78, &["at most 64 sizes"], 0, &[]);
    let place = place_of("kind = \"jsonl\"\npaths = [\"a.jsonl\"]", "x");
    fs::write(place.path("a.jsonl"), format!("{{\"x\": {}1{}}}", "[".repeat(20_001), "]".repeat(20_001)))
        .unwrap();
    ends_with(&place, 78, &["the type of `x` is not known"], 0, &[]);
}

#[test]
fn a_source_of_any_kind_with_more_items_than_are_allowed_is_refused_by_name() {
    let most = ["--set", "limits.max_items=2"];
    for (source, column, beyond) in [
        ("kind = \"range\"\nstop = 3", "x", "`2` is one too many"),
        ("kind = \"random\"\nitems = 3", "x", "2"),
        ("kind = \"csv\"\npaths = [\"a.csv\"]", "x", "a.csv"),
        ("kind = \"jsonl\"\npaths = [\"a.jsonl\"]", "x", "a.jsonl"),
        ("kind = \"images\"\npaths = [\"images\"]", "picture", "00000002.png"),
        ("kind = \"images\"\nmanifest = \"list.txt\"", "picture", "00000002.png"),
    ] {
        let place = place_of(source, column);
        write_pictures(&place.images(), 3);
        fs::write(place.path("a.csv"), "x\n1\n2\n3\n").unwrap();
        fs::write(place.path("a.jsonl"), "{\"x\":1}\n{\"x\":2}\n{\"x\":3}\n").unwrap();
        let rows: String = (0..3).map(|index| format!("images/{index:08}.png\n")).collect();
        fs::write(place.path("list.txt"), rows).unwrap();
        place.run(&most).must_exit(78).must_say(&["more than `limits.max_items = 2`", beyond]);
        place.run(&["--fresh", "--set", "limits.max_items=3"]).must_exit(0);
        assert_eq!(place.n_results(), 3, "{source}");
    }
}

/// A zip archive of one member, whose entry says what it likes.
fn zip(name: &str, content: &[u8], method: u16, claims: u32, crc: u32) -> Vec<u8> {
    let packed = (content.len() as u32).to_le_bytes();
    let common = [
        &[20, 0, 0, 0][..],
        &method.to_le_bytes(),
        &[0; 4],
        &crc.to_le_bytes(),
        &packed,
        &claims.to_le_bytes(),
        &(name.len() as u16).to_le_bytes(),
    ]
    .concat();
    let local = [b"PK\x03\x04", &common[..], &[0, 0], name.as_bytes(), content].concat();
    let entry = [b"PK\x01\x02\x14\0", &common[..], &[0; 16], name.as_bytes()].concat();
    let sizes = [(entry.len() as u32).to_le_bytes(), (local.len() as u32).to_le_bytes()].concat();
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &sizes[..], &[0, 0]].concat();
    [local, entry, end].concat()
}

#[test]
fn archives_that_lie_about_sizes_or_unpack_to_gigabytes_fail_by_name() {
    // The packed form of zeros without the head of its format.
    let bomb = repeated_zlib(900 << 20)[2..].to_vec();
    let claims = 900 << 20;
    let pictures = "kind = \"zip\"\npaths = [\"a.zip\"]";
    for (content, method, claims, kinds, why) in [
        (&bomb[..], 8, claims, ["out_of_memory"], "memory"),
        // What it claims, no byte of it can hold.
        (&b"few"[..], 8, claims, ["read"], "cannot hold"),
        (&b"few"[..], 0, claims, ["read"], "cannot hold"),
        (&b"few"[..], 8, u32::MAX - 1, ["too_large"], "1 GiB"),
    ] {
        let place = place_of(pictures, "picture");
        fs::write(place.path("a.zip"), zip("a.png", content, method, claims, 0)).unwrap();
        ends_with(&place, 65, &[], 0, &kinds);
        let failures = place.failures();
        assert!(failures[0]["error"].as_str().unwrap().contains(why), "{failures:?}");
    }
    // Its directory has one entry, and claims another number of them.
    let place = place_of(pictures, "picture");
    let mut archive = zip("a.png", b"few", 0, 3, 0);
    let end = archive.len() - 22;
    archive[end + 8..end + 12].fill(0xff);
    fs::write(place.path("a.zip"), archive).unwrap();
    ends_with(&place, 78, &["a.zip", "it is damaged"], 0, &[]);

    // An array whose archive says that it unpacks to 2^31 items.
    let place = place_of("kind = \"tensors\"\npaths = [\"a.npz\"]", "x");
    let array = npy("(2147483648,)");
    fs::write(place.path("a.npz"), zip("x.npy", &array, 8, u32::MAX - 1, 0)).unwrap();
    ends_with(&place, 78, &["a.npz"], 0, &[]);
    for shape in ["(2147483648, 2147483648)", "(18446744073709551615,)", "(4611686018427387904, 1)"] {
        fs::write(place.path("a.npz"), zip("x.npy", &npy(shape), 0, npy(shape).len() as u32, 0)).unwrap();
        ends_with(&place, 78, &["a.npz"], 0, &[]);
    }

    // The header of a member claims 2^62 bytes, or what the hole behind it has.
    for (len, code, kinds) in [(1_u64 << 62, 78, &[][..]), (1 << 34, 65, &["too_large"][..])] {
        let place = place_of("kind = \"tar\"\npaths = [\"a.tar\"]\ncolumns = [\"png\"]", "picture");
        let mut header = [0_u8; 512];
        header[..5].copy_from_slice(b"a.png");
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(&[&[0x80, 0, 0, 0][..], &len.to_be_bytes()].concat());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        fs::write(place.path("a.tar"), header).unwrap();
        if code == 65 {
            grow(&place.path("a.tar"), 512 + len + 1024);
        }
        ends_with(&place, code, if code == 78 { &["a.tar"] } else { &[] }, 0, kinds);
    }
}

#[test]
fn tables_that_claim_more_than_they_hold_fail_by_name() {
    use crate::hostile_files::table::{Page, deep, nested, table, wide};

    let run = |bytes: &[u8]| {
        let place = place_of("kind = \"parquet\"\npaths = [\"a.parquet\"]", "x");
        fs::write(place.path("a.parquet"), bytes).unwrap();
        place
    };
    // As it should be: what follows fails for what is changed in it.
    let good = Page::plain(&[1, 2, 3, 4]);
    ends_with(&run(&table(4, 0, std::slice::from_ref(&good))), 0, &["4 done, 0 failed"], 4, &[]);
    let says = "at most `limits.max_items = 100000000` are allowed";
    ends_with(
        &run(&table(1 << 40, 0, std::slice::from_ref(&good))),
        78,
        &["a.parquet", "claims 1099511627776 items", says],
        0,
        &[],
    );
    // Groups in groups, which a decoder follows by calling itself; columns; and paths of all groups for each column. They take the loader that looks into
    // them, or its memory.
    for footer in [nested(200_000), deep(8_000, 8_000), wide(100_000)] {
        ends_with(&run(&footer), 78, &["a.parquet"], 0, &[]);
    }
    // More than the rows need is not read.
    let more = Page { values: i32::MAX, ..good.clone() };
    ends_with(&run(&table(4, 0, &[more])), 0, &["4 done, 0 failed"], 4, &[]);
    // Each row reads the page.
    let all = |kind: &'static str| [kind; 4];
    for (page, codec, kind) in [
        (Page { unpacked: i32::MAX, ..good.clone() }, 1, "out_of_memory"),
        (Page { packed: i32::MAX, ..good.clone() }, 0, "read"),
        (Page::snappy_bomb(800 << 20), 1, "out_of_memory"),
    ] {
        ends_with(&run(&table(4, codec, &[page])), 65, &[], 0, &all(kind));
    }
    let dictionary = Page { is_dictionary: true, values: i32::MAX, ..good.clone() };
    // The other rows are behind what is passed over.
    ends_with(&run(&table(4, 0, &[dictionary, good])), 65, &[], 3, &["out_of_memory"]);
}
