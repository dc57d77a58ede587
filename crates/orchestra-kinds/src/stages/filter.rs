//! `kind = "filter"`: drops rows that do not meet a condition.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Emit, Fan, LoaderSpec, Map, MapRun};
use orchestra_plan::{
    At, Connect, Draft, Fields, Input, Key, Limits, Runs, StageConnected, StageContext, StageKind, key, list,
};

use crate::expression::{self, Expression, Type, Wrong};

pub struct Filter;

const KEYS: [Key; 1] = [key("keep", "text", "required", KEEP)];

/// Help of the key; the expressions are those of `select`.
const KEEP: &str = "what a row must be to go on, an expression that is true or false: `score >= 0.5 and not (label == 'background' or count > 9)`. \
     It has the signs, functions and fields of an expression of `select`. What has no value (no class, a score that is no number) is unequal to everything \
     and passes no other comparison";

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
        Some(Draft::Stage(Box::new(FilterDraft { keep })))
    }

    fn revive(&self, spec: &LoaderSpec) -> Option<Arc<dyn Map>> {
        Some(Arc::new(spec.read::<FilterMap>()?))
    }
}

#[derive(Debug)]
struct FilterDraft {
    keep: At<String>,
}

impl Connect for FilterDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let (input, reads) = stage.whole_row()?;
        let keep = parse(stage, &input, "keep", &self.keep)?;
        if keep.ty() != Type::Truth {
            let message = format!(
                "`keep` of stage `{}` is no condition: it is {}, and compares nothing",
                stage.name,
                keep.ty()
            );
            stage
                .diags
                .error(self.keep.span, message)
                .help("for example keep = \"score >= 0.5 and label != 'background'\"");
            return None;
        }
        Some(StageConnected {
            gives: input.gives,
            reads,
            runs: Runs::Map(Arc::new(FilterMap { keep: Arc::new(keep) })),
            settings: serde_json::json!({ "keep": self.keep.value }),
            details: vec![self.keep.value.clone()],
            about: self.keep.value.clone(),
        })
    }
}

/// The expression of a key over the columns of `input`. `None` after an error.
pub(super) fn parse(
    stage: &mut StageContext<'_>,
    input: &Input,
    key: &str,
    written: &At<String>,
) -> Option<Expression> {
    let name = stage.name;
    let wrong = match expression::parse(&input.gives, &written.value) {
        Ok(expression) => return Some(expression),
        Err(wrong) => wrong,
    };
    match wrong {
        Wrong::Form(why) => {
            let what = if key == "keep" { "condition" } else { "expression" };
            stage
                .diags
                .error(written.span, format!("`{key}` of stage `{name}` is no {what}: {why}"))
                .help("for example \"score >= 0.5 and label != 'background'\"");
        }
        Wrong::Field(field) => {
            let all = expression::fields(&input.gives);
            let known = match all.len() {
                0 => "it gives nothing that an expression can look at".to_owned(),
                _ => format!("fields: {}", list(all.iter().map(String::as_str))),
            };
            let columns = input.gives.0.iter().map(|column| column.name.as_str());
            let whole = match key {
                "keep" => String::new(),
                _ => format!("; a column as it is: {}", list(columns)),
            };
            stage
                .diags
                .error(written.span, format!("stage `{name}` has no field `{field}` to look at"))
                .label(format!("it reads {}", input.gives))
                .help(format!(
                    "{known}{whole}; `name[3]` is one number of a tensor; a text stands in single quotes"
                ));
        }
    }
    None
}

#[derive(Debug, Clone, Encode, Decode)]
struct FilterMap {
    keep: Arc<Expression>,
}

impl Map for FilterMap {
    fn fan(&self) -> Fan {
        Fan::AtMostOne
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        self.keep.n_parts() * 16
    }

    fn in_loader(&self) -> Option<LoaderSpec> {
        LoaderSpec::of(Filter.name(), self)
    }
}

impl MapRun for FilterMap {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        match self.keep.truth(inputs)? {
            true => emit.row(inputs),
            false => Ok(()),
        }
    }
}
