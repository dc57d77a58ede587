//! Expressions over the columns of a row: conditions of `filter`, columns of `select`. Types are checked when the plan is made; a row costs one
//! walk over a small tree. What an expression does is bounded by its length: it has no loops and no names of its own.

mod field;
mod functions;
mod of_key;
mod parse;
mod tensor;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{ItemError, Value};

use field::exact;
pub use field::{RowField, field, fields};
pub use of_key::of_key;
pub use parse::{Wrong, parse};
pub use tensor::{ColumnExpression, TensorExpression, no_value, parse_column, whole_column};

/// What an expression gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Type {
    /// A whole number, i64. It has no value where there is no class.
    Integer,
    /// A number, f64. It has no value where there is no class, and is never NaN.
    Number,
    /// A text. It has no value where there is no class.
    Text,
    Truth,
}

impl Type {
    fn is_number(self) -> bool {
        matches!(self, Type::Integer | Type::Number)
    }

    /// The element type of a computed column; `None` of a text.
    fn dtype(self) -> Option<DType> {
        match self {
            Type::Integer => Some(DType::I64),
            Type::Number => Some(DType::F64),
            Type::Truth => Some(DType::Bool),
            Type::Text => None,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Integer | Type::Number => "a number",
            Type::Text => "a text",
            Type::Truth => "true or false",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    /// What has no value is unequal to everything and passes no other comparison.
    fn holds<T: PartialOrd>(self, left: Option<T>, right: Option<T>) -> bool {
        let (Some(left), Some(right)) = (left, right) else { return self == Comparison::Unequal };
        match self {
            Comparison::Equal => left == right,
            Comparison::Unequal => left != right,
            Comparison::Less => left < right,
            Comparison::AtMost => left <= right,
            Comparison::More => left > right,
            Comparison::AtLeast => left >= right,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Arithmetic {
    Plus,
    Minus,
    Times,
    /// Of numbers, also where both are whole.
    Over,
}

/// Tests of a text by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

/// An expression whose types fit. Its depth is bounded by the parser.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Expression {
    Integer(i64),
    Number(f64),
    Text(String),
    Truth(bool),
    Field(RowField),
    Not(Box<Expression>),
    /// All of them, or at least one: the first that decides ends it.
    All(Vec<Expression>),
    Any(Vec<Expression>),
    /// The type is what both sides are compared as.
    Compare(Comparison, Type, Box<[Expression; 2]>),
    /// The type is that of the result.
    Arithmetic(Arithmetic, Type, Box<[Expression; 2]>),
    Negative(Box<Expression>),
    /// Characters of a text.
    Len(Box<Expression>),
    Lower(Box<Expression>),
    Upper(Box<Expression>),
    Test(TextTest, Box<[Expression; 2]>),
    /// Of a field.
    IsMissing(Box<Expression>),
    IsNan(Box<Expression>),
    /// A field, and what stands for it where it is missing. The type is that of both.
    OrElse(Type, Box<[Expression; 2]>),
}

impl Expression {
    pub fn ty(&self) -> Type {
        match self {
            Expression::Integer(_) | Expression::Len(_) => Type::Integer,
            Expression::Number(_) => Type::Number,
            Expression::Text(_) | Expression::Lower(_) | Expression::Upper(_) => Type::Text,
            Expression::Field(field) => field.ty(),
            Expression::Arithmetic(_, ty, _) | Expression::OrElse(ty, _) => *ty,
            Expression::Negative(of) => of.ty(),
            Expression::Truth(_)
            | Expression::Not(_)
            | Expression::All(_)
            | Expression::Any(_)
            | Expression::Compare(..)
            | Expression::Test(..)
            | Expression::IsMissing(_)
            | Expression::IsNan(_) => Type::Truth,
        }
    }

    fn parts(&self) -> &[Expression] {
        match self {
            Expression::Integer(_)
            | Expression::Number(_)
            | Expression::Text(_)
            | Expression::Truth(_)
            | Expression::Field(_) => &[],
            Expression::Not(of)
            | Expression::Negative(of)
            | Expression::Len(of)
            | Expression::IsMissing(of)
            | Expression::IsNan(of)
            | Expression::Lower(of)
            | Expression::Upper(of) => std::slice::from_ref(of),
            Expression::All(of) | Expression::Any(of) => of,
            Expression::Compare(_, _, of)
            | Expression::Arithmetic(_, _, of)
            | Expression::Test(_, of)
            | Expression::OrElse(_, of) => &**of,
        }
    }

    /// How many parts it has: what a row costs.
    pub fn n_parts(&self) -> usize {
        1 + self.parts().iter().map(Expression::n_parts).sum::<usize>()
    }

    pub fn columns(&self, found: &mut BTreeSet<usize>) {
        if let Expression::Field(field) = self {
            found.insert(field.column());
        }
        self.parts().iter().for_each(|part| part.columns(found));
    }

    /// The one of the two that counts: the field, or what stands for it where it is missing.
    fn there<'a>([field, otherwise]: &'a [Expression; 2], row: &[Value<'_>]) -> &'a Expression {
        match field {
            Expression::Field(of) if of.is_missing(row) => otherwise,
            field => field,
        }
    }

    /// Its value where it is true or false; of anything else, false.
    ///
    /// # Errors
    /// A tensor cannot be made, a value is missing, or a number is NaN or has no place in its type.
    pub fn truth(&self, row: &[Value<'_>]) -> Result<bool, ItemError> {
        Ok(match self {
            Expression::Truth(value) => *value,
            Expression::Field(field) => field.number(row)? == Some(1.0),
            Expression::IsMissing(of) => matches!(&**of, Expression::Field(field) if field.is_missing(row)),
            Expression::IsNan(of) => match &**of {
                Expression::Field(field) => field.is_nan(row)?,
                _ => false,
            },
            Expression::OrElse(_, of) => Self::there(of, row).truth(row)?,
            Expression::Not(of) => !of.truth(row)?,
            Expression::All(of) => {
                for part in of {
                    if !part.truth(row)? {
                        return Ok(false);
                    }
                }
                true
            }
            Expression::Any(of) => {
                for part in of {
                    if part.truth(row)? {
                        return Ok(true);
                    }
                }
                false
            }
            Expression::Compare(sign, Type::Text, of) => sign.holds(of[0].text(row)?, of[1].text(row)?),
            Expression::Compare(sign, Type::Integer, of) => {
                sign.holds(of[0].integer(row)?, of[1].integer(row)?)
            }
            Expression::Compare(sign, _, of) => sign.holds(of[0].number(row)?, of[1].number(row)?),
            Expression::Test(test, of) => match (of[0].text(row)?, of[1].text(row)?) {
                (Some(text), Some(part)) => match test {
                    TextTest::StartsWith => text.starts_with(&*part),
                    TextTest::EndsWith => text.ends_with(&*part),
                    TextTest::Contains => text.contains(&*part),
                },
                _ => false,
            },
            _ => false,
        })
    }

    /// Its value where it is a number, or true or false: 1 or 0.
    pub fn number(&self, row: &[Value<'_>]) -> Result<Option<f64>, ItemError> {
        Ok(match (self, self.ty()) {
            (Expression::Number(value), _) => Some(*value),
            (Expression::Field(field), _) => field.number(row)?,
            (Expression::OrElse(_, of), Type::Number) => Self::there(of, row).number(row)?,
            (_, Type::Integer) => self.integer(row)?.map(exact).transpose()?,
            (_, Type::Truth) => Some(f64::from(u8::from(self.truth(row)?))),
            (Expression::Negative(of), _) => of.number(row)?.map(|value| -value),
            (Expression::Arithmetic(sign, _, of), _) => {
                let Some((left, right)) = of[0].number(row)?.zip(of[1].number(row)?) else { return Ok(None) };
                let value = match sign {
                    Arithmetic::Plus => left + right,
                    Arithmetic::Minus => left - right,
                    Arithmetic::Times => left * right,
                    Arithmetic::Over => left / right,
                };
                if value.is_nan() {
                    return Err(ItemError::result(format!(
                        "{left} and {right} give no number here: it is NaN"
                    )));
                }
                Some(value)
            }
            _ => None,
        })
    }

    /// Its value where it is a whole number, or true or false: 1 or 0.
    pub fn integer(&self, row: &[Value<'_>]) -> Result<Option<i64>, ItemError> {
        let beyond = || ItemError::result("a whole number that is computed is beyond what 64 bits hold");
        Ok(match self {
            Expression::Integer(value) => Some(*value),
            Expression::Field(field) => field.integer(row)?,
            Expression::OrElse(_, of) => Self::there(of, row).integer(row)?,
            Expression::Negative(of) => match of.integer(row)? {
                Some(value) => Some(value.checked_neg().ok_or_else(beyond)?),
                None => None,
            },
            Expression::Len(of) => of.text(row)?.map(|text| text.chars().count() as i64),
            Expression::Arithmetic(sign, Type::Integer, of) => {
                let Some((left, right)) = of[0].integer(row)?.zip(of[1].integer(row)?) else {
                    return Ok(None);
                };
                let value = match sign {
                    Arithmetic::Plus => left.checked_add(right),
                    Arithmetic::Minus => left.checked_sub(right),
                    Arithmetic::Times => left.checked_mul(right),
                    Arithmetic::Over => None,
                };
                Some(value.ok_or_else(beyond)?)
            }
            of if of.ty() == Type::Truth => Some(i64::from(of.truth(row)?)),
            _ => None,
        })
    }

    pub fn text<'a>(&'a self, row: &'a [Value<'_>]) -> Result<Option<Cow<'a, str>>, ItemError> {
        Ok(match self {
            Expression::Text(text) => Some(Cow::Borrowed(text)),
            Expression::Field(field) => field.text(row)?.map(Cow::Borrowed),
            Expression::OrElse(_, of) => Self::there(of, row).text(row)?,
            Expression::Lower(of) => of.text(row)?.map(|text| Cow::Owned(text.to_lowercase())),
            Expression::Upper(of) => of.text(row)?.map(|text| Cow::Owned(text.to_uppercase())),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
