//! Functions of expressions: their names, and what they take.

use orchestra_core::DType;

use super::parse::{Parser, form, shown};
use super::tensor::{OUTERMOST, cast};
use super::{Expression, TextTest, Type, Wrong};

impl Parser<'_> {
    pub(super) fn function(&mut self, name: &str) -> Result<Expression, Wrong> {
        const FUNCTIONS: &str =
            "len, lower, upper, starts_with, ends_with, contains, is_missing, is_nan, or_else";
        if cast(name).is_some() {
            return Err(form(OUTERMOST));
        }
        if FUNCTIONS.split(", ").all(|known| known != name) {
            let known = orchestra_plan::list(FUNCTIONS.split(", "));
            let types = orchestra_plan::list(DType::ALL.iter().map(|dtype| dtype.name()));
            return Err(form(format!("there is no function `{name}`; functions: {known}; casts: {types}")));
        }
        let values = self.values(name)?;
        let n = values.len();
        let mut values = values.into_iter().map(Box::new);
        let expression = match (name, n, values.next(), values.next()) {
            ("len", 1, Some(text), _) => Expression::Len(text),
            ("lower", 1, Some(text), _) => Expression::Lower(text),
            ("upper", 1, Some(text), _) => Expression::Upper(text),
            ("is_missing", 1, Some(field), _) => Expression::IsMissing(field),
            ("is_nan", 1, Some(field), _) => Expression::IsNan(field),
            ("or_else", 2, Some(field), Some(otherwise)) => or_else(*field, *otherwise)?,
            ("starts_with", 2, Some(text), Some(part)) => test(TextTest::StartsWith, *text, *part),
            ("ends_with", 2, Some(text), Some(part)) => test(TextTest::EndsWith, *text, *part),
            ("contains", 2, Some(text), Some(part)) => test(TextTest::Contains, *text, *part),
            _ => {
                let wanted = match name {
                    "is_missing" | "is_nan" => "one field",
                    "or_else" => "a field and what stands for it",
                    "len" | "lower" | "upper" => "one text",
                    _ => "two texts",
                };
                return Err(form(format!("`{name}` takes {wanted}, not {n}")));
            }
        };
        self.closed(expression)
    }

    /// What a function is given: texts, or a field first.
    fn values(&mut self, name: &str) -> Result<Vec<Expression>, Wrong> {
        let of_fields = matches!(name, "is_missing" | "is_nan" | "or_else");
        self.at += name.len() + 1;
        let mut values = Vec::new();
        loop {
            let from = self.at;
            let value = self.nested(0)?;
            let text = self.text[from..self.at].trim();
            match &value {
                _ if !of_fields => self.must_be(&value, Type::Text, name, text)?,
                Expression::Field(_) => {}
                _ if values.is_empty() => {
                    return Err(form(format!("`{name}` takes a field, and `{}` is none", shown(text))));
                }
                _ => {}
            }
            values.push(value);
            if !self.take(",") {
                return Ok(values);
            }
        }
    }
}

fn test(test: TextTest, text: Expression, part: Expression) -> Expression {
    Expression::Test(test, [text, part].into())
}

fn or_else(field: Expression, otherwise: Expression) -> Result<Expression, Wrong> {
    let ty = match (field.ty(), otherwise.ty()) {
        (ty, of) if ty == of => ty,
        (ty, of) if ty.is_number() && of.is_number() => Type::Number,
        (ty, of) => return Err(form(format!("`or_else` takes two of one type, and here {ty} and {of}"))),
    };
    Ok(Expression::OrElse(ty, [field, otherwise].into()))
}
