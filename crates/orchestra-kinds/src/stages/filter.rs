//! `kind = "filter"`: drops rows that do not meet a condition.

use bincode::{Decode, Encode};
use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::{Emit, FanOut, RowWork};
use orchestra_plan::{
    Connect, Reported, Runs, Settings, Spanned, StageConnected, StageContext, TypedStage, settings,
};

use super::shared::expression::{Expression, Type, of_key, parse};

settings! {
    #[derive(Debug)]
    pub struct Filter {
        /// what a row must be to go on, an expression that is true or false: `score >= 0.5 and not (label == 'background' or count > 9)`.
        /// It has the signs, functions and fields of an expression of `select`. What has no value, because there is no class, is unequal to
        /// everything and passes no other comparison; NaN and what is missing fail the item, but for `is_nan` and `is_missing`
        #[missing("say which rows go on: keep = \"score >= 0.5\"")]
        keep: Spanned<String>,
    }
}

impl TypedStage for Filter {
    const NAME: &'static str = "filter";
    const ABOUT: &'static str = "Drops rows that do not meet a condition; the others go on as they are. An item whose rows are all dropped is done, without a record.";
    type Work = Condition;
}

impl Connect for Filter {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (input, reads) = stage.whole_row()?;
        let keep = parse(&input.gives, &|name| input.resolved(name), &self.keep.value);
        let keep = of_key(stage, &input, "keep", &self.keep, keep)?;
        if keep.ty() != Type::Truth {
            let message = format!(
                "`keep` of stage `{}` is no condition: it is {}, and compares nothing",
                stage.name,
                keep.ty()
            );
            return stage
                .error(self.keep.span, message)
                .help("for example keep = \"score >= 0.5 and label != 'background'\"")
                .fail();
        }
        let cost = keep.n_parts() * 16;
        Ok(StageConnected {
            gives: input.gives,
            reads,
            runs: Runs::map::<Self>(Condition(keep), Some(cost)),
            settings: self.json(),
            details: vec![self.keep.value.clone()],
            about: self.keep.value.clone(),
        })
    }
}

/// What a row must meet to go on.
#[derive(Debug, Encode, Decode)]
pub struct Condition(Expression);

impl RowWork for Condition {
    type Scratch = ();
    const FAN: FanOut = FanOut::AtMostOne;

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        match self.0.truth(row)? {
            true => emit.row(row),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::{Column, ColumnType, Label, Schema};

    use super::super::shared::testing::{each_row, over_wire};
    use super::*;

    #[test]
    fn a_row_goes_on_as_it_is_or_not_at_all_also_in_another_process() {
        let columns = [("classes", ColumnType::Labels), ("text", ColumnType::Text)];
        let schema = Schema(columns.map(|(name, ty)| Column { name: name.into(), ty }).into());
        let keep = parse(&schema, &|_| None, "score >= 0.5 and text != ''").unwrap();
        let map = over_wire::<Filter>(Condition(keep));
        assert_eq!(map.fan(), FanOut::AtMostOne);
        let mut run = map.start();
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
