//! `kind = "filter"`: drops rows that do not meet a condition.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Emit, Fan, KindSettings, Map, MapRun};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, key,
};

use super::shared::expression::{Expression, Type, of_key};

pub struct Filter;

const KEYS: [Key; 1] = [key("keep", "text", "required", KEEP)];

/// Help of the key; the expressions are those of `select`.
const KEEP: &str = "what a row must be to go on, an expression that is true or false: `score >= 0.5 and not (label == 'background' or count > 9)`. \
     It has the signs, functions and fields of an expression of `select`. What has no value, because there is no class, is unequal to \
     everything and passes no other comparison; NaN and what is missing fail the item, but for `is_nan` and `is_missing`";

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

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<FilterMap>()?))
    }
}

#[derive(Debug)]
struct FilterDraft {
    keep: At<String>,
}

impl Connect for FilterDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let (input, reads) = stage.whole_row()?;
        let keep = of_key(stage, &input, "keep", &self.keep)?;
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

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Filter.name(), self)
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

#[cfg(test)]
mod tests {
    use orchestra_core::data::{Column, ColumnType, Label, Schema};

    use super::super::shared::expression::parse;
    use super::super::shared::testing::each_row;
    use super::*;

    #[test]
    fn a_row_goes_on_as_it_is_or_not_at_all_also_in_another_process() {
        let columns = [("classes", ColumnType::Labels), ("text", ColumnType::Text)];
        let schema = Schema(columns.map(|(name, ty)| Column { name: name.into(), ty }).into());
        let keep = parse(&schema, &|_| None, "score >= 0.5 and text != ''").unwrap();
        let map = FilterMap { keep: Arc::new(keep) };
        assert_eq!(map.fan(), Fan::AtMostOne);
        let mut run = Filter.revive(&map.in_loader().unwrap()).unwrap().start();
        let mut kept = Vec::new();
        let mut emit = each_row(|row| kept.push(format!("{row:?}")));
        let mut apply = |score, text| {
            let labels = [Label { label: "cat", class: 3, score }];
            let row = [Value::Labels(&labels), Value::Text(text)];
            let applied = run.apply(&row, &mut emit);
            assert_eq!(applied.is_err(), f32::is_nan(score), "{applied:?}");
            format!("{row:?}")
        };
        let first = apply(0.5, "one");
        apply(0.25, "two");
        apply(0.75, "");
        apply(f32::NAN, "three");
        let last = apply(0.75, "four");
        drop(emit);
        assert_eq!(kept, [first, last]);
    }
}
