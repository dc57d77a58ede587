//! `kind = "select"`: picks, renames and computes columns.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use bincode::{Decode, Encode};
use orchestra_core::TensorSpec;
use orchestra_core::data::{
    Column, ColumnType, ItemError, OwnedRow, OwnedValue, Schema, TensorView, Value, fixed_tensor,
};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_plan::{
    Connect, Input, NamedTexts, Reported, Runs, Settings, Spanned, StageConnected, StageContext, TypedStage,
    settings,
};

use super::shared::expression::{
    ColumnExpression, Expression, TensorExpression, no_value, of_key, parse_column, whole_column,
};

settings! {
    #[derive(Debug)]
    pub struct Select {
        /// the columns of the new row, in this order: `columns = { name = "expression", .. }`. The name of a column alone passes it on as it is,
        /// whatever it holds. Anything else is an
        /// expression: comparisons (`==`, `!=`, `<`, `<=`, `>`, `>=`), `and`, `or`, `not`, parentheses, `+`, `-`, `*`, `/`, numbers, `true`, `false`, texts in
        /// single quotes, the functions `len`, `lower`, `upper`, `starts_with`, `ends_with`, `contains`, `is_missing(field)`, `is_nan(field)` and `or_else(field, 0)`, and fields: `label`, `class` and `score` of the best
        /// class, `count` of a list, the name of a text or of a tensor of one number, or `name[3]` for one number of a tensor; where several stages are read,
        /// `stage.score` and so on. `[age, height]` makes one tensor of columns and expressions of one shape, along a new first dimension: `[age]` is f64\[1\],
        /// and `[[a, b], [c, d]]` f64\[2, 2\]. Columns keep their types there; of different ones it is the wider one, or f64 of integers and floats. Of texts, `[city, 'DE']`, it is a list, for a model that takes several. `f32(age)`
        /// casts a column, a number or a list, by any name of a type; true or false is 1 or 0
        #[missing("say what the new row holds: columns = { name = \"label\", sure = \"score >= 0.9\" }")]
        columns: NamedTexts,
    }
}

impl TypedStage for Select {
    const NAME: &'static str = "select";
    const ABOUT: &'static str = "Makes a row of new columns: those of its input under other names, and what is computed of them. A computed column is a text, a tensor of \
         one number (i64 where all of it is whole, else f64, or bool), or a list of columns as one tensor. What has no value, because there is no class, fails its item.";
    type Work = Selection;
}

impl Connect for Select {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (mut input, mut reads) = stage.whole_row()?;
        // Columns that are not needed are neither read nor carried for this stage: what is left is looked at again.
        let mut needed: BTreeSet<usize> =
            self.columns(stage, &input)?.iter().flat_map(|(_, makes)| makes.needs()).collect();
        if needed.is_empty() {
            // Constants alone: a row of them for each row, whatever that holds.
            needed
                .extend(input.gives.0.iter().position(|column| column.ty != ColumnType::Picture).or(Some(0)));
        }
        input.gives.0 = needed.iter().map(|place| input.gives.0[*place].clone()).collect();
        reads = needed.iter().map(|place| reads[*place]).collect();
        let columns = self.columns(stage, &input)?;
        let (gives, makes): (Vec<Column>, Vec<Makes>) = columns.into_iter().unzip();
        let written =
            |(name, written): &(Spanned<String>, Spanned<String>)| match name.value == written.value.trim() {
                true => name.value.clone(),
                false => format!("{} = {}", name.value, written.value),
            };
        let details: Vec<String> = self.columns.0.iter().map(written).collect();
        let cost = |makes: &Makes| match makes {
            Makes::Passed(_) => 1,
            Makes::Text(_, expression) => expression.n_parts() * 16,
            Makes::Texts(_, texts) => texts.iter().map(|text| text.n_parts() * 16).sum(),
            Makes::Tensor(_, tensor) => tensor.n_parts() * 16,
        };
        let cost = makes.iter().map(cost).sum();
        Ok(StageConnected {
            gives: Schema(gives),
            reads,
            runs: Runs::map::<Self>(Selection(makes), Some(cost)),
            settings: self.json(),
            about: details.join(", "),
            details,
        })
    }
}

impl Select {
    /// Each column with what makes it. All are looked at, so that all errors are reported at once.
    fn columns(&self, stage: &mut StageContext<'_>, input: &Input) -> Result<Vec<(Column, Makes)>, Reported> {
        let columns: Vec<_> =
            self.columns.0.iter().map(|(name, written)| column(stage, input, &name.value, written)).collect();
        columns.into_iter().collect()
    }
}

