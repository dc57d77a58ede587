//! `kind = "split"`: makes a part of each row of a list.

use bincode::{Decode, Encode};
use orchestra_core::data::{ItemError, Value, with_values};
use orchestra_core::shapes::{Emit, FanOut, RowWork};
use orchestra_plan::{Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings};

settings! {
    #[derive(Debug, Encode, Decode)]
    pub struct SplitStage {}
}

impl TypedStage for SplitStage {
    const NAME: &'static str = "split";
    const ABOUT: &'static str = "Takes a list apart, such as one that [Python](../guide/python.md) gives: each of its rows is a part of the item, with the columns of the list. `gather` brings what \
         came of the parts together again.";
    type Work = Self;
}

impl Connect for SplitStage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let list = stage.column(0, "a list", |column| column.ty.list().is_some())?;
        let gives = stage.inputs[0].gives.0[list].ty.list().cloned().ok_or(Reported)?;
        Ok(StageConnected {
            gives,
            reads: vec![(0, list)],
            settings: self.json(),
            details: vec!["each row".to_owned()],
            about: "each row a part".to_owned(),
            runs: Runs::map::<Self>(Self {}, None),
        })
    }
}

impl RowWork for SplitStage {
    type Scratch = ();
    const FAN: FanOut = FanOut::Parts;

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let [Value::List(rows)] = row else {
            return Err(ItemError::result("internal error: a split was given no list; this is a bug"));
        };
        emit.parts(rows.len())?;
        let mut emitted = Ok(());
        for row in *rows {
            with_values(row, &mut |values| emitted = emit.row(values));
            std::mem::replace(&mut emitted, Ok(()))?;
        }
        Ok(())
    }
}
