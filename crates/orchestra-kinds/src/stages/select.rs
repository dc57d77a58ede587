//! `kind = "select"`: picks, renames and computes columns.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, TensorSpec};
use orchestra_plan::{
    At, Connect, Input, NamedTexts, Reported, Runs, Settings, StageConnected, StageContext, TypedStage,
    settings,
};

use super::shared::expression::{self, Expression, Field, Type, of_key};

settings! {
    #[derive(Debug)]
    pub struct Select {
        /// the columns of the new row, in this order: `columns = { name = "expression", .. }`. The name of a column alone passes it on as it is,
        /// whatever it holds. Anything else is an
        /// expression: comparisons (`==`, `!=`, `<`, `<=`, `>`, `>=`), `and`, `or`, `not`, parentheses, `+`, `-`, `*`, `/`, numbers, `true`, `false`, texts in
        /// single quotes, the functions `len`, `lower`, `upper`, `starts_with`, `ends_with`, `contains`, `is_missing(field)`, `is_nan(field)` and `or_else(field, 0)`, and fields: `label`, `class` and `score` of the best
        /// class, `count` of a list, the name of a text or of a tensor of one number, or `name[3]` for one number of a tensor; where several stages are read,
        /// `stage.score` and so on
        #[missing("say what the new row holds: columns = { name = \"label\", sure = \"score >= 0.9\" }")]
        columns: NamedTexts,
    }
}

impl TypedStage for Select {
    const NAME: &'static str = "select";
    const ABOUT: &'static str = "Makes a row of new columns: those of its input under other names, and what is computed of them. A computed column is a text, or a tensor of \
         one number: i64 where all of it is whole, else f64, or bool. What has no value, because there is no class, fails its item.";
    type Work = Selection;
}

impl Connect for Select {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (mut input, mut reads) = stage.whole_row()?;
        // Columns that are not needed are neither read nor carried for this stage: what is left is looked at again.
        let needed: BTreeSet<usize> =
            self.columns(stage, &input)?.iter().flat_map(|(_, makes)| makes.needs()).collect();
        input.gives.0 = needed.iter().map(|place| input.gives.0[*place].clone()).collect();
        reads = needed.iter().map(|place| reads[*place]).collect();
        let columns = self.columns(stage, &input)?;
        let (gives, makes): (Vec<Column>, Vec<Makes>) = columns.into_iter().unzip();
        let written = |(name, written): &(At<String>, At<String>)| match name.value == written.value.trim() {
            true => name.value.clone(),
            false => format!("{} = {}", name.value, written.value),
        };
        let details: Vec<String> = self.columns.0.iter().map(written).collect();
        let cost = |makes: &Makes| match makes {
            Makes::Passed(_) => 1,
            Makes::Computed(_, expression) => expression.n_parts() * 16,
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
    written: &At<String>,
) -> Result<(Column, Makes), Reported> {
    // A name may begin or end with a blank, as it does in some files of JSON.
    let text = match input.gives.position(&written.value) {
        Some(_) => &written.value[..],
        None => written.value.trim(),
    };
    let resolved = input.resolved(text).filter(|name| input.gives.position(name).is_some());
    let text = resolved.as_deref().filter(|_| input.gives.position(text).is_none()).unwrap_or(text);
    // `score` is a field of classes before it is a column, as in a filter.
    let is_part = matches!(
        expression::field(&input.gives, text),
        Some(Field::Label(_) | Field::Class(_) | Field::Score(_) | Field::Count(_))
    );
    if let Some(place) = input.gives.position(text).filter(|_| !is_part) {
        let renamed = |spec: &TensorSpec| TensorSpec { name: name.to_owned(), ..spec.clone() };
        let ty = match &input.gives.0[place].ty {
            ColumnType::Tensor(spec) => ColumnType::Tensor(renamed(spec)),
            ty => ty.clone(),
        };
        return Ok((Column { name: name.to_owned(), ty }, Makes::Passed(place)));
    }
    let expression = of_key(stage, input, &format!("columns.{name}"), written)?;
    let tensor = |dtype| ColumnType::Tensor(fixed_tensor(name, dtype, &[]));
    let ty = match expression.ty() {
        Type::Integer => tensor(DType::I64),
        Type::Number => tensor(DType::F64),
        Type::Truth => tensor(DType::Bool),
        Type::Text => ColumnType::Text,
    };
    Ok((Column { name: name.to_owned(), ty }, Makes::Computed(name.to_owned(), expression)))
}

#[derive(Debug, Clone, Encode, Decode)]
enum Makes {
    /// A column of the input.
    Passed(usize),
    /// Under its name.
    Computed(String, Expression),
}

impl Makes {
    /// The columns that it looks at.
    fn needs(&self) -> BTreeSet<usize> {
        let mut needs = BTreeSet::new();
        match self {
            Makes::Passed(place) => drop(needs.insert(*place)),
            Makes::Computed(_, expression) => expression.columns(&mut needs),
        }
        needs
    }
}

/// The columns of the new row.
#[derive(Debug, Encode, Decode)]
pub struct Selection(Vec<Makes>);

/// A computed value, which lies here until the row has been used.
enum Computed<'a> {
    Passed(Value<'a>),
    Number(DType, [u8; 8]),
    Text(Cow<'a, str>),
}

impl RowWork for Selection {
    type Scratch = ();

    fn apply(&self, (): &mut (), inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let mut computed = Vec::with_capacity(self.0.len());
        for makes in &self.0 {
            computed.push(match makes {
                Makes::Passed(place) => {
                    Computed::Passed(*inputs.get(*place).ok_or_else(|| no_value("a column"))?)
                }
                Makes::Computed(name, expression) => compute(name, expression, inputs)?,
            });
        }
        let names = self.0.iter().map(|makes| match makes {
            Makes::Passed(_) => "",
            Makes::Computed(name, _) => name,
        });
        let row: Vec<Value<'_>> = computed
            .iter()
            .zip(names)
            .map(|(computed, name)| match computed {
                Computed::Passed(value) => *value,
                Computed::Text(text) => Value::Text(text),
                Computed::Number(dtype, bytes) => {
                    let data = &bytes[..dtype.size_bytes()];
                    Value::Tensor(TensorView { name, dtype: *dtype, shape: &[], data })
                }
            })
            .collect();
        emit.row(&row)
    }
}

fn no_value(name: &str) -> Refusal {
    Refusal::result(format!("`{name}` has no value: there is no class"))
}

fn compute<'a>(
    name: &str,
    expression: &'a Expression,
    row: &'a [Value<'_>],
) -> Result<Computed<'a>, Refusal> {
    let mut bytes = [0; 8];
    let mut number = |dtype: DType, value: &[u8]| {
        bytes[..value.len()].copy_from_slice(value);
        Computed::Number(dtype, bytes)
    };
    Ok(match expression.ty() {
        Type::Integer => {
            let value = expression.integer(row)?.ok_or_else(|| no_value(name))?;
            number(DType::I64, &value.to_ne_bytes())
        }
        Type::Number => {
            let value = expression.number(row)?.ok_or_else(|| no_value(name))?;
            number(DType::F64, &value.to_ne_bytes())
        }
        Type::Truth => number(DType::Bool, &[u8::from(expression.truth(row)?)]),
        Type::Text => Computed::Text(expression.text(row)?.ok_or_else(|| no_value(name))?),
    })
}
