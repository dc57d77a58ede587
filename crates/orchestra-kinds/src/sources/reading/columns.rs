//! The columns of sources whose items have fields: as declared in the file, or as found in a first record. Reads no file.

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::shapes::Opens;
use orchestra_plan::tree::Value as Toml;
use orchestra_plan::{Fields, SourceContext};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::field_type::{Field, FieldType};
use super::limits::MOST_COLUMNS;
use super::locator::file_of;
use super::row::key;
use crate::objects::{Protocol, opens_none};

/// The key `columns` as a table of types, which `allowed` names for the message. `Ok(None)` where it is not there, `Err` after an error.
pub fn declared(fields: &mut Fields<'_, '_>, allowed: &[&str]) -> Result<Option<Vec<Field>>, ()> {
    let Some(entry) = fields.entry("columns") else { return Ok(None) };
    let Toml::Table(table) = &entry.node.value else {
        fields.wrong(
            "columns",
            &entry.node,
            "a table of types: columns = { caption = \"text\", age = \"i64\" }",
        );
        return Err(());
    };
    if table.entries.is_empty() || table.entries.len() > MOST_COLUMNS {
        fields.bad("columns", entry.node.span, &format!("must name 1 to {MOST_COLUMNS} columns"));
        return Err(());
    }
    let mut columns = Vec::new();
    for column in &table.entries {
        let (ty, optional) = match &column.node.value {
            Toml::String(text) => match text.trim().strip_suffix('?') {
                Some(text) => (FieldType::parse(text).filter(FieldType::may_be_missing), true),
                None => (FieldType::parse(text), false),
            },
            _ => (None, false),
        };
        let is_allowed = |ty: &FieldType| {
            matches!(ty, FieldType::Tensor { .. }) || allowed.contains(&ty.to_string().as_str())
        };
        let Some(ty) = ty.filter(is_allowed) else {
            let key = format!("columns.{}", column.key);
            let words = allowed.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
            fields
                .bad(&key, column.node.span, &format!("is no type: {}", column.node.found()))
                .help(format!(
                    "a type is {words}, or a tensor: \"f64\", \"i64\", \"u8[2, 3]\" and the like; `?` behind it, as in \"f64?\" and \"text?\", has \
                     rows without it"
                ));
            return Err(());
        };
        columns.push(Field { name: column.key.clone(), ty, optional });
    }
    Ok(Some(columns))
}

/// What a value tells of the type of its field.
pub type FoundType = Result<FieldType, NoType>;

/// A value that tells no type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum NoType {
    Null,
    Object,
    /// A number that f64 does not hold.
    Number,
    /// A list that is no tensor of numbers.
    List,
}

pub fn found_type(value: &RawValue) -> FoundType {
    FieldType::of_json(value).ok_or(match value.get().as_bytes() {
        [b'n', ..] => NoType::Null,
        [b'{', ..] => NoType::Object,
        [b'-' | b'0'..=b'9', ..] => NoType::Number,
        _ => NoType::List,
    })
}

/// The types of the fields of a first record; a field that does not tell its type is reported.
pub fn inferred(
    source: &mut SourceContext<'_, '_>,
    first: &str,
    record: &[(String, FoundType)],
) -> Option<Vec<Field>> {
    let span = source.fields.span;
    let what = source.fields.what.clone();
    if record.is_empty() || record.len() > MOST_COLUMNS {
        let message = format!("{what}: the first record of `{first}` has {} fields", record.len());
        source.fields.diags.error(span, message).help(format!("it must have 1 to {MOST_COLUMNS}"));
        return None;
    }
    let mut columns = Vec::new();
    for (name, found) in record {
        let no_type = match found {
            Ok(ty) => {
                columns.push(Field::new(name, ty.clone()));
                continue;
            }
            Err(no_type) => no_type,
        };
        let found = match no_type {
            NoType::Null => "null",
            NoType::Object => "an object",
            NoType::Number => "a number that f64 does not hold",
            NoType::List => "a list that is no tensor of numbers",
        };
        let message = format!("{what}: the type of `{name}` is not known");
        source
            .fields
            .diags
            .error(span, message)
            .label(format!("it is {found} in the first record of `{first}`"))
            .help(format!(
                "name the columns that you want with their types: {}{}",
                types_of(record),
                if *no_type == NoType::Null {
                    "; a value that may be missing is \"f64?\" or \"text?\""
                } else {
                    ""
                }
            ));
        return None;
    }
    Some(columns)
}

/// The key `columns` for a record, with the type of each field. What has no type of its own is JSON, and a number that none holds is text.
fn types_of(record: &[(String, FoundType)]) -> String {
    const SHOWN: usize = 12;
    let typed = |(name, found): &(String, FoundType)| {
        let ty = match found {
            Ok(ty) => ty,
            Err(NoType::Number) => &FieldType::Text,
            Err(_) => &FieldType::Json,
        };
        format!("{} = \"{ty}\"", key(name))
    };
    // Those without a type come first, where not all are shown.
    let (open, known): (Vec<_>, Vec<_>) = record.iter().partition(|(_, found)| found.is_err());
    let shown: Vec<String> = match record.len() <= SHOWN {
        true => record.iter().map(typed).collect(),
        false => open.into_iter().chain(known).take(SHOWN).map(typed).collect(),
    };
    format!("columns = {{ {} }}", shown.join(", "))
}

/// Reports a source whose columns are not declared and of whose files none is known while it is planned.
pub fn no_first(source: &mut SourceContext<'_, '_>, help: &str) {
    let message = format!("{} needs a file to look at: its columns are not known", source.fields.what);
    source.fields.diags.error(source.fields.span, message).help(help);
}

/// The columns that a source with these fields gives.
pub fn schema(fields: &[Field]) -> Schema {
    let column = |field: &Field| {
        let ty = match &field.ty {
            FieldType::Text | FieldType::Json => ColumnType::Text,
            FieldType::Bytes(end) => ColumnType::Bytes(end.clone()),
            FieldType::Picture => ColumnType::Picture,
            FieldType::Tensor { dtype, shape } => {
                ColumnType::Tensor(fixed_tensor(&field.name, *dtype, shape))
            }
        };
        let ty = if field.optional { ColumnType::Optional(Box::new(ty)) } else { ty };
        Column { name: field.name.clone(), ty }
    };
    Schema(fields.iter().map(column).collect())
}

/// What decides about results, for the fingerprint.
pub fn settings(kind: &str, fields: &[Field]) -> Json {
    let columns: Vec<_> = fields.iter().map(|field| (&field.name, field.to_string())).collect();
    serde_json::json!({ "kind": kind, "columns": columns })
}

/// The files that items with these fields are read from. A picture may be the path of another one.
pub fn opens(fields: &[Field], protocols: &[Protocol]) -> Opens {
    match fields.iter().any(|field| field.ty == FieldType::Picture) {
        _ if !protocols.is_empty() => opens_none(),
        true => Opens::Beside(file_of),
        false => Opens::OfItems(file_of),
    }
}

/// The decoders of columns, where there are some.
pub fn decoders(fields: &[Field]) -> Option<&'static str> {
    fields.iter().any(|field| field.ty == FieldType::Picture).then_some(orchestra_media::DECODERS)
}
