//! Text to an expression whose types fit the columns of a row. Operators bind as they do in Python and SQL.
//!
//! Names of columns are those of models: `495`, `onnx::Add_3`, `output/logits-1` are all common. So the longest name of a field that stands at
//! a place is that field, and signs within it are no arithmetic.

use orchestra_core::data::Schema;

use super::{Arithmetic, Comparison, Expression, Field, TextTest, Type, field};

/// Parentheses, signs and functions within one another.
const MAX_NESTING: usize = 32;
/// Bytes of the name of a stage that may stand before that of a column.
const MAX_STAGE_NAME: usize = 256;
/// Signs of arithmetic: what the depth of an expression is beside its nesting.
const MAX_ARITHMETIC: usize = 256;

/// Why a text is no expression over these columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// What is wrong, as a fragment.
    Form(String),
    /// There is no such field.
    Field(String),
}

/// Longer ones first: `<=` begins with `<`.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("<", Comparison::Less),
    (">", Comparison::More),
];

const ARITHMETIC: [(&str, Arithmetic); 4] =
    [("+", Arithmetic::Plus), ("-", Arithmetic::Minus), ("*", Arithmetic::Times), ("/", Arithmetic::Over)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Or,
    And,
    Compare(Comparison),
    Arithmetic(Arithmetic),
}

/// How strongly something binds: operators of a larger number go first.
type Power = u8;
const OR: Power = 1;
const AND: Power = 2;
const COMPARE: Power = 3;
const ADD: Power = 4;
const MULTIPLY: Power = 5;
const SIGN: Power = 6;

impl Operator {
    fn power(self) -> Power {
        match self {
            Operator::Or => OR,
            Operator::And => AND,
            Operator::Compare(_) => COMPARE,
            Operator::Arithmetic(Arithmetic::Plus | Arithmetic::Minus) => ADD,
            Operator::Arithmetic(Arithmetic::Times | Arithmetic::Over) => MULTIPLY,
        }
    }
}

/// Parses a whole text. `resolved` gives the name of a column that a text calls otherwise.
pub fn parse(
    schema: &Schema,
    resolved: &dyn Fn(&str) -> Option<String>,
    text: &str,
) -> Result<Expression, Wrong> {
    // Behind the longest name may stand `.score` or `[123456]`, and before it the name of a stage.
    let longest = schema.names().map(str::len).max().unwrap_or(0) + 24 + MAX_STAGE_NAME;
    let mut parser =
        Parser { schema, resolved, longest, text, at: 0, compares: false, nesting: 0, arithmetic: 0 };
    let expression = parser.operation(0)?;
    match parser.rest() {
        "" => Ok(expression),
        rest => Err(form(format!("expected `and`, `or` or a sign, found `{}`", word(rest)))),
    }
}

fn form(what: impl Into<String>) -> Wrong {
    Wrong::Form(what.into())
}

/// The beginning of a text, as messages show it.
fn word(text: &str) -> &str {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    &text[..text.floor_char_boundary(end.min(40))]
}

struct Parser<'a> {
    schema: &'a Schema,
    resolved: &'a dyn Fn(&str) -> Option<String>,
    /// Bytes of the longest name that may be a field.
    longest: usize,
    text: &'a str,
    /// Bytes that are parsed.
    at: usize,
    /// A comparison stands before: a number there is a number, even if a column is called so.
    compares: bool,
    nesting: usize,
    arithmetic: usize,
}

