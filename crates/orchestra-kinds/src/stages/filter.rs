//! `kind = "filter"`: drops rows that do not meet a condition.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Refusal, Schema, Value};
use orchestra_core::shapes::{Emit, Fan, Map, MapRun, RemoteSpec};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, key, list,
};

use crate::tensor::element;

/// The kind `filter`.
pub struct Filter;

const KEYS: [Key; 1] = [key(
    "keep",
    "text",
    "required",
    "what a row must be to go on: comparisons joined by `and`, each of a field, one of `==`, `!=`, `<`, `<=`, `>`, `>=`, and a number or a text in \
     single quotes. Fields: `label`, `class` and `score` of the best class, `count` of a list, the name of a tensor of one number, or `name[3]` for \
     one number of a tensor; where several stages are read, `stage.score` and so on",
)];

impl StageKind for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn about(&self) -> &'static str {
        "Drops rows that do not meet a condition; the others go on as they are. An item whose rows are all dropped is done, without a record."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let keep = f.required_string("keep", "say which rows go on: keep = \"score >= 0.5\"")?;
        match parse(&keep.value) {
            Ok(tests) => Some(Draft::Stage(Box::new(FilterDraft { keep, tests }))),
            Err(why) => {
                f.bad("keep", keep.span, &format!("is no condition: {why}"))
                    .help("for example keep = \"score >= 0.5 and label != 'background'\"");
                None
            }
        }
    }

    fn revive(&self, spec: &RemoteSpec) -> Option<Arc<dyn Map>> {
        Some(Arc::new(spec.read::<FilterMap>()?))
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Test {
    field: String,
    operator: Operator,
    value: Literal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
enum Operator {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// Longer ones first: `<=` begins with `<`.
const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::Unequal),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("<", Operator::Less),
    (">", Operator::More),
];

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
enum Literal {
    Number(f64),
    Text(String),
}

/// Parts of a condition.
fn parse(text: &str) -> Result<Vec<Test>, String> {
    let mut rest = text.trim();
    let mut tests = Vec::new();
    loop {
        let operator = OPERATORS
            .iter()
            .filter_map(|(sign, operator)| Some((rest.find(sign)?, *sign, *operator)))
            .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())));
        let Some((at, sign, operator)) = operator else {
            return Err(format!("`{rest}` compares nothing"));
        };
        let field = rest[..at].trim().to_owned();
        if field.is_empty() || field.contains(char::is_whitespace) {
            return Err(format!("`{field}` is no name of a field"));
        }
        rest = rest[at + sign.len()..].trim_start();
        let value = if let Some(quoted) = rest.strip_prefix('\'') {
            let (text, after) = quoted.split_once('\'').ok_or("a text has no closing quote")?;
            rest = after;
            Literal::Text(text.to_owned())
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let number: Option<f64> = rest[..end].parse().ok().filter(|number: &f64| number.is_finite());
            let number = number
                .ok_or_else(|| format!("`{}` is no number; a text stands in single quotes", &rest[..end]))?;
            rest = &rest[end..];
            Literal::Number(number)
        };
        if matches!(value, Literal::Text(_)) && !matches!(operator, Operator::Equal | Operator::Unequal) {
            return Err(format!("a text can be == or != to `{field}`, not {sign}"));
        }
        tests.push(Test { field, operator, value });
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(tests);
        }
        let Some(next) = rest.strip_prefix("and").filter(|next| next.starts_with(char::is_whitespace)) else {
            return Err(format!("expected `and`, found `{rest}`"));
        };
        rest = next.trim_start();
    }
}

/// What a test looks at: a column, and what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
enum Field {
    Label(usize),
    Text(usize),
    Class(usize),
    Score(usize),
    Count(usize),
    Number(usize, usize),
}

/// Every field that can be compared, but for the single numbers of a tensor.
fn fields(schema: &Schema) -> Vec<String> {
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

fn field(schema: &Schema, name: &str) -> Option<Field> {
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
        let n = schema.0[column].ty.stored()?.row_len();
        match (at, n) {
            (Some(at), Some(n)) if at < n => Some(Field::Number(column, at)),
            (None, Some(1)) => Some(Field::Number(column, 0)),
            _ => None,
        }
    })
}

#[derive(Debug)]
struct FilterDraft {
    keep: At<String>,
    tests: Vec<Test>,
}

impl Connect for FilterDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let (input, reads) = stage.whole_row()?;
        let mut tests = Vec::new();
        for test in &self.tests {
            let Some(field) = field(&input.gives, &test.field) else {
                let message = format!("stage `{}` has no field `{}` to compare", stage.name, test.field);
                let all = fields(&input.gives);
                stage
                    .diags
                    .error(self.keep.span, message)
                    .label(format!("stage `{}` gives {}", input.name, input.gives))
                    .help(format!(
                        "fields: {}; `name[3]` is one number of a tensor",
                        list(all.iter().map(String::as_str))
                    ));
                return None;
            };
            let is_text = matches!(field, Field::Label(_) | Field::Text(_));
            if is_text != matches!(test.value, Literal::Text(_)) {
                let expected = if is_text { "a text in single quotes" } else { "a number" };
                let message =
                    format!("stage `{}` compares `{}`, which takes {expected}", stage.name, test.field);
                stage.diags.error(self.keep.span, message);
                return None;
            }
            tests.push((field, test.operator, test.value.clone()));
        }
        Some(StageConnected {
            gives: input.gives,
            reads,
            runs: Runs::Map(Arc::new(FilterMap(tests.into()))),
            settings: serde_json::json!({ "keep": self.keep.value }),
            details: vec![self.keep.value.clone()],
            about: self.keep.value.clone(),
        })
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct FilterMap(Arc<[(Field, Operator, Literal)]>);

