//! Columns of `select`: an expression, a list of columns and expressions, which is one tensor, or a cast of either.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, Value, fixed_tensor};
use orchestra_core::{DType, Element};

use super::parse::{Parser, form, shown, word};
use super::{Expression, RowField, Type, Wrong, field};

/// What is said of a list or a cast within an expression.
pub(super) const OUTERMOST: &str =
    "nothing is computed of a cast or a list: cast the result, as in f32(a + 1), not f32(a) + 1";

#[derive(Debug)]
pub enum ColumnExpression {
    Text(Expression),
    Texts(Vec<Expression>),
    Tensor(TensorExpression),
}

/// A tensor whose type and shape are known before the first row.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct TensorExpression {
    pub dtype: DType,
    /// Without the batch.
    pub shape: Vec<usize>,
    of: Of,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
enum Of {
    Column(usize),
    /// One number.
    Expression(Expression),
    /// TensorFiles of one shape, along a new first dimension.
    List(Vec<TensorExpression>),
    Cast(Box<TensorExpression>),
}

/// Parses the text of a column that is no whole column of the input.
pub fn parse_column(
    schema: &Schema,
    resolved: &dyn Fn(&str) -> Option<String>,
    text: &str,
) -> Result<ColumnExpression, Wrong> {
    let mut parser = Parser::new(schema, resolved, text);
    let rest = parser.rest();
    let is_tensor =
        rest.starts_with('[') || rest.split_once('(').is_some_and(|(name, _)| cast(name).is_some());
    if !is_tensor || parser.longest_field(rest).is_some() {
        let expression = parser.whole()?;
        return Ok(match expression.ty().dtype() {
            Some(dtype) => ColumnExpression::Tensor(TensorExpression {
                dtype,
                shape: Vec::new(),
                of: Of::Expression(expression),
            }),
            None => ColumnExpression::Text(expression),
        });
    }
    let made = match Parser::new(schema, resolved, text).texts() {
        Some(texts) => {
            parser.at = text.len();
            ColumnExpression::Texts(texts?)
        }
        None => ColumnExpression::Tensor(parser.tensor()?),
    };
    match parser.rest() {
        "" => Ok(made),
        _ => Err(form(OUTERMOST)),
    }
}

/// The place of the column that a text names as a whole. `score` is a field of classes before it is a column.
pub fn whole_column(schema: &Schema, resolved: &dyn Fn(&str) -> Option<String>, text: &str) -> Option<usize> {
    let place = schema.position(text).or_else(|| schema.position(&resolved(text)?))?;
    let is_part = matches!(
        field(schema, &schema.0[place].name),
        Some(RowField::Label(_) | RowField::Class(_) | RowField::Score(_) | RowField::Count(_))
    );
    (!is_part).then_some(place)
}

pub(super) fn cast(function: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == function)
}

impl Parser<'_> {
    /// A list of texts and nothing behind it; `None` where the first element is none.
    fn texts(mut self) -> Option<Result<Vec<Expression>, Wrong>> {
        let mut texts = Vec::new();
        self.take("[").then_some(())?;
        loop {
            let from = self.at;
            let text = match self.operation(0) {
                Ok(text) => text,
                Err(_) if texts.is_empty() => return None,
                Err(wrong) => return Some(Err(wrong)),
            };
            if text.ty() != Type::Text {
                let text = shown(self.text[from..self.at].trim());
                return (!texts.is_empty())
                    .then(|| Err(form(format!("a list holds texts or numbers, and `{text}` is no text"))));
            }
            texts.push(text);
            if self.take("]") {
                return Some(if self.rest().is_empty() { Ok(texts) } else { Err(form(OUTERMOST)) });
            }
            if !self.take(",") {
                return Some(Err(self.unclosed()));
            }
        }
    }

    fn unclosed(&mut self) -> Wrong {
        match self.rest() {
            "" => form("a list is not closed"),
            rest => form(format!("expected `,` or `]`, found `{}`", word(rest))),
        }
    }

    /// A list, a cast, a column as it is, or one number.
    fn tensor(&mut self) -> Result<TensorExpression, Wrong> {
        let rest = self.rest();
        let ends = rest.match_indices([',', ']', ')']).map(|(at, _)| at).take_while(|at| *at <= self.longest);
        let ends: Vec<usize> = ends.collect();
        for end in ends.into_iter().rev() {
            let name = rest[..end].trim_end();
            if let Some(place) = whole_column(self.schema, self.resolved, name) {
                self.must_mean_a_column(name)?;
                self.at += end;
                return self.column(place);
            }
        }
        if self.take("[") {
            return self.deeper(Self::list);
        }
        if let Some(dtype) = rest.split_once('(').and_then(|(name, _)| cast(name)) {
            self.at += dtype.name().len() + 1;
            let of = self.deeper(Self::tensor)?;
            let shape = of.shape.clone();
            return self.closed(TensorExpression { dtype, shape, of: Of::Cast(Box::new(of)) });
        }
        let from = self.at;
        let expression = self.operation(0)?;
        let Some(dtype) = expression.ty().dtype() else {
            let text = shown(self.text[from..self.at].trim());
            return Err(form(format!(
                "a list holds texts or numbers and a cast numbers, and `{text}` is a text"
            )));
        };
        Ok(TensorExpression { dtype, shape: Vec::new(), of: Of::Expression(expression) })
    }

    fn column(&self, place: usize) -> Result<TensorExpression, Wrong> {
        let column = &self.schema.0[place];
        let shape = match column.ty.required() {
            ColumnType::Tensor(spec) => spec.fixed_row().map(|shape| (spec.dtype, shape)),
            _ => None,
        };
        let Some((dtype, shape)) = shape else {
            let (name, ty) = (&column.name, &column.ty);
            let why = format!("a list and a cast hold tensors of a known shape, and `{name}` is {ty}");
            return Err(form(why));
        };
        Ok(TensorExpression { dtype, shape, of: Of::Column(place) })
    }

    fn list(&mut self) -> Result<TensorExpression, Wrong> {
        let mut of: Vec<TensorExpression> = Vec::new();
        let (mut dtype, mut first_text) = (None, "");
        loop {
            self.rest();
            let from = self.at;
            let element = self.tensor()?;
            let text = shown(self.text[from..self.at].trim());
            let first = of.first().unwrap_or(&element);
            if of.is_empty() {
                first_text = text;
            }
            let [is, other] = [first, &element].map(|of| fixed_tensor("", of.dtype, &of.shape));
            let both = format!("`{first_text}` is {is} and `{text}` is {other}");
            if first.shape != element.shape {
                return Err(form(format!("the elements of a list have one shape: {both}")));
            }
            let Some(common) = common(dtype.unwrap_or(element.dtype), element.dtype) else {
                let why = "true or false does not stand among numbers; f32(..) makes 1 or 0 of it";
                return Err(form(format!("{why}: {both}")));
            };
            dtype = Some(common);
            of.push(element);
            if self.take("]") {
                let shape = std::iter::once(of.len()).chain(of[0].shape.iter().copied()).collect();
                return Ok(TensorExpression { dtype: common, shape, of: Of::List(of) });
            }
            if !self.take(",") {
                return Err(self.unclosed());
            }
        }
    }
}

