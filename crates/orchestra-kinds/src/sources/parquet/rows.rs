//! The rows of Parquet files as items: lists them, and reads one after the other.

use std::path::Path;
use std::slice;

use bincode::{Decode, Encode};
use orchestra_core::shapes::{FetchRun, FileAccess, KindSettings};
use orchestra_plan::{ItemSchema, Items, ReadOptions, Reported, SourceContext};
use orchestra_store::{Found, ListError, PushFound};

use super::ParquetSource;
use super::leaves::{all, footer, resolve, row_groups};
use super::open_file::OpenFile;
use crate::sources::reading::columns::{item_schema, opens_of};
use crate::sources::reading::fetch::fetch_into;
use crate::sources::reading::field_type::Field;
use crate::sources::reading::file_version::{FileVersion, has_changed};
use crate::sources::reading::input::{
    Last, Opener, ReadSeek, cannot_read, changed, describe, look_into_first, open_to_list,
};
use crate::sources::reading::limits::check_items;
use crate::sources::reading::locator::{locator, parts};
use crate::sources::reading::row::FieldRow;

pub fn connect(
    declared: Option<Vec<Field>>,
    source: &mut SourceContext<'_, '_>,
) -> Result<(ItemSchema, ParquetItems), Reported> {
    let max_items = source.limits.max_items;
    let fields = match (declared, source.first) {
        (Some(fields), None) => fields,
        (declared, _) => {
            let help =
                "name them with their types, columns = { age = \"i64\" }, or name the files with `paths`";
            let question = FirstFile { declared, max_items };
            let (name, found) =
                look_into_first::<ParquetSource, (Vec<Field>, u64)>(source, &question, None, help)?;
            source.n_items = found.as_ref().ok().map(|(_, items)| *items);
            match found {
                Ok((fields, _)) if !fields.is_empty() => fields,
                other => {
                    let why = other.err().unwrap_or_else(|| "it has no column".into());
                    let columns = source.fields.entry("columns").map(|entry| entry.node.span);
                    let d = source.error(format!("the rows of `{name}` cannot be read: {why}"));
                    d.span = columns.or(d.span);
                    return d.help("numbers, text, binary, and lists of numbers are read").fail();
                }
            }
        }
    };
    Ok((item_schema::<ParquetSource>(&fields), ParquetItems { fields, max_items }))
}

/// Asks for the columns of a file, where they are not declared, and for the number of its rows.
#[derive(Encode, Decode)]
struct FirstFile {
    declared: Option<Vec<Field>>,
    max_items: u64,
}

impl FirstFile {
    fn of(self, file: &mut dyn ReadSeek) -> Result<(Vec<Field>, u64), String> {
        let metadata = footer(file)?;
        let fields = match self.declared {
            Some(fields) => fields,
            None => all(metadata.file_metadata().schema_descr())?,
        };
        let items = check_items(row_groups(&metadata)?.iter().sum(), self.max_items)?;
        resolve(&metadata, &fields)?;
        Ok((fields, items))
    }
}

pub fn answer(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
    describe(file, |file| question.read::<FirstFile>().ok_or("it was asked for nothing")?.of(file))
}

#[derive(Debug, Encode, Decode)]
pub struct ParquetItems {
    fields: Vec<Field>,
    max_items: u64,
}

