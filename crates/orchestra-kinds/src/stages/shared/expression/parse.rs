//! Text to an expression whose types fit the columns of a row. Operators bind as they do in Python and SQL.
//!
//! Names of columns are those of models: `495`, `onnx::Add_3`, `output/logits-1` are all common. So the longest name of a field that stands at
//! a place is that field, and signs within it are no arithmetic.

use orchestra_core::data::Schema;

use super::tensor::cast;
use super::{Arithmetic, Comparison, Expression, RowField, Type, field};

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
    Field(String),
}

/// Longer ones first: `<=` begins with `<`.
const SIGNS: [(&str, Operator); 10] = [
    ("==", Operator::Compare(Comparison::Equal)),
    ("!=", Operator::Compare(Comparison::Unequal)),
    ("<=", Operator::Compare(Comparison::AtMost)),
    (">=", Operator::Compare(Comparison::AtLeast)),
    ("<", Operator::Compare(Comparison::Less)),
    (">", Operator::Compare(Comparison::More)),
    ("+", Operator::Arithmetic(Arithmetic::Plus)),
    ("-", Operator::Arithmetic(Arithmetic::Minus)),
    ("*", Operator::Arithmetic(Arithmetic::Times)),
    ("/", Operator::Arithmetic(Arithmetic::Over)),
];

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
    Parser::new(schema, resolved, text).whole()
}

pub(super) fn form(what: impl Into<String>) -> Wrong {
    Wrong::Form(what.into())
}

/// The beginning of a text, as messages show it.
pub(super) fn word(text: &str) -> &str {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    &text[..text.floor_char_boundary(end.min(40))]
}

