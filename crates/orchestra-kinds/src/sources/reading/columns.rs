//! The columns of sources whose items have fields: as declared in the file, or as found in a first record. Reads no file.

use std::marker::PhantomData;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::shapes::FileAccess;
use orchestra_plan::tree::Toml;
use orchestra_plan::{
    Fields, ItemSchema, Json, Reported, Setting, SourceContext, TypedSource, file_of, toml_key,
};
use serde_json::value::RawValue;

use super::encoding::ForeignEncoding;
use super::field_type::{Field, FieldType};
use super::input::{NAME_TYPES, look_into_first};
use super::limits::MOST_COLUMNS;

/// Columns as a workflow file declares them: `columns = { caption = "text" }`.
pub struct DeclaredColumns<K>(pub Vec<Field>, PhantomData<fn() -> K>);

/// How [`DeclaresColumns::TYPES`] has several texts.
pub const TEXTS: &str = "text[2]";

/// A kind whose columns may be declared.
pub trait DeclaresColumns {
    /// The types that they may have beside tensors.
    const TYPES: &'static [&'static str];
}

impl<K: DeclaresColumns> Setting for DeclaredColumns<K> {
    const TYPE: &'static str = "table";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        declared(fields, key, K::TYPES).ok().map(|columns| Self(columns, PhantomData))
    }

    fn json(&self) -> Json {
        self.0.iter().map(|field| (&*field.name, field.to_string())).collect()
    }
}

fn declared(fields: &mut Fields<'_, '_>, key: &str, allowed: &[&str]) -> Result<Vec<Field>, Reported> {
    let entry = fields.entry(key).ok_or(Reported)?;
    let Toml::Table(table) = &entry.node.value else {
        let expected = "a table of types: columns = { caption = \"text\", age = \"i64\" }";
        return fields.wrong(key, &entry.node, expected).fail();
    };
    if table.entries.is_empty() || table.entries.len() > MOST_COLUMNS {
        return fields.bad(key, entry.node.span, &format!("must name 1 to {MOST_COLUMNS} columns")).fail();
    }
    let mut columns = Vec::new();
    for column in &table.entries {
        let field = match &column.node.value {
            Toml::String(text) => field_of(&column.key, text, allowed),
            _ => None,
        };
        let Some(field) = field else {
            let key = format!("{key}.{}", column.key);
            return fields
                .bad(&key, column.node.span, &format!("is no type: {}", column.node.found()))
                .help(types_help(allowed))
                .fail();
        };
        columns.push(field);
    }
    Ok(columns)
}

/// The column that has the type that a text names, if that is `allowed`.
pub fn field_of(name: &str, ty: &str, allowed: &[&str]) -> Option<Field> {
    let (ty, optional) = match ty.trim().strip_suffix('?') {
        Some(text) => (FieldType::parse(text).filter(FieldType::may_be_missing), true),
        None => (FieldType::parse(ty), false),
    };
    let is_allowed = |ty: &FieldType| match ty {
        FieldType::Tensor { .. } => true,
        FieldType::Texts(_) => allowed.contains(&TEXTS),
        ty => allowed.contains(&ty.to_string().as_str()),
    };
    Some(Field { name: name.to_owned(), ty: ty.filter(is_allowed)?, optional })
}