impl Items for ParquetItems {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let (metadata, version) = open_to_list(path, |file, seen| {
            let version = FileVersion::say(slice::from_ref(seen), push)?;
            Ok((footer(file).map_err(unreadable)?, version))
        })?;
        resolve(&metadata, &self.fields).map_err(unreadable)?;
        let mut before = 0;
        let groups = row_groups(&metadata).map_err(unreadable)?;
        check_items(groups.iter().sum(), self.max_items).map_err(unreadable)?;
        for (group, rows) in (0_u64..).zip(groups) {
            for row in 0..rows {
                push(Found::Item(&format!("[{}]", before + row), &locator(path, &[group, row, version.0])))?;
            }
            before += rows;
        }
        Ok(())
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        has_changed(before, now, 3)
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let row = FieldRow::new(&self.fields, options.max_pixels);
        let (fields, opener) = (self.fields.clone(), Opener::new(options));
        let mut open = Last::default();
        fetch_into(row, move |into, locator| {
            let (path, numbers) = parts(locator, 3)?;
            let (group, row, listed) = (numbers[0], numbers[1], numbers[2]);
            let file: &mut OpenFile = open.get(path, || {
                let input = opener.open(path)?;
                let opened = OpenFile::open(input.clone(), &fields);
                opened.map_err(|why| input.item_error(cannot_read(path, &why)))
            })?;
            let read = file.read(group, row);
            // What was decoded of an edited file may be damaged, too.
            if !FileVersion::are_as_listed([&file.input], listed) {
                return Err(changed(path));
            }
            let at = read.map_err(|why| file.input.item_error(cannot_read(path, &why)))?;
            file.take(at, into, (path, &opener))
        })
    }

    fn opens(&self) -> FileAccess {
        opens_of(&self.fields)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use orchestra_core::data::{ItemError, Value};
    use orchestra_core::{DType, Element};
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::sources::reading::field_type::FieldType;
    use crate::sources::reading::tests::listed;

    const SCHEMA: &str = "message rows {
        required int32 n (INTEGER(32,false));
        optional byte_array text (STRING);
        required double x;
        required group v (LIST) { repeated group list { optional float element; } }
    }";

    /// Row groups of 150 and 50 rows, in pages of a few: row `i` is `i`, `t<i>`, `i / 2` and `[i, -i]`; text is null in row 3, a list too long in row 7.
    fn write(path: &Path) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties =
            WriterProperties::builder().set_data_page_row_count_limit(10).set_write_batch_size(5).build();
        let mut writer =
            SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
        for rows in [0..150_i32, 150..200] {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let n: Vec<i32> = rows.clone().map(|i| if i == 5 { -1 } else { i }).collect();
            column.typed::<Int32Type>().write_batch(&n, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let text: Vec<ByteArray> =
                rows.clone().filter(|i| *i != 3).map(|i| format!("t{i}").into_bytes().into()).collect();
            let there: Vec<i16> = rows.clone().map(|i| i16::from(i != 3)).collect();
            column.typed::<ByteArrayType>().write_batch(&text, Some(&there), None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let x: Vec<f64> = rows.clone().map(|i| f64::from(i) / 2.0).collect();
            column.typed::<DoubleType>().write_batch(&x, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let (mut v, mut repetitions) = (Vec::new(), Vec::new());
            for i in rows {
                let of_row = if i == 7 { vec![0.0; 3] } else { vec![i as f32, -(i as f32)] };
                repetitions.extend((0..of_row.len()).map(|at| i16::from(at > 0)));
                v.extend(of_row);
            }
            let definitions = vec![2; v.len()];
            column.typed::<FloatType>().write_batch(&v, Some(&definitions), Some(&repetitions)).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn files() -> ParquetItems {
        let tensor = |dtype, shape| FieldType::Tensor { dtype, shape };
        let fields = [
            ("v", tensor(DType::F32, vec![2])),
            ("n", tensor(DType::I64, vec![])),
            ("text", FieldType::Text),
            ("x", tensor(DType::F32, vec![])),
        ];
        ParquetItems { fields: fields.map(|(name, ty)| Field::new(name, ty)).into(), max_items: 1000 }
    }

    fn items(path: &Path) -> Result<Vec<(String, Vec<u8>)>, ListError> {
        listed(&files(), path).map(|(items, _)| items)
    }

    #[test]
    fn every_row_is_read_as_it_was_written_in_any_order_and_a_bad_one_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        write(&path);
        let items = items(&path).unwrap();
        assert_eq!(items.len(), 200);
        let mut run = files().start(&ReadOptions::default());
        let any = [0, 199, 4, 63, 64, 63, 140, 150, 2, 149];
        for i in (0..200).chain(any).chain((0..200).step_by(7)) {
            assert_eq!(items[i].0, format!("[{i}]"));
            let read = run.fetch(&items[i].1);
            if let Some(why) =
                [(3, "`text` is missing"), (7, "has 3 numbers")].iter().find(|(at, _)| *at == i)
            {
                let error = read.unwrap_err().error;
                assert!(error.contains(why.1), "{error}");
                continue;
            }
            read.unwrap();
            run.with_row(&mut |row| {
                let [Value::Tensor(v), Value::Tensor(n), Value::Text(text), Value::Tensor(x)] = row else {
                    panic!("other values")
                };
                let f = i as f32;
                assert_eq!(v.data, [f.to_ne_bytes(), (-f).to_ne_bytes()].concat());
                let unsigned = if i == 5 { i64::from(u32::MAX) } else { i as i64 };
                assert_eq!((n.data, *text), (&unsigned.to_ne_bytes()[..], &*format!("t{i}")));
                assert_eq!(x.data, (f / 2.0).to_ne_bytes());
            });
        }
    }

    #[test]
    fn integers_without_a_sign_are_read_as_they_are_or_fail_their_row_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let schema = parse_message_type("message rows { required int64 u (INTEGER(64,false)); }").unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: [u64; 5] = [7, u64::MAX, (1 << 53) + 1, 1 << 63, (1 << 63) - 1];
        column.typed::<Int64Type>().write_batch(&numbers.map(u64::cast_signed), None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let beyond = ["is beyond the integers of 64 bits", "write the column as text"];
        let rounded = ["f64 would round", "write columns = { u = \"i64\" }"];
        for (dtype, failed) in [
            (DType::I64, [None, Some(beyond), None, Some(beyond), None]),
            (DType::F64, [None, Some(beyond), Some(rounded), Some(beyond), Some(rounded)]),
        ] {
            let ty = FieldType::Tensor { dtype, shape: vec![] };
            let source = ParquetItems { fields: vec![Field::new("u", ty)], ..files() };
            let (items, _) = listed(&source, &path).unwrap();
            let mut run = source.start(&ReadOptions::default());
            for (((_, locator), number), failed) in items.iter().zip(numbers).zip(failed) {
                match (run.fetch(locator), failed) {
                    (Ok(_), None) => run.with_row(&mut |row| {
                        let [Value::Tensor(u)] = row else { panic!("other values") };
                        let read = Element::read(dtype, u.data);
                        assert!(
                            read == Element::Int(number as i64) || read == Element::Double(number as f64)
                        );
                    }),
                    (Err(ItemError { error, .. }), Some(words)) => {
                        assert!(error.contains(&number.to_string()), "{error}");
                        assert!(words.iter().all(|words| error.contains(words)), "{error}");
                    }
                    (read, failed) => panic!("{number} {dtype}: {read:?}, and not {failed:?}"),
                }
            }
        }
    }

    #[test]
    fn no_damage_ends_the_process_or_makes_more_rows_than_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        write(&path);
        let whole = std::fs::read(&path).unwrap();
        for len in (0..whole.len()).step_by(101) {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(items(&path).is_err(), "{len} of {}", whole.len());
        }
        std::fs::write(&path, &whole).unwrap();
        let all = items(&path).unwrap();
        for at in (4..whole.len()).step_by(53) {
            let mut bent = whole.clone();
            bent[at] ^= 0x15;
            std::fs::write(&path, &bent).unwrap();
            // Whether it is noticed is up to the format, which has no checksums; that each row is read or refused is up to us.
            drop(items(&path));
            let mut run = files().start(&ReadOptions::default());
            for (_, locator) in all.iter().step_by(19) {
                drop(run.fetch(locator));
            }
        }
    }
}
