//! Fields of a row: what an expression may look at.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Label, Schema, Value};
use orchestra_core::{DType, Element};

use super::Type;
use crate::elements::no_number;

/// A column, and what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum RowField {
    Label(usize),
    Text(usize),
    Class(usize),
    Score(usize),
    Count(usize),
    Element { column: usize, at: usize, ty: Type },
}

impl RowField {
    pub(super) fn column(self) -> usize {
        match self {
            RowField::Label(column)
            | RowField::Text(column)
            | RowField::Class(column)
            | RowField::Score(column)
            | RowField::Count(column)
            | RowField::Element { column, .. } => column,
        }
    }

    pub(super) fn ty(self) -> Type {
        match self {
            RowField::Label(_) | RowField::Text(_) => Type::Text,
            RowField::Class(_) | RowField::Count(_) => Type::Integer,
            RowField::Score(_) => Type::Number,
            RowField::Element { ty, .. } => ty,
        }
    }

    /// `None` of a class that is not there.
    ///
    /// # Errors
    /// It is NaN, it is missing, or it is an integer that an `f64` would round.
    pub(super) fn number(self, row: &[Value<'_>]) -> Result<Option<f64>, ItemError> {
        match self {
            RowField::Score(at) => match best(row, at) {
                Some(label) if label.score.is_nan() => Err(no_number("score", 0)),
                label => Ok(label.map(|label| f64::from(label.score))),
            },
            RowField::Element { column, at, .. } => {
                read(row, column, at, |name, element| match element.to_i64() {
                    Some(whole) => exact(whole).map(Some),
                    None if element.to_f64().is_nan() => Err(no_number(name, at)),
                    None => Ok(Some(element.to_f64())),
                })
            }
            _ => self.integer(row)?.map(exact).transpose(),
        }
    }

    pub(super) fn integer(self, row: &[Value<'_>]) -> Result<Option<i64>, ItemError> {
        match self {
            RowField::Class(at) => Ok(best(row, at).map(|label| i64::from(label.class))),
            RowField::Count(at) => Ok(match row.get(at) {
                Some(Value::List(rows)) => Some(rows.len() as i64),
                _ => None,
            }),
            RowField::Element { column, at, .. } => read(row, column, at, |_, element| Ok(element.to_i64())),
            RowField::Label(_) | RowField::Text(_) | RowField::Score(_) => Ok(None),
        }
    }

    pub(super) fn text<'a>(self, row: &'a [Value<'_>]) -> Result<Option<&'a str>, ItemError> {
        Ok(match (self, row.get(self.column())) {
            (_, Some(Value::Missing(name))) => return Err(ItemError::missing(name)),
            (RowField::Label(_), Some(Value::Labels(labels))) => labels.first().map(|label| label.label),
            (RowField::Text(_), Some(Value::Text(text))) => Some(text),
            _ => None,
        })
    }

    pub(super) fn is_missing(self, row: &[Value<'_>]) -> bool {
        matches!(row.get(self.column()), Some(Value::Missing(_)))
    }

    /// What is missing is not NaN.
    pub(super) fn is_nan(self, row: &[Value<'_>]) -> Result<bool, ItemError> {
        match self {
            _ if self.is_missing(row) => Ok(false),
            RowField::Score(at) => Ok(best(row, at).is_some_and(|label| label.score.is_nan())),
            RowField::Element { column, at, .. } => {
                read(row, column, at, |_, element| Ok(element.to_f64().is_nan()))
            }
            _ => Ok(false),
        }
    }
}

/// A whole number among others: as it is, or not at all.
pub(super) fn exact(whole: i64) -> Result<f64, ItemError> {
    let number = whole as f64;
    match number as i128 == i128::from(whole) {
        true => Ok(number),
        false => Err(ItemError::result(format!("{whole} would be rounded beside numbers with a fraction"))),
    }
}

fn best<'a>(row: &'a [Value<'_>], at: usize) -> Option<&'a Label<'a>> {
    match row.get(at) {
        Some(Value::Labels(labels)) => labels.first(),
        _ => None,
    }
}

fn read<R>(
    row: &[Value<'_>],
    column: usize,
    at: usize,
    of: impl FnOnce(&str, Element) -> Result<R, ItemError>,
) -> Result<R, ItemError> {
    let missing =
        || ItemError::result("internal error: a number that an expression reads is missing; this is a bug");
    row.get(column).ok_or_else(missing)?.with_tensor(|view| {
        let size = view.dtype.size_bytes();
        let bytes = view.data.get(at * size..(at + 1) * size).ok_or_else(missing)?;
        of(view.name, Element::read(view.dtype, bytes))
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
        match column.ty.required() {
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
pub fn field(schema: &Schema, name: &str) -> Option<RowField> {
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
        "label" => labels().map(RowField::Label),
        "class" => labels().map(RowField::Class),
        "score" => labels().map(RowField::Score),
        "count" => of(&|ty| matches!(ty, ColumnType::List(_))).map(RowField::Count),
        _ => None,
    }
    .or_else(|| {
        let (name, at) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
            Some((name, at)) => (name, Some(at.parse().ok()?)),
            None => (name, None),
        };
        let column = schema.position(name)?;
        if *schema.0[column].ty.required() == ColumnType::Text {
            return at.is_none().then_some(RowField::Text(column));
        }
        let stored = schema.0[column].ty.stored()?;
        let ty = match stored.dtype {
            DType::Bool => Type::Truth,
            dtype if dtype.is_float() => Type::Number,
            _ => Type::Integer,
        };
        match (at, stored.row_len()) {
            (Some(at), Some(n)) if at < n => Some(RowField::Element { column, at, ty }),
            (None, Some(1)) => Some(RowField::Element { column, at: 0, ty }),
            _ => None,
        }
    })
}
