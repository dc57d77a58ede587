//! `kind = "jsonl"`: the lines of JSON files, one item each.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use orchestra_core::shapes::{FetchRun, FileAccess, KindSettings};
use orchestra_plan::{
    ItemSchema, Items, ObjectAccess, ReadOptions, Reported, SourceContext, TypedSource, settings,
};
use orchestra_store::{ListError, PushFound};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::reading::columns::{
    DeclaredColumns, DeclaresColumns, FoundColumns, columns_of_first, found_type, inferred, item_schema,
    opens_of, or_foreign,
};
use super::reading::encoding::NO_UTF8;
use super::reading::fetch::fetch_into;
use super::reading::field_type::Field;
use super::reading::input::{Opener, ReadSeek, describe};
use super::reading::lines::{RecordEnds, RecordReader, first_record, has_changed, head_of, list};
use super::reading::row::{FieldRow, Taken};
use crate::objects;

settings! {
    pub struct JsonLinesSource {
        /// names of fields with their types: `text`, `json` (any value, as text), `picture` (a path, relative to the file), or a tensor: `i64`, `f32[8]`, ...;
        /// `f64?` or `text?` has lines where it is null or not there; `"result.score" = "f64"` is a field of an object; without `columns`, those of the first line:
        /// text, numbers as f64, lists of numbers as tensors of f64
        columns: Option<DeclaredColumns<JsonLinesSource>> => "the first line's",
    }
}

impl DeclaresColumns for JsonLinesSource {
    const TYPES: &'static [&'static str] = &["text", "json", "picture"];
}

impl TypedSource for JsonLinesSource {
    const NAME: &'static str = "jsonl";
    const ABOUT: &'static str = "The lines of JSON files, an object each, of at most 16 MiB; its fields are columns. An item is called `file.jsonl:line`.";
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = JsonLinesItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, JsonLinesItems), Reported> {
        let fields = match self.columns {
            Some(declared) => declared.0,
            None => {
                let name = source.first.map(|first| first.name.clone()).unwrap_or_default();
                let texts = [
                    "holds no lines of JSON",
                    "each line must be an object: {\"caption\": \"a cat\", \"age\": 3}",
                    "name them with their types, columns = { caption = \"text\" }, or name the files with `paths`",
                ];
                let (name, record) = columns_of_first::<Self>(source, &FirstLine { name }, texts)?;
                inferred(source, &name, &record)?
            }
        };
        Ok((item_schema::<Self>(&fields), JsonLinesItems { fields }))
    }

    fn describe(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        describe(file, |file| question.read::<FirstLine>().ok_or("it was asked for nothing")?.of(file))
    }
}

/// Asks for the fields of the first line of a file.
#[derive(Encode, Decode)]
struct FirstLine {
    name: String,
}

impl FirstLine {
    fn of(&self, file: &mut dyn ReadSeek) -> Result<FoundColumns, String> {
        let head = head_of(file, RecordEnds::Line, 1).map_err(|error| error.to_string())?;
        let found = first_record(&head, RecordEnds::Line)
            .and_then(|(at, record)| parse(record).map_err(|why| format!("line {}: {why}", at.line)));
        let typed =
            found.map(|record| record.into_iter().map(|(name, value)| (name, found_type(&value))).collect());
        Ok(or_foreign(typed, &head, &self.name))
    }
}

/// The fields of a line with their names, in the order of the text.
type RecordFields = Vec<(String, Box<RawValue>)>;

/// The fields of an object, in the order of the text.
fn parse(line: &[u8]) -> Result<RecordFields, String> {
    struct JsonObject(RecordFields);
    struct JsonObjectVisitor;
    impl<'de> Visitor<'de> for JsonObjectVisitor {
        type Value = JsonObject;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject, A::Error> {
            let mut fields: RecordFields = Vec::new();
            while let Some(field) = map.next_entry()? {
                fields.push(field);
            }
            let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            match names.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => Err(A::Error::custom(format!("it has `{}` twice", pair[0]))),
                None => Ok(JsonObject(fields)),
            }
        }
    }
    impl<'de> Deserialize<'de> for JsonObject {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(JsonObjectVisitor)
        }
    }
    let record: JsonObject = serde_json::from_slice(line).map_err(|error| {
        // A record is one line, so only the column tells something.
        let text = error.to_string();
        let (why, _) = text.split_once(" at line ").unwrap_or((&text, ""));
        format!("{why}, at byte {}", error.column())
    })?;
    Ok(record.0)
}