/// A column with what makes it.
fn column(
    stage: &mut StageContext<'_>,
    input: &Input,
    name: &str,
    written: &Spanned<String>,
) -> Result<(Column, Makes), Reported> {
    // A name may begin or end with a blank, as it does in some files of JSON.
    let text = match input.gives.position(&written.value) {
        Some(_) => &written.value[..],
        None => written.value.trim(),
    };
    let (name, resolved) = (name.to_owned(), |name: &str| input.resolved(name));
    if let Some(place) = whole_column(&input.gives, &resolved, text) {
        let ty = match &input.gives.0[place].ty {
            ColumnType::Tensor(spec) => ColumnType::Tensor(TensorSpec { name: name.clone(), ..spec.clone() }),
            ty => ty.clone(),
        };
        return Ok((Column { name, ty }, Makes::Passed(place)));
    }
    let parsed = parse_column(&input.gives, &resolved, &written.value);
    let (ty, makes) = match of_key(stage, input, &format!("columns.{name}"), written, parsed)? {
        ColumnExpression::Text(text) => (ColumnType::Text, Makes::Text(name.clone(), text)),
        ColumnExpression::Texts(texts) => {
            (ColumnType::List(Schema::of("text", ColumnType::Text)), Makes::Texts(name.clone(), texts))
        }
        ColumnExpression::Tensor(tensor) => {
            let spec = fixed_tensor(&name, tensor.dtype, &tensor.shape);
            (ColumnType::Tensor(spec), Makes::Tensor(name.clone(), tensor))
        }
    };
    Ok((Column { name, ty }, makes))
}

#[derive(Debug, Clone, Encode, Decode)]
enum Makes {
    /// A column of the input.
    Passed(usize),
    /// Under its name.
    Text(String, Expression),
    /// A list with a column `text`, under its name.
    Texts(String, Vec<Expression>),
    /// Under its name.
    Tensor(String, TensorExpression),
}

impl Makes {
    /// The columns that it looks at.
    fn needs(&self) -> BTreeSet<usize> {
        let mut needs = BTreeSet::new();
        match self {
            Makes::Passed(place) => drop(needs.insert(*place)),
            Makes::Text(_, expression) => expression.columns(&mut needs),
            Makes::Texts(_, texts) => texts.iter().for_each(|text| text.columns(&mut needs)),
            Makes::Tensor(_, tensor) => tensor.columns(&mut needs),
        }
        needs
    }
}

/// The columns of the new row.
#[derive(Debug, Encode, Decode)]
pub struct Selection(Vec<Makes>);

/// A value of the new row; the elements of tensors lie in the buffer of the thread.
enum Made<'a> {
    Passed(Value<'a>),
    Text(Cow<'a, str>),
    Texts(Vec<OwnedRow>),
    Tensor(&'a str, &'a TensorExpression, Range<usize>),
}

impl RowWork for Selection {
    type Scratch = Vec<u8>;

    fn apply(&self, data: &mut Vec<u8>, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        data.clear();
        let mut made = Vec::with_capacity(self.0.len());
        for makes in &self.0 {
            made.push(match makes {
                Makes::Passed(place) => {
                    Made::Passed(*inputs.get(*place).ok_or_else(|| no_value("a column"))?)
                }
                Makes::Text(name, expression) => {
                    Made::Text(expression.text(inputs)?.ok_or_else(|| no_value(name))?)
                }
                Makes::Texts(name, texts) => {
                    let text = |text: &Expression| {
                        let text = text.text(inputs)?.ok_or_else(|| no_value(name))?;
                        Ok(vec![OwnedValue::Text(text.into())])
                    };
                    Made::Texts(texts.iter().map(text).collect::<Result<_, ItemError>>()?)
                }
                Makes::Tensor(name, tensor) => {
                    let start = data.len();
                    tensor.append(name, inputs, data)?;
                    Made::Tensor(name, tensor, start..data.len())
                }
            });
        }
        let value = |made| match made {
            &Made::Passed(value) => value,
            Made::Text(text) => Value::Text(text),
            Made::Texts(rows) => Value::List(rows),
            Made::Tensor(name, TensorExpression { dtype, shape, .. }, range) => {
                Value::Tensor(TensorView { name, dtype: *dtype, shape, data: &data[range.clone()] })
            }
        };
        let row: Vec<Value<'_>> = made.iter().map(value).collect();
        emit.row(&row)
    }
}