impl<'a> Parser<'a> {
    /// What remains, without the space before it.
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    fn take(&mut self, sign: &str) -> bool {
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.at += sign.len();
        }
        is_next
    }

    /// Operands joined by operators that bind at least as strongly as `least`.
    fn operation(&mut self, least: Power) -> Result<Expression, Wrong> {
        let start = self.at;
        let mut left = self.operand()?;
        let mut is_comparison = false;
        while let Some((sign, operator)) = self.operator()? {
            if operator.power() < least {
                break;
            }
            if matches!(operator, Operator::Compare(_)) && std::mem::replace(&mut is_comparison, true) {
                return Err(form("two comparisons in a row are joined by `and`"));
            }
            let before = self.text[start..self.at].trim();
            self.at += sign.len();
            self.compares = matches!(operator, Operator::Compare(_));
            let from = self.at;
            let right = self.operation(operator.power() + 1)?;
            left = self.join(operator, sign, (before, left), (self.text[from..self.at].trim(), right))?;
        }
        Ok(left)
    }

    fn operator(&mut self) -> Result<Option<(&'static str, Operator)>, Wrong> {
        let rest = self.rest();
        for (sign, comparison) in COMPARISONS {
            if rest.starts_with(sign) {
                return Ok(Some((sign, Operator::Compare(comparison))));
            }
        }
        for (sign, arithmetic) in ARITHMETIC {
            if rest.starts_with(sign) {
                return Ok(Some((sign, Operator::Arithmetic(arithmetic))));
            }
        }
        for (sign, operator) in [("and", Operator::And), ("or", Operator::Or)] {
            if rest.strip_prefix(sign).is_some_and(|rest| !rest.starts_with(is_of_word)) {
                return Ok(Some((sign, operator)));
            }
        }
        for (found, meant) in [("=", "=="), ("&&", "and"), ("||", "or"), ("<>", "!=")] {
            if rest.starts_with(found) {
                return Err(form(format!("`{found}` is no sign here; write `{meant}`")));
            }
        }
        Ok(None)
    }

    fn operand(&mut self) -> Result<Expression, Wrong> {
        let rest = self.rest();
        let compares = std::mem::take(&mut self.compares);
        if rest.is_empty() {
            return Err(form("it ends where a value is expected"));
        }
        if let Some(quoted) = rest.strip_prefix('\'') {
            let (text, _) = quoted.split_once('\'').ok_or_else(|| form("a text has no closing quote"))?;
            self.at += text.len() + 2;
            return Ok(Expression::Text(text.to_owned()));
        }
        if compares && let Some(number) = self.number(rest)? {
            return Ok(number);
        }
        if let Some((name, field)) = self.longest_field(rest) {
            self.at += name.len();
            return Ok(Expression::Field(field));
        }
        if self.take("(") {
            let inner = self.nested(0)?;
            return self.closed(inner);
        }
        for sign in ["-", "+"] {
            if self.take(sign) {
                self.compares = compares;
                let of = self.nested(SIGN)?;
                let after = &rest[..rest.len() - (self.text.len() - self.at)];
                self.must_be(&of, Type::Number, sign, after[1..].trim())?;
                return Ok(match of {
                    of if sign == "+" => of,
                    Expression::Number(number) => Expression::Number(-number),
                    of => Expression::Negative(Box::new(of)),
                });
            }
        }
        if let Some(number) = self.number(rest)? {
            return Ok(number);
        }
        let name = &rest[..rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())];
        match name {
            "true" | "false" => {
                self.at += name.len();
                Ok(Expression::Truth(name == "true"))
            }
            "not" => {
                self.at += name.len();
                let from = self.at;
                let of = self.nested(COMPARE)?;
                self.must_be(&of, Type::Truth, "not", self.text[from..self.at].trim())?;
                Ok(Expression::Not(Box::new(of)))
            }
            _ if rest[name.len()..].starts_with('(') && !name.is_empty() => self.function(name),
            _ => Err(no_value(rest)),
        }
    }

    fn nested(&mut self, least: Power) -> Result<Expression, Wrong> {
        if self.nesting == MAX_NESTING {
            return Err(form(format!("it is nested deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        let inner = self.operation(least);
        self.nesting -= 1;
        inner
    }

    fn closed(&mut self, inner: Expression) -> Result<Expression, Wrong> {
        if self.take(")") {
            return Ok(inner);
        }
        Err(match self.rest() {
            "" => form("a parenthesis is not closed"),
            rest => form(format!("expected `)`, found `{}`", word(rest))),
        })
    }

    fn function(&mut self, name: &str) -> Result<Expression, Wrong> {
        const FUNCTIONS: [(&str, usize); 9] = [
            ("len", 1),
            ("lower", 1),
            ("upper", 1),
            ("starts_with", 2),
            ("ends_with", 2),
            ("contains", 2),
            ("is_missing", 1),
            ("is_nan", 1),
            ("or_else", 2),
        ];
        let Some((_, n)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
            let known = orchestra_plan::list(FUNCTIONS.map(|(name, _)| name));
            return Err(form(format!("there is no function `{name}`; functions: {known}")));
        };
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
                break;
            }
        }
        if values.len() != *n {
            let wanted = match (of_fields, n) {
                (true, 1) => "one field",
                (true, _) => "a field and what stands for it",
                (false, 1) => "one text",
                (false, _) => "two texts",
            };
            return Err(form(format!("`{name}` takes {wanted}, not {}", values.len())));
        }
        let second = values.pop();
        let expression = match (values.pop(), second, name) {
            (Some(field), Some(otherwise), "or_else") => {
                let (ty, of) = (field.ty(), otherwise.ty());
                let ty = match (ty, of) {
                    (Type::Integer, Type::Number) => Type::Number,
                    (Type::Number, Type::Integer) => Type::Number,
                    _ if ty == of => ty,
                    _ => {
                        return Err(form(format!("`or_else` takes two of one type, and here {ty} and {of}")));
                    }
                };
                Expression::OrElse(ty, [field, otherwise].into())
            }
            (Some(text), Some(part), "starts_with") => {
                Expression::Test(TextTest::StartsWith, [text, part].into())
            }
            (Some(text), Some(part), "ends_with") => {
                Expression::Test(TextTest::EndsWith, [text, part].into())
            }
            (Some(text), Some(part), _) => Expression::Test(TextTest::Contains, [text, part].into()),
            (_, Some(field), "is_missing") => Expression::IsMissing(field.into()),
            (_, Some(field), "is_nan") => Expression::IsNan(field.into()),
            (_, Some(text), "len") => Expression::Len(text.into()),
            (_, Some(text), "lower") => Expression::Lower(text.into()),
            (_, Some(text), _) => Expression::Upper(text.into()),
            (_, None, _) => unreachable!("a function has one value at least"),
        };
        self.closed(expression)
    }

    /// An unsigned number, if one stands here.
    fn number(&mut self, rest: &str) -> Result<Option<Expression>, Wrong> {
        let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        if !is_number(rest.strip_prefix('.').unwrap_or(rest)) {
            return Ok(None);
        }
        let mut end = 0;
        let bytes = rest.as_bytes();
        while let Some(byte) = bytes.get(end) {
            let is_exponent = end > 0 && bytes[end - 1].eq_ignore_ascii_case(&b'e');
            match byte {
                b'0'..=b'9' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'_' => end += 1,
                b'+' | b'-' if is_exponent => end += 1,
                _ => break,
            }
        }
        let text = &rest[..end];
        let whole = text.parse().ok().map(Expression::Integer);
        let number = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(Expression::Number);
        let Some(number) = whole.or_else(number) else {
            return Err(form(format!("`{}` is no number; a text stands in single quotes", word(text))));
        };
        self.at += end;
        Ok(Some(number))
    }

    /// The longest name of a field that stands here as a whole: behind it comes no part of a name.
    fn longest_field(&self, rest: &'a str) -> Option<(&'a str, Field)> {
        let ends = |at: usize| {
            let after = &rest[at..];
            after.is_empty()
                || after.starts_with(|c: char| c.is_whitespace() || "+-*/),".contains(c))
                || COMPARISONS.iter().any(|(sign, _)| after.starts_with(sign))
        };
        let most = rest.find(char::is_whitespace).unwrap_or(rest.len()).min(self.longest);
        (1..=most).rev().filter(|at| rest.is_char_boundary(*at) && ends(*at)).find_map(|at| {
            let name = &rest[..at];
            let otherwise = || field(self.schema, &(self.resolved)(name)?);
            Some((name, field(self.schema, name).or_else(otherwise)?))
        })
    }

    /// Whether an operand of `sign` is what it takes.
    fn must_be(&self, of: &Expression, wanted: Type, sign: &str, text: &str) -> Result<(), Wrong> {
        let found = of.ty();
        let fits = found == wanted || wanted == Type::Number && found.is_number();
        if fits {
            return Ok(());
        }
        let takes = match wanted {
            Type::Integer | Type::Number => "numbers",
            Type::Text => "texts",
            Type::Truth => "comparisons",
        };
        Err(form(format!("`{sign}` takes {takes}, and `{}` is {found}", shown(text))))
    }

    fn join(
        &mut self,
        operator: Operator,
        sign: &str,
        (left_text, left): (&str, Expression),
        (right_text, right): (&str, Expression),
    ) -> Result<Expression, Wrong> {
        let both = |this: &Self, wanted| {
            this.must_be(&left, wanted, sign, left_text)?;
            this.must_be(&right, wanted, sign, right_text)
        };
        match operator {
            Operator::And | Operator::Or => {
                both(self, Type::Truth)?;
                // A long chain is one part, and not as deep as it is long.
                let is_and = operator == Operator::And;
                let mut parts = match (is_and, left) {
                    (true, Expression::All(parts)) | (false, Expression::Any(parts)) => parts,
                    (_, left) => vec![left],
                };
                parts.push(right);
                Ok(if is_and { Expression::All(parts) } else { Expression::Any(parts) })
            }
            Operator::Arithmetic(arithmetic) => {
                both(self, Type::Number)?;
                self.arithmetic += 1;
                if self.arithmetic > MAX_ARITHMETIC {
                    return Err(form(format!("it has more than {MAX_ARITHMETIC} signs of arithmetic")));
                }
                let are_whole = left.ty() == Type::Integer && right.ty() == Type::Integer;
                let ty =
                    if are_whole && arithmetic != Arithmetic::Over { Type::Integer } else { Type::Number };
                Ok(Expression::Arithmetic(arithmetic, ty, [left, right].into()))
            }
            Operator::Compare(comparison) => {
                let (left_ty, right_ty) = (left.ty(), right.ty());
                let ty = match (left_ty, right_ty) {
                    (Type::Text, Type::Text) => Type::Text,
                    (Type::Text, other) | (other, Type::Text) => {
                        let (text, of) = if left_ty == Type::Text {
                            (right_text, left_text)
                        } else {
                            (left_text, right_text)
                        };
                        let why = format!(
                            "`{}` is a text and `{}` is {other}: a text compares with a text, in single quotes",
                            shown(of),
                            shown(text)
                        );
                        return Err(form(why));
                    }
                    (Type::Integer | Type::Truth, Type::Integer | Type::Truth) => Type::Integer,
                    _ => Type::Number,
                };
                if ty == Type::Text && !matches!(comparison, Comparison::Equal | Comparison::Unequal) {
                    return Err(form(format!(
                        "a text can be == or != to `{}`, not {sign}",
                        shown(left_text)
                    )));
                }
                Ok(Expression::Compare(comparison, ty, [left, right].into()))
            }
        }
    }
}

/// A part of an expression, as messages show it.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(text.len().min(60))]
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// That neither a value nor a known field stands here: what looks like a name is called one.
fn no_value(rest: &str) -> Wrong {
    let ends = |c: char| c.is_whitespace() || "=!<>(),'*+".contains(c);
    match &rest[..rest.find(ends).unwrap_or(rest.len())] {
        "" => form(format!("`{}` stands where a value is expected", word(rest))),
        name => Wrong::Field(shown(name).to_owned()),
    }
}
