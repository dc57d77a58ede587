//! `kind = "reply"`: records that go back to those who asked, with the type of each value.

use std::sync::Arc;

use orchestra_core::collect::Part;
use orchestra_core::data::{ItemError, OwnedRow, Schema, Value};
use orchestra_core::row_bytes::{StoredValue, read, write};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, Reported, TypedSink, Writes, settings};

use super::shared::cannot_write;
use super::shared::record::{can_be_written, owned_row_json};

settings! {
    pub struct Reply {}
}

impl TypedSink for Reply {
    const NAME: &'static str = "reply";
    const ABOUT: &'static str = "No file: the records of an item go back to the program that [asked about it](../guide/library.md). Its items come from a source of \
         kind `request`.";
    const EXTENSION: &'static str = "";
    const WRITES: Writes = Writes::Reply;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        match input.gives.0.iter().find(|column| !can_be_written(&column.ty)) {
            Some(column) => cannot_write(
                column,
                input,
                fields,
                "it gives back tensors, classes, texts, and lists of those",
            ),
            None => Ok(Arc::new(TypedRecord)),
        }
    }
}

#[derive(Debug)]
struct TypedRecord;

impl Encoder for TypedRecord {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        let parts: Vec<(u32, u32)> = item.parts.iter().map(|part| (part.index, part.of)).collect();
        let values: Vec<StoredValue<'_>> = row.iter().map(StoredValue::of).collect::<Result<_, _>>()?;
        write(&(parts, values), out)
    }
}

/// As it is written: places among parts with their numbers, and values.
type PartAndValues<'a> = (Vec<(u32, u32)>, Vec<StoredValue<'a>>);

/// Which part of its item a record of this kind is of, the outermost split first, and its values.
pub fn read_reply(record: &[u8]) -> Result<(Vec<Part>, Vec<StoredValue<'_>>), ItemError> {
    let ((parts, values), _): (PartAndValues<'_>, usize) = read(record)?;
    Ok((parts.into_iter().map(|(index, of)| Part { index, of }).collect(), values))
}

/// A row as a record of a sink of kind `jsonl` has it: its `result`.
pub fn reply_json(schema: &Schema, row: &OwnedRow) -> Result<serde_json::Value, serde_json::Error> {
    owned_row_json(schema, row)
}