impl Map for FilterMap {
    fn fan(&self) -> Fan {
        Fan::AtMostOne
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        self.0.len() * 16
    }

    fn remote(&self) -> Option<RemoteSpec> {
        RemoteSpec::of(Filter.name(), self)
    }
}

impl MapRun for FilterMap {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        for (field, operator, value) in &*self.0 {
            if !holds(*field, *operator, value, inputs)? {
                return Ok(());
            }
        }
        emit.row(inputs)
    }
}

/// Whether a row passes a test. What has no value (no class, a score that is no number) is unequal to everything and passes no other.
fn holds(field: Field, operator: Operator, value: &Literal, row: &[Value<'_>]) -> Result<bool, Refusal> {
    let labels = |at: usize| match row.get(at) {
        Some(Value::Labels(labels)) => labels.first(),
        _ => None,
    };
    let found = match field {
        Field::Label(at) => {
            let Literal::Text(text) = value else { return Ok(false) };
            let is_equal = labels(at).is_some_and(|l| l.label == text);
            return Ok(is_equal == (operator == Operator::Equal));
        }
        Field::Text(at) => {
            let is_equal = matches!((row.get(at), value), (Some(Value::Text(a)), Literal::Text(b)) if a == b);
            return Ok(is_equal == (operator == Operator::Equal));
        }
        Field::Class(at) => labels(at).map(|l| f64::from(l.class)),
        Field::Score(at) => labels(at).map(|l| f64::from(l.score)),
        Field::Count(at) => match row.get(at) {
            Some(Value::List(rows)) => Some(rows.len() as f64),
            _ => None,
        },
        Field::Number(at, n) => match row.get(at) {
            Some(value) => value.with_tensor(|view| {
                let size = view.dtype.size_bytes();
                let bytes = view.data.get(n * size..(n + 1) * size);
                Ok(bytes.map(|bytes| match element(view.dtype, bytes) {
                    crate::tensor::Element::Float(v) => f64::from(v),
                    crate::tensor::Element::Int(v) => v as f64,
                    crate::tensor::Element::Bool(v) => f64::from(u8::from(v)),
                }))
            })?,
            None => None,
        },
    };
    let (Some(found), Literal::Number(number)) = (found, value) else {
        return Ok(operator == Operator::Unequal);
    };
    Ok(match operator {
        Operator::Equal => found == *number,
        Operator::Unequal => found != *number,
        Operator::Less => found < *number,
        Operator::AtMost => found <= *number,
        Operator::More => found > *number,
        Operator::AtLeast => found >= *number,
    })
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::Label;

    use super::*;

    fn keeps(keep: &str, labels: &[Label<'_>]) -> bool {
        let schema = Schema::of("classes", ColumnType::Labels);
        parse(keep).unwrap().iter().all(|test| {
            let field = field(&schema, &test.field).unwrap();
            holds(field, test.operator, &test.value, &[Value::Labels(labels)]).unwrap()
        })
    }

    #[test]
    fn a_row_goes_on_exactly_if_all_comparisons_hold() {
        let cat = [Label { label: "cat", class: 3, score: 0.5 }];
        for (keep, expected) in [
            ("score >= 0.5", true),
            ("score > 0.5", false),
            ("score<=0.5 and class==3", true),
            ("score <= 0.5 and class != 3", false),
            ("label == 'cat'", true),
            ("label != 'cat'", false),
            ("label == 'a and b' and score > 0", false),
        ] {
            assert_eq!(keeps(keep, &cat), expected, "{keep}");
        }
        let none = [Label { label: "x", class: 0, score: f32::NAN }];
        assert!(!keeps("score >= 0", &none) && !keeps("score < 0", &none) && keeps("score != 0", &none));
        assert!(!keeps("label == 'cat'", &[]) && keeps("label != 'cat'", &[]) && !keeps("class < 9", &[]));
    }

    #[test]
    fn what_is_no_condition_is_refused_with_the_reason() {
        for (keep, why) in [
            ("score", "compares nothing"),
            ("score >= high", "`high` is no number"),
            ("score >= nan", "`nan` is no number"),
            (">= 3", "is no name of a field"),
            ("label > 'a'", "not >"),
            ("label == 'a", "no closing quote"),
            ("a == 1 or b == 2", "expected `and`"),
            ("a == 1 andb == 2", "expected `and`"),
        ] {
            let error = parse(keep).unwrap_err();
            assert!(error.contains(why), "{keep}: {error}");
        }
    }
}
