//! Expressions over the columns of a row: conditions of `filter`, columns of `select`. Types are checked when the plan is made; a row costs one
//! walk over a small tree. What an expression does is bounded by its length: it has no loops and no names of its own.

mod field;
mod of_key;
mod parse;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use bincode::{Decode, Encode};
use orchestra_core::data::{Refusal, Value};

pub use field::{Field, field, fields};
pub use of_key::of_key;
pub use parse::{Wrong, parse};

/// What an expression gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Type {
    /// A whole number, i64. It may have no value: the class where there is none, a sum that is too large.
    Integer,
    /// A number, f64. No value is NaN.
    Number,
    /// A text. It may have no value: the label where there is no class.
    Text,
    Truth,
}

impl Type {
    fn is_number(self) -> bool {
        matches!(self, Type::Integer | Type::Number)
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

/// Signs that compare.
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
    /// What has no value is unequal to everything and passes no other comparison, as NaN does.
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
    Field(Field),
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
}

impl Expression {
    pub fn ty(&self) -> Type {
        match self {
            Expression::Integer(_) | Expression::Len(_) => Type::Integer,
            Expression::Number(_) => Type::Number,
            Expression::Text(_) | Expression::Lower(_) | Expression::Upper(_) => Type::Text,
            Expression::Field(field) => field.ty(),
            Expression::Arithmetic(_, ty, _) => *ty,
            Expression::Negative(of) => of.ty(),
            Expression::Truth(_)
            | Expression::Not(_)
            | Expression::All(_)
            | Expression::Any(_)
            | Expression::Compare(..)
            | Expression::Test(..) => Type::Truth,
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
            | Expression::Lower(of)
            | Expression::Upper(of) => std::slice::from_ref(of),
            Expression::All(of) | Expression::Any(of) => of,
            Expression::Compare(_, _, of) | Expression::Arithmetic(_, _, of) | Expression::Test(_, of) => {
                &**of
            }
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

    /// Its value where it is true or false; of anything else, false.
    ///
    /// # Errors
    /// A tensor cannot be made.
    pub fn truth(&self, row: &[Value<'_>]) -> Result<bool, Refusal> {
        Ok(match self {
            Expression::Truth(value) => *value,
            Expression::Field(field) => field.number(row)? == 1.0,
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
            Expression::Compare(sign, _, of) => {
                sign.holds(Some(of[0].number(row)?), Some(of[1].number(row)?))
            }
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

    /// Its value where it is a number, or true or false: 1 or 0. NaN where it has none.
    pub fn number(&self, row: &[Value<'_>]) -> Result<f64, Refusal> {
        Ok(match (self, self.ty()) {
            (Expression::Number(value), _) => *value,
            (Expression::Field(field), _) => field.number(row)?,
            (_, Type::Integer) => self.integer(row)?.map_or(f64::NAN, |value| value as f64),
            (_, Type::Truth) => f64::from(u8::from(self.truth(row)?)),
            (Expression::Negative(of), _) => -of.number(row)?,
            (Expression::Arithmetic(sign, _, of), _) => {
                let (left, right) = (of[0].number(row)?, of[1].number(row)?);
                match sign {
                    Arithmetic::Plus => left + right,
                    Arithmetic::Minus => left - right,
                    Arithmetic::Times => left * right,
                    Arithmetic::Over => left / right,
                }
            }
            _ => f64::NAN,
        })
    }

    /// Its value where it is a whole number, or true or false: 1 or 0.
    pub fn integer(&self, row: &[Value<'_>]) -> Result<Option<i64>, Refusal> {
        Ok(match self {
            Expression::Integer(value) => Some(*value),
            Expression::Field(field) => field.integer(row)?,
            Expression::Negative(of) => of.integer(row)?.and_then(i64::checked_neg),
            Expression::Len(of) => of.text(row)?.map(|text| text.chars().count() as i64),
            Expression::Arithmetic(sign, Type::Integer, of) => {
                match (of[0].integer(row)?, of[1].integer(row)?) {
                    (Some(left), Some(right)) => match sign {
                        Arithmetic::Plus => left.checked_add(right),
                        Arithmetic::Minus => left.checked_sub(right),
                        Arithmetic::Times => left.checked_mul(right),
                        Arithmetic::Over => None,
                    },
                    _ => None,
                }
            }
            of if of.ty() == Type::Truth => Some(i64::from(of.truth(row)?)),
            _ => None,
        })
    }

    pub fn text<'a>(&'a self, row: &'a [Value<'_>]) -> Result<Option<Cow<'a, str>>, Refusal> {
        Ok(match self {
            Expression::Text(text) => Some(Cow::Borrowed(text)),
            Expression::Field(field) => field.text(row).map(Cow::Borrowed),
            Expression::Lower(of) => of.text(row)?.map(|text| Cow::Owned(text.to_lowercase())),
            Expression::Upper(of) => of.text(row)?.map(|text| Cow::Owned(text.to_uppercase())),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
