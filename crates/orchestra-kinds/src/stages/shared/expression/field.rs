//! Fields of a row: what an expression may look at.

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{ColumnType, Label, Refusal, Schema, Value};

use super::Type;
use crate::elements::{Element, element};

/// A column, and what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Field {
    Label(usize),
    Text(usize),
    Class(usize),
    Score(usize),
    Count(usize),
    Element { column: usize, at: usize, ty: Type },
}

impl Field {
    pub(super) fn column(self) -> usize {
        match self {
            Field::Label(column)
            | Field::Text(column)
            | Field::Class(column)
            | Field::Score(column)
            | Field::Count(column)
            | Field::Element { column, .. } => column,
        }
    }

    pub(super) fn ty(self) -> Type {
        match self {
            Field::Label(_) | Field::Text(_) => Type::Text,
            Field::Class(_) | Field::Count(_) => Type::Integer,
            Field::Score(_) => Type::Number,
            Field::Element { ty, .. } => ty,
        }
    }

    /// NaN where it has no value.
    pub(super) fn number(self, row: &[Value<'_>]) -> Result<f64, Refusal> {
        Ok(match self {
            Field::Score(at) => best(row, at).map_or(f64::NAN, |label| f64::from(label.score)),
            Field::Element { column, at, .. } => match read(row, column, at)? {
                Some(Element::Float(v)) => f64::from(v),
                Some(Element::Int(v)) => v as f64,
                Some(Element::Bool(v)) => f64::from(u8::from(v)),
                None => f64::NAN,
            },
            _ => self.integer(row)?.map_or(f64::NAN, |value| value as f64),
        })
    }

    pub(super) fn integer(self, row: &[Value<'_>]) -> Result<Option<i64>, Refusal> {
        Ok(match self {
            Field::Class(at) => best(row, at).map(|label| i64::from(label.class)),
            Field::Count(at) => match row.get(at) {
                Some(Value::List(rows)) => Some(rows.len() as i64),
                _ => None,
            },
            Field::Element { column, at, .. } => match read(row, column, at)? {
                Some(Element::Int(v)) => Some(v),
                Some(Element::Bool(v)) => Some(i64::from(v)),
                Some(Element::Float(_)) | None => None,
            },
            Field::Label(_) | Field::Text(_) | Field::Score(_) => None,
        })
    }

    pub(super) fn text<'a>(self, row: &'a [Value<'_>]) -> Option<&'a str> {
        match (self, row.get(self.column())?) {
            (Field::Label(_), Value::Labels(labels)) => labels.first().map(|label| label.label),
            (Field::Text(_), Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}

fn best<'a>(row: &'a [Value<'_>], at: usize) -> Option<&'a Label<'a>> {
    match row.get(at) {
        Some(Value::Labels(labels)) => labels.first(),
        _ => None,
    }
}

fn read(row: &[Value<'_>], column: usize, at: usize) -> Result<Option<Element>, Refusal> {
    let Some(value) = row.get(column) else { return Ok(None) };
    value.with_tensor(|view| {
        let size = view.dtype.size_bytes();
        Ok(view.data.get(at * size..(at + 1) * size).map(|bytes| element(view.dtype, bytes)))
    })
}

/// Every field, but for the single numbers of a tensor.
pub fn fields(schema: &Schema) -> Vec<String> {
    let n_labels = schema.0.iter().filter(|c| c.ty == ColumnType::Labels).count();
    let n_lists = schema.0.iter().filter(|c| matches!(c.ty, ColumnType::List(_))).count();
    let named = |column: &str, n: usize, what: &str| match n {
        1 => what.to_owned(),
        _ => format!("{column}.{what}"),
    };
    let mut fields = Vec::new();
    for column in &schema.0 {
        match &column.ty {
            ColumnType::Labels => {
                fields.extend(["label", "class", "score"].map(|what| named(&column.name, n_labels, what)));
            }
            ColumnType::List(_) => fields.push(named(&column.name, n_lists, "count")),
            ColumnType::Text => fields.push(column.name.clone()),
            ty => match ty.stored().and_then(|spec| spec.row_len()) {
                Some(1) => fields.push(column.name.clone()),
                Some(n) if n > 1 => fields.push(format!("{}[0]", column.name)),
                _ => {}
            },
        }
    }
    fields
}

/// The field of a name; `None` where there is none, or where it may mean several.
pub fn field(schema: &Schema, name: &str) -> Option<Field> {
    let (column, what) = name.rsplit_once('.').map_or((None, name), |(column, what)| (Some(column), what));
    // A name alone is enough where it can mean one column only.
    let of = |fits: &dyn Fn(&ColumnType) -> bool| {
        let is_meant = |name: &str| column.is_none_or(|column| column == name);
        let mut found =
            (0..schema.0.len()).filter(|at| fits(&schema.0[*at].ty) && is_meant(&schema.0[*at].name));
        found.next().filter(|_| found.next().is_none())
    };
    let labels = || of(&|ty| *ty == ColumnType::Labels);
    match what {
        "label" => labels().map(Field::Label),
        "class" => labels().map(Field::Class),
        "score" => labels().map(Field::Score),
        "count" => of(&|ty| matches!(ty, ColumnType::List(_))).map(Field::Count),
        _ => None,
    }
    .or_else(|| {
        let (name, at) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
            Some((name, at)) => (name, Some(at.parse().ok()?)),
            None => (name, None),
        };
        let column = schema.position(name)?;
        if schema.0[column].ty == ColumnType::Text {
            return at.is_none().then_some(Field::Text(column));
        }
        let stored = schema.0[column].ty.stored()?;
        let ty = match stored.dtype {
            DType::F32 | DType::F16 => Type::Number,
            DType::I64 | DType::I32 | DType::U8 => Type::Integer,
            DType::Bool => Type::Truth,
        };
        match (at, stored.row_len()) {
            (Some(at), Some(n)) if at < n => Some(Field::Element { column, at, ty }),
            (None, Some(1)) => Some(Field::Element { column, at: 0, ty }),
            _ => None,
        }
    })
}