pub(super) struct Parser<'a> {
    pub(super) schema: &'a Schema,
    pub(super) resolved: &'a dyn Fn(&str) -> Option<String>,
    /// Bytes of the longest name that may be a field.
    pub(super) longest: usize,
    pub(super) text: &'a str,
    /// Bytes that are parsed.
    pub(super) at: usize,
    /// A comparison stands before: a number there is a number, even if a column is called so.
    compares: bool,
    nesting: usize,
    arithmetic: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(
        schema: &'a Schema,
        resolved: &'a dyn Fn(&str) -> Option<String>,
        text: &'a str,
    ) -> Self {
        // Behind the longest name may stand `.score` or `[123456]`, and before it the name of a stage.
        let longest = schema.names().map(str::len).max().unwrap_or(0) + 24 + MAX_STAGE_NAME;
        Self { schema, resolved, longest, text, at: 0, compares: false, nesting: 0, arithmetic: 0 }
    }

    /// The expression that the text is.
    pub(super) fn whole(&mut self) -> Result<Expression, Wrong> {
        let expression = self.operation(0)?;
        match self.rest() {
            "" => Ok(expression),
            rest => Err(form(format!("expected `and`, `or` or a sign, found `{}`", word(rest)))),
        }
    }

    /// What remains, without the space before it.
    pub(super) fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    pub(super) fn take(&mut self, sign: &str) -> bool {
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.at += sign.len();
        }
        is_next
    }

    /// Operands joined by operators that bind at least as strongly as `least`.
    pub(super) fn operation(&mut self, least: Power) -> Result<Expression, Wrong> {
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
        if let Some(found) = SIGNS.into_iter().find(|(sign, _)| rest.starts_with(sign)) {
            return Ok(Some(found));
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
            let next = SIGNS.iter().find(|(sign, _)| self.rest().starts_with(sign));
            if !matches!(next, Some((_, Operator::Compare(_)))) {
                self.must_mean_a_column(name)?;
            }
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

    pub(super) fn nested(&mut self, least: Power) -> Result<Expression, Wrong> {
        self.deeper(|parser| parser.operation(least))
    }

    pub(super) fn deeper<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, Wrong>,
    ) -> Result<T, Wrong> {
        if self.nesting == MAX_NESTING {
            return Err(form(format!("it is nested deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        let inner = inner(self);
        self.nesting -= 1;
        inner
    }

    pub(super) fn closed<T>(&mut self, inner: T) -> Result<T, Wrong> {
        if self.take(")") {
            return Ok(inner);
        }
        Err(match self.rest() {
            "" => form("a parenthesis is not closed"),
            rest => form(format!("expected `)`, found `{}`", word(rest))),
        })
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
        if whole.is_none() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form(format!(
                "`{}` is beyond integers of 64 bits, which end at {}; `{}.0` is a float",
                word(text),
                i64::MAX,
                word(text)
            )));
        }
        let number = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(Expression::Number);
        let Some(number) = whole.or_else(number) else {
            return Err(form(format!("`{}` is no number; a text stands in single quotes", word(text))));
        };
        self.at += end;
        Ok(Some(number))
    }

    /// Within an expression, or in a list, a column called `1` or `a, b` may stand for the number or for two columns. On the left of a comparison it
    /// is the column.
    pub(super) fn must_mean_a_column(&self, name: &str) -> Result<(), Wrong> {
        let is_constant = |text: &str| text.parse::<f64>().is_ok() || ["true", "false"].contains(&text);
        let is_value = |text: &str| is_constant(text) || field(self.schema, text).is_some();
        let head = name.split([',', '(', ')', ']']).next().unwrap_or_default();
        let is_list = head.len() < name.len() && is_value(head.trim());
        if is_constant(name) || is_list || name[head.len()..].starts_with('(') && cast(head).is_some() {
            return Err(form(format!(
                "`{name}` is a column, and can be read otherwise, too: write it with the name of what gives it, `NAME.{name}`"
            )));
        }
        Ok(())
    }

    /// The longest name of a field that stands here as a whole: behind it comes no part of a name.
    pub(super) fn longest_field(&self, rest: &'a str) -> Option<(&'a str, RowField)> {
        let ends = |at: usize| {
            let after = &rest[at..];
            after.is_empty()
                || after.starts_with(|c: char| c.is_whitespace() || "),]".contains(c))
                || SIGNS.iter().any(|(sign, _)| after.starts_with(sign))
        };
        let most = rest.find(char::is_whitespace).unwrap_or(rest.len()).min(self.longest);
        (1..=most).rev().filter(|at| rest.is_char_boundary(*at) && ends(*at)).find_map(|at| {
            let name = &rest[..at];
            let otherwise = || field(self.schema, &(self.resolved)(name)?);
            Some((name, field(self.schema, name).or_else(otherwise)?))
        })
    }

    /// Whether an operand of `sign` is what it takes.
    pub(super) fn must_be(&self, of: &Expression, wanted: Type, sign: &str, text: &str) -> Result<(), Wrong> {
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
                let is_no_text = |text, other_text, other| {
                    let (text, of) = (shown(text), shown(other_text));
                    Err(form(format!(
                        "`{text}` is a text and `{of}` is {other}: a text compares with a text, in single quotes"
                    )))
                };
                let ty = match (left.ty(), right.ty()) {
                    (Type::Text, Type::Text) => Type::Text,
                    (Type::Text, other) => return is_no_text(left_text, right_text, other),
                    (other, Type::Text) => return is_no_text(right_text, left_text, other),
                    (Type::Integer | Type::Truth, Type::Integer | Type::Truth) => Type::Integer,
                    _ => Type::Number,
                };
                if ty == Type::Text && !matches!(comparison, Comparison::Equal | Comparison::Unequal) {
                    let left = shown(left_text);
                    return Err(form(format!("a text can be == or != to `{left}`, not {sign}")));
                }
                Ok(Expression::Compare(comparison, ty, [left, right].into()))
            }
        }
    }
}

/// A part of an expression, as messages show it.
pub(super) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(text.len().min(60))]
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// That neither a value nor a known field stands here: what looks like a name is called one.
fn no_value(rest: &str) -> Wrong {
    let ends = |c: char| c.is_whitespace() || "=!<>(),'*+".contains(c);
    let name = &rest[..rest.find(ends).unwrap_or(rest.len())];
    // The end of a list is no part of the name in front of it.
    match if name.contains('[') { name } else { name.trim_end_matches(']') } {
        "" => form(format!("`{}` stands where a value is expected", word(rest))),
        name => Wrong::Field(shown(name).to_owned()),
    }
}
