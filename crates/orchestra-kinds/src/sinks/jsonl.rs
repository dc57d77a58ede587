//! `kind = "jsonl"`: one line of JSON per record, `{"item", "index", "source", "result"}`.

use std::sync::Arc;

use orchestra_core::Element;
use orchestra_core::data::{ItemError, Label, Schema, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, ReadBack, Reported, TypedSink, settings};
use orchestra_store::ObjectOutput;
use serde::Serialize;

use super::shared::cannot_write;
use super::shared::read_back::read_lines;
use super::shared::record::{RowJson, can_be_written};
use crate::elements::JsonNumber;
use crate::objects;

settings! {
    pub struct JsonLinesSink {}
}

impl TypedSink for JsonLinesSink {
    const NAME: &'static str = "jsonl";
    const ABOUT: &'static str = "A line of JSON per record: `{\"item\", \"index\", \"source\", \"result\"}`. NaN and infinities are the texts `\"NaN\"`, `\"Infinity\"` and \
         `\"-Infinity\"`, and what is missing is `null`.";
    const READ_BACK: Option<ReadBack> = Some(read_lines);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        match input.gives.0.iter().find(|column| !can_be_written(&column.ty)) {
            Some(column) => {
                cannot_write(column, input, fields, "it writes tensors, classes, texts, and lists of those")
            }
            None => Ok(Arc::new(JsonLinesEncoder { schema: input.gives.clone() })),
        }
    }
}

#[derive(Debug)]
struct JsonLinesEncoder {
    schema: Schema,
}

impl Encoder for JsonLinesEncoder {
    fn is_json_lines(&self) -> bool {
        true
    }

    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        write(&mut *out, br#"{"item":"#, item.name)?;
        write(&mut *out, br#","index":"#, &item.id.index)?;
        write(&mut *out, br#","source":"#, item.source)?;
        match row {
            [Value::Labels(labels)] => {
                out.extend_from_slice(br#","result":["#);
                classes(labels, out)?;
                out.push(b']');
            }
            _ => write(&mut *out, br#","result":"#, &RowJson { schema: &self.schema, row })?,
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }
}

/// By far the most common result, without the indirections of a general one.
fn classes(labels: &[Label<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
    for (place, label) in labels.iter().enumerate() {
        let before: &[u8] = if place > 0 { br#",{"label":"# } else { br#"{"label":"# };
        write(&mut *out, before, label.label)?;
        write(&mut *out, br#","class":"#, &label.class)?;
        write(&mut *out, br#","score":"#, &JsonNumber(Element::Float(label.score)))?;
        out.push(b'}');
    }
    Ok(())
}

fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, before: &[u8], value: &T) -> Result<(), ItemError> {
    out.extend_from_slice(before);
    serde_json::to_writer(out, value).map_err(|error| ItemError::result(error.to_string()))
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::{ColumnType, OwnedValue};
    use orchestra_core::{ItemId, SourceId};

    use super::*;

    fn line(schema: Schema, row: &[Value<'_>]) -> serde_json::Value {
        let id = ItemId { source: SourceId(0), index: 17 };
        let item = ItemInfo { name: "a \"b\"\n.png", id, source: "sc\"ans", parts: &[] };
        let mut out = Vec::new();
        JsonLinesEncoder { schema }.encode(&item, row, &mut out).unwrap();
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_line_says_item_index_source_and_classes_and_escapes_what_must_be() {
        let labels = [
            Label { label: "c\"d", class: 1, score: 0.5 },
            Label { label: "a\nb", class: 0, score: f32::NAN },
        ];
        let expected = serde_json::json!({
            "item": "a \"b\"\n.png", "index": 17, "source": "sc\"ans", "result": [
                { "label": "c\"d", "class": 1, "score": 0.5 }, { "label": "a\nb", "class": 0, "score": "NaN" },
            ]
        });
        assert_eq!(line(Schema::of("classes", ColumnType::Labels), &[Value::Labels(&labels)]), expected);
    }

    #[test]
    fn parts_are_a_list_in_their_order_and_none_is_an_empty_one() {
        let part = |label: &str| vec![OwnedValue::Labels([(label.into(), 0, 0.5)].into())];
        let schema = Schema::of("parts", ColumnType::List(Schema::of("classes", ColumnType::Labels)));
        let result = line(schema.clone(), &[Value::List(&[part("a"), part("b")])])["result"].clone();
        let class = |label: &str| serde_json::json!([{ "label": label, "class": 0, "score": 0.5 }]);
        assert_eq!(result, serde_json::json!([class("a"), class("b")]));
        assert_eq!(line(schema, &[Value::List(&[])])["result"], serde_json::json!([]));
    }
}