/// The value of a field; `result.y` also names field `y` of the object `result`. Of a name that stands twice the last counts, as in other readers
/// of JSON.
fn value_of<'a>(record: &'a [(String, Box<RawValue>)], name: &str) -> Option<Cow<'a, RawValue>> {
    let named = |name: &str| record.iter().rev().find(|(known, _)| known == name).map(|(_, value)| &**value);
    if let Some(value) = named(name) {
        return Some(Cow::Borrowed(value));
    }
    name.match_indices('.').find_map(|(at, _)| {
        let inner = parse(named(&name[..at])?.get().as_bytes()).ok()?;
        Some(Cow::Owned(value_of(&inner, &name[at + 1..])?.into_owned()))
    })
}

/// Reads a line into `row`; paths in it are relative to the file `path`. Gives the bytes read.
pub fn fill(row: &mut FieldRow, line: &[u8], path: &Path, opener: &Opener) -> Result<u64, ItemError> {
    let refuse = |error: String| ItemError { kind: FailureKind::Decode, error };
    if std::str::from_utf8(line).is_err() {
        return Err(refuse(format!("the line {NO_UTF8}")));
    }
    let record = parse(line).map_err(|why| refuse(format!("the line is no JSON object: {why}")))?;
    let beside = row.fill(|_, field, cell| match value_of(&record, &field.name) {
        Some(value) => cell.take_json(field, &value, path, opener),
        None if field.optional => Ok(Taken::Missing),
        None => Err(refuse(format!("it has no field `{}`", field.name))),
    })?;
    Ok(line.len() as u64 + beside)
}

#[derive(Debug, Encode, Decode)]
pub struct JsonLinesItems {
    fields: Vec<Field>,
}

impl Items for JsonLinesItems {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        list(path, RecordEnds::Line, None, push)
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        has_changed(before, now)
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let row = FieldRow::new(&self.fields, options.max_pixels);
        let mut reader = RecordReader::new(options);
        fetch_into(row, move |row, locator| {
            let (path, line, opener) = reader.read(locator)?;
            fill(row, line, path, opener)
        })
    }

    fn opens(&self) -> FileAccess {
        opens_of(&self.fields)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;
    use orchestra_core::data::Value;

    use super::super::reading::field_type::FieldType;
    use super::super::reading::tests::listed;
    use super::*;

    #[test]
    fn each_line_is_an_item_and_a_bad_one_fails_alone_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a#1.jsonl");
        let lines = [
            "{\"n\": 7, \"t\": \"ä\"}",
            "{\"t\": \"b\", \"n\": 2, \"more\": [{}]}",
            "{\"n\": 1.5, \"t\": \"\"}",
            "{\"n\": 1}",
            "[1]",
            "{\"n\": 1, \"t\":",
            "\u{fffd}",
            "{\"n\": 1, \"t\": \"\", \"n\": 2}",
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let fields = vec![Field::new("n", FieldType::scalar(DType::I64)), Field::new("t", FieldType::Text)];
        let source = JsonLinesItems { fields };
        let (items, _) = listed(&source, &path).unwrap();
        assert_eq!(items.len(), lines.len());
        assert!(items.iter().enumerate().all(|(at, (name, _))| *name == format!(":{}", at + 1)));
        let mut run = source.start(&ReadOptions::default());
        for (at, n, t) in [(1, 2_i64, "b"), (0, 7, "ä")] {
            run.fetch(&items[at].1).unwrap();
            run.with_row(&mut |row| {
                let [Value::Tensor(view), Value::Text(text)] = row else { panic!("other values") };
                assert_eq!((view.data, *text), (&n.to_ne_bytes()[..], t));
            });
        }
        for (at, why) in [
            (2, "1.5"),
            (3, "no field `t`"),
            (4, "expected an object"),
            (5, "EOF"),
            (6, "expected value"),
            (7, "it has `n` twice"),
        ] {
            let ItemError { kind, error } = run.fetch(&items[at].1).unwrap_err();
            assert!(kind == FailureKind::Decode && error.contains(why), "{error}");
        }
        std::fs::write(&path, "{}").unwrap();
        let error = source.start(&ReadOptions::default()).fetch(&items[1].1).unwrap_err().error;
        assert!(error.contains("shorter by now"), "{error}");
    }
}