pub fn types_help(allowed: &[&str]) -> String {
    let words = allowed.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    let numbers = orchestra_plan::list(DType::ALL.iter().map(|dtype| dtype.name()));
    format!(
        "a type is {words}, or a tensor of {numbers}, each dimension of which is a number: \"f64\", \"u8[2, 3]\"; `?` behind it, as in \
         \"f64?\" and \"text?\", has rows without it"
    )
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

/// The columns of a file, with what its first record says of their types; or why there are none, and what to do where that is known.
pub type FoundColumns = Result<Vec<(String, FoundType)>, (String, Option<String>)>;

/// `found`; where it is an error that the encoding of the file explains, that. `head` are its first bytes and `name` is that of the file.
pub fn or_foreign(found: Result<Vec<(String, FoundType)>, String>, head: &[u8], name: &str) -> FoundColumns {
    found.map_err(|why| match ForeignEncoding::of(head, name) {
        Some(foreign) => (format!("it is {}", foreign.what), Some(foreign.help())),
        None => (why, None),
    })
}

/// The name of the first file and its columns, which a loader finds for `question`. `problem` and `help` are for a file that has none, `no_file` helps
/// where no file is known.
pub fn columns_of_first<K: TypedSource>(
    source: &mut SourceContext<'_, '_>,
    question: &impl Encode,
    [problem, help, no_file]: [&str; 3],
) -> Result<(String, Vec<(String, FoundType)>), Reported> {
    let (name, found) = look_into_first::<K, FoundColumns>(source, question, Some(NAME_TYPES), no_file)?;
    match found.unwrap_or_else(|why| Err((why, None))) {
        Ok(columns) => Ok((name, columns)),
        Err((why, own)) => {
            let help = own.unwrap_or_else(|| help.to_owned());
            source.error(format!("`{name}` {problem}: {why}")).help(help).fail()
        }
    }
}

/// The types of the fields of a first record; a field that does not tell its type is reported.
pub fn inferred(
    source: &mut SourceContext<'_, '_>,
    first: &str,
    record: &[(String, FoundType)],
) -> Result<Vec<Field>, Reported> {
    if record.is_empty() || record.len() > MOST_COLUMNS {
        let why = format!("the first record of `{first}` has {} fields", record.len());
        return source.error(why).help(format!("it must have 1 to {MOST_COLUMNS}")).fail();
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
        let may_be_missing = match no_type {
            NoType::Null => "; a value that may be missing is \"f64?\" or \"text?\"",
            _ => "",
        };
        let types = types_of(record);
        return source
            .error(format!("the type of `{name}` is not known"))
            .label(format!("it is {found} in the first record of `{first}`"))
            .help(format!("name the columns that you want with their types: {types}{may_be_missing}"))
            .fail();
    }
    Ok(columns)
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
        format!("{} = \"{ty}\"", toml_key(name))
    };
    // Those without a type come first, where not all are shown.
    let (open, known): (Vec<_>, Vec<_>) = record.iter().partition(|(_, found)| found.is_err());
    let shown: Vec<String> = match record.len() <= SHOWN {
        true => record.iter().map(typed).collect(),
        false => open.into_iter().chain(known).take(SHOWN).map(typed).collect(),
    };
    format!("columns = {{ {} }}", shown.join(", "))
}

/// The columns that a source with these fields gives.
pub fn schema(fields: &[Field]) -> Schema {
    let column = |field: &Field| {
        let ty = match &field.ty {
            FieldType::Text | FieldType::Json => ColumnType::Text,
            FieldType::Bytes(end) => ColumnType::Bytes(end.clone()),
            FieldType::Picture => ColumnType::Picture,
            FieldType::Texts(_) => ColumnType::List(Schema::of("text", ColumnType::Text)),
            FieldType::Tensor { dtype, shape } => {
                ColumnType::Tensor(fixed_tensor(&field.name, *dtype, shape))
            }
        };
        let ty = if field.optional { ColumnType::Optional(Box::new(ty)) } else { ty };
        Column { name: field.name.clone(), ty }
    };
    Schema(fields.iter().map(column).collect())
}

/// What items with these fields are. For the fingerprint, their types decide about results.
pub fn item_schema<K: TypedSource>(fields: &[Field]) -> ItemSchema {
    let columns: Vec<_> = fields.iter().map(|field| (&field.name, field.to_string())).collect();
    ItemSchema {
        gives: schema(fields),
        settings: serde_json::json!({ "kind": K::NAME, "columns": columns }),
        decoders: has_pictures(fields).then_some(orchestra_media::DECODERS),
    }
}

/// The files that items with these fields are read from. A picture may be the path of another one.
pub fn opens_of(fields: &[Field]) -> FileAccess {
    if has_pictures(fields) { FileAccess::Beside(file_of) } else { FileAccess::OfItems(file_of) }
}

fn has_pictures(fields: &[Field]) -> bool {
    fields.iter().any(|field| field.ty == FieldType::Picture)
}
