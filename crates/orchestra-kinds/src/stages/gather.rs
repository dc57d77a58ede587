//! `kind = "gather"`: brings the parts of an item back together, in their order, as one list.

use std::sync::Arc;

use orchestra_core::data::{ColumnType, ItemError, OwnedRow, OwnedValue, Schema};
use orchestra_core::shapes::Fold;
use orchestra_plan::{Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings};

settings! {
    #[derive(Debug)]
    pub struct Gather {}
}

impl TypedStage for Gather {
    const NAME: &'static str = "gather";
    const ABOUT: &'static str = "Brings the parts of an item back together, in the order in which they were made: `parts`, a list with the columns of what it reads. Parts \
         that were filtered out are absent; an item without parts gives an empty list.";
    type Work = ();
}

impl Connect for Gather {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (input, reads) = stage.whole_row()?;
        let gives = &input.gives.0;
        if let Some(column) = gives.iter().find(|c| c.ty.has_pictures()) {
            let name = stage.name;
            let message = format!("stage `{name}` cannot keep `{}` of `{}`", column.name, input.name);
            return stage
                .error(input.span, message)
                .help("pictures of all parts would not fit into memory; gather what is made of them")
                .fail();
        }
        Ok(StageConnected {
            settings: self.json(),
            reads,
            gives: Schema::of("parts", ColumnType::List(input.gives)),
            runs: Runs::Fold(Arc::new(GatherFold)),
            details: vec!["parts, in order".to_owned()],
            about: "the parts of an item, in order".to_owned(),
        })
    }
}

#[derive(Debug)]
struct GatherFold;

impl Fold for GatherFold {
    fn fold(&self, parts: Vec<OwnedRow>) -> Result<OwnedRow, ItemError> {
        Ok(vec![OwnedValue::List(parts.into())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(parts: &[&str]) -> Vec<OwnedRow> {
        let parts = parts.iter().map(|text| vec![OwnedValue::Text((*text).into())]).collect();
        let row = GatherFold.fold(parts).unwrap();
        let [OwnedValue::List(list)] = &row[..] else { panic!("{row:?}") };
        list.to_vec()
    }

    #[test]
    fn parts_stand_in_the_list_in_the_order_in_which_they_come_and_none_give_an_empty_one() {
        let list = gathered(&["second", "first", "second"]);
        let texts = list.iter().map(|row| match &row[..] {
            [OwnedValue::Text(text)] => &**text,
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["second", "first", "second"]);
        assert!(gathered(&[]).is_empty());
    }
}