/// The type of a list of both: the wider one, and f64 of integers and floats.
fn common(a: DType, b: DType) -> Option<DType> {
    let wider = if a.size_bytes() < b.size_bytes() { b } else { a };
    match (a == DType::Bool, b == DType::Bool) {
        (true, true) => Some(a),
        (false, false) if a.is_float() == b.is_float() => Some(wider),
        (false, false) => Some(DType::F64),
        _ => None,
    }
}

impl TensorExpression {
    /// What a row costs, in parts of an expression.
    pub fn n_parts(&self) -> usize {
        match &self.of {
            Of::Column(_) => 1 + self.shape.iter().product::<usize>() / 16,
            Of::Expression(of) => of.n_parts(),
            Of::List(of) => of.iter().map(Self::n_parts).sum(),
            Of::Cast(of) => 1 + of.n_parts(),
        }
    }

    pub fn columns(&self, found: &mut BTreeSet<usize>) {
        match &self.of {
            Of::Column(place) => drop(found.insert(*place)),
            Of::Expression(of) => of.columns(found),
            Of::List(of) => of.iter().for_each(|of| of.columns(found)),
            Of::Cast(of) => of.columns(found),
        }
    }

    /// Appends the elements of the column `name`.
    ///
    /// # Errors
    /// A value is missing, is NaN where something is computed of it, or has no place in its type.
    pub fn append(&self, name: &str, row: &[Value<'_>], data: &mut Vec<u8>) -> Result<(), ItemError> {
        self.each(name, row, &mut |element| put(name, element, self.dtype, data))
    }

    /// Shows each element, in order, in the type of the innermost cast around it.
    fn each(
        &self,
        name: &str,
        row: &[Value<'_>],
        show: &mut dyn FnMut(Element) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        match &self.of {
            Of::Column(place) => row.get(*place).ok_or_else(|| no_value(name))?.with_tensor(|view| {
                let mut elements = view.data.chunks_exact(view.dtype.size_bytes());
                elements.try_for_each(|bytes| show(Element::read(view.dtype, bytes)))
            }),
            Of::Expression(of) => {
                let element = match self.dtype {
                    DType::I64 => of.integer(row)?.map(Element::Int),
                    DType::Bool => Some(Element::Bool(of.truth(row)?)),
                    _ => of.number(row)?.map(Element::Double),
                };
                show(element.ok_or_else(|| no_value(name))?)
            }
            Of::List(of) => of.iter().try_for_each(|of| of.each(name, row, show)),
            Of::Cast(of) => {
                let mut bytes = Vec::with_capacity(size_of::<f64>());
                of.each(name, row, &mut |element| {
                    bytes.clear();
                    put(name, element, self.dtype, &mut bytes)?;
                    show(Element::read(self.dtype, &bytes))
                })
            }
        }
    }
}

/// That of a column that is computed of a class where there is none.
pub fn no_value(name: &str) -> ItemError {
    ItemError::result(format!("`{name}` has no value: there is no class"))
}

/// Appends an element as one of this type; true or false is 1 or 0 as a number.
fn put(name: &str, element: Element, dtype: DType, data: &mut Vec<u8>) -> Result<(), ItemError> {
    let element = match element {
        Element::Bool(is) if dtype != DType::Bool => Element::Int(is.into()),
        element => element,
    };
    element.append(dtype, data).map_err(|why| ItemError::result(format!("`{name}` cannot be made: {why}")))
}
