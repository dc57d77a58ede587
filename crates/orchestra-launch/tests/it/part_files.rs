//! Records of many rows to a file, of kinds of the host program: each row is in exactly one part, and a sink beside it has the same rows. `tests/kills.rs`
//! and `tests/part_kills.rs` kill what writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::number_stages::{SCATTER, n_parts};
use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace, numbers};
use orchestra_launch::kind::{
    Encoder, Fields, Input, ItemError, ItemInfo, Key, Kinds, PartFiles, SinkKind, Value, Writes, key,
};
use orchestra_launch::{Earlier, StartOptions};

/// `kind = "lines"`: a line `index number number` per row, many to a file, under a line that says how many. Files of 7 rows cannot be made.
struct Lines;

const KEYS: [Key; 1] = [key("rows_per_file", "integer", "required", "rows of a part")];

impl SinkKind for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn about(&self) -> &'static str {
        "A sink of a test."
    }

    fn extension(&self) -> &'static str {
        "txt"
    }

    fn writes(&self) -> Writes {
        Writes::PartFiles
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn connect(&self, _: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>> {
        Some(Arc::new(LinesEncoder(fields.integer("rows_per_file")?.value)))
    }
}

#[derive(Debug)]
struct LinesEncoder(u64);

impl Encoder for LinesEncoder {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let numbers =
                tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes).to_string());
            out.extend(format!("{} {}", item.id.index, numbers.collect::<Vec<_>>().join(" ")).bytes());
            Ok(())
        })
    }

    fn part_files(&self) -> Option<&dyn PartFiles> {
        Some(self)
    }
}

impl PartFiles for LinesEncoder {
    fn rows_per_file(&self) -> u64 {
        self.0
    }

    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError> {
        assert_ne!(self.0, 7, "a bug, as asked");
        let head = format!("{}\n", records.len()).into_bytes();
        Ok(records.iter().fold(head, |file, record| [&file, *record, b"\n"].concat()))
    }
}

fn kinds() -> Kinds {
    orchestra_launch::kinds().with_stage(SCATTER).with_sink(Lines)
}

/// Pictures to rows `index part`, in parts of 100 rows and beside them in one file of lines.
fn workplace(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"pixels\"")
        .add(
            "[sinks.rows]\nkind = \"lines\"\nfrom = \"parts\"\npath = \"rows/rows.txt\"\nrows_per_file = 100",
        )
        .sink("results", "parts", "")
        .add("[sinks.arrays]\nkind = \"npy\"\nfrom = \"parts\"")
        .devices(1);
    place
}

fn parts(out: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(out.join("rows")).into_iter().flatten();
    let mut parts: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    parts.sort();
    parts
}

/// The rows of all parts and those of the other sink are the same, and each is there once.
fn must_be_all(place: &Workplace, items: u64) {
    let mut in_parts = Vec::new();
    let out = place.out();
    for (n, part) in parts(&out).iter().enumerate() {
        assert_eq!(*part, out.join(format!("rows/rows-{n:05}.txt")), "nothing but parts, without a gap");
        let text = fs::read_to_string(part).unwrap();
        let (head, rows) = text.split_once('\n').unwrap();
        let rows: Vec<_> = rows.lines().map(str::to_owned).collect();
        assert_eq!(head.parse(), Ok(rows.len()), "{} is whole", part.display());
        in_parts.extend(rows);
    }
    let of_line = |line: &serde_json::Value| {
        let column = line["result"].as_object().unwrap().keys().next().unwrap();
        let numbers: Vec<String> = numbers(line, column).iter().map(f32::to_string).collect();
        format!("{} {}", line["index"], numbers.join(" "))
    };
    let mut in_lines: Vec<String> = place.lines("results.jsonl").iter().map(of_line).collect();
    in_parts.sort();
    in_lines.sort();
    assert!(in_parts.windows(2).all(|two| two[0] != two[1]), "a row is there twice");
    assert_eq!(in_parts, in_lines);
    assert_eq!(in_parts.len() as u64, (0..items).map(n_parts).sum::<u64>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_could_be_taken_for_a_part_or_a_record_is_not_replaced() {
    for name in ["rows/rows-00007.txt", "arrays/mine.npy"] {
        let place = workplace(3);
        place.write_workflow();
        let stranger = place.out().join(name);
        fs::create_dir_all(stranger.parent().unwrap()).unwrap();
        fs::write(&stranger, "mine").unwrap();
        let start = || async {
            let started = orchestra_launch::start(place.plan_with(kinds()), place.options()).await;
            started.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let refused = start().await;
        assert!(
            refused.contains(name.split('/').next().unwrap()) && refused.contains("--fresh"),
            "{refused}"
        );
        assert_eq!(fs::read(&stranger).unwrap(), b"mine");
        if name.starts_with("arrays") {
            continue;
        }
        let fresh = || StartOptions { earlier: Earlier::Discard, ..place.options() };
        Workplace::must_end_with(&place.run_plan_with(place.plan_with(kinds()), fresh()).await, 0);
        must_be_all(&place, 3);
        // Nor while a run goes on.
        fs::write(&stranger, "mine").unwrap();
        assert!(start().await.contains("rows-00007.txt"));
        fs::remove_file(&stranger).unwrap();
        Workplace::must_end_with(&place.run_plan_with(place.plan_with(kinds()), fresh()).await, 0);
        must_be_all(&place, 3);
    }
}

#[test]
fn a_file_of_another_sink_cannot_be_called_as_a_part() {
    let mut place = workplace(1);
    place.add("[sinks.other]\nkind = \"jsonl\"\nfrom = \"parts\"\npath = \"rows/rows-00003.txt\"");
    let text = place.refused(kinds());
    assert!(text.contains("sinks `rows` and `other`: a part file of one"), "{text}");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_program_without_parquet_says_which_feature_it_needs() {
    let mut place = Workplace::with_pictures(1);
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[sinks.table]\nkind = \"parquet\"\nfrom = \"pixels\"");
    let text = place.refused(orchestra_launch::kinds());
    assert!(text.contains("built without Parquet") && text.contains("--features parquet"), "{text}");
}

/// It would take the thread that commits, and with it all answers that others wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_over_a_part_ends_the_run_with_its_reason() {
    let mut place = Workplace::with_pictures(40);
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[sinks.rows]\nkind = \"lines\"\nfrom = \"pixels\"\npath = \"rows/rows.txt\"\nrows_per_file = 7")
        .devices(1);
    let outcome = place.run_plan(place.plan_with(kinds())).await;
    assert_eq!(outcome.exit_code, 75, "{:?}", outcome.problems);
    assert!(outcome.problems.join("\n").contains("a bug, as asked"), "{:?}", outcome.problems);
    assert!(parts(&place.out()).is_empty());
}
