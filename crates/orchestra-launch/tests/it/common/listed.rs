//! A kind of stage of a host that could run in a loader process, and gives a list: the numbers of a tensor, as the only row of it.

use orchestra_launch::kind::{
    ColumnType, Connect, Emit, ItemError, OwnedValue, Reported, RowWork, Runs, Schema, Settings,
    StageConnected, StageContext, TypedStage, Value, settings,
};

settings! {
    #[derive(Debug, Clone, Copy, bincode::Encode, bincode::Decode)]
    pub struct Listed {}
}

impl TypedStage for Listed {
    const NAME: &'static str = "listed";
    const ABOUT: &'static str = "A stage of a test.";
    type Work = Self;
}

impl Connect for Listed {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let column = stage.column(0, "a tensor", |column| column.ty.tensor().is_some())?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor().ok_or(Reported)?.clone();
        let row = Schema::of("numbers", ColumnType::Tensor(tensor));
        Ok(StageConnected {
            gives: Schema::of("rows", ColumnType::List(row)),
            reads: vec![(0, column)],
            runs: Runs::map::<Self>(*self, None),
            settings: self.json(),
            details: Vec::new(),
            about: "a list of one".to_owned(),
        })
    }
}

impl RowWork for Listed {
    type Scratch = ();

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let numbers = OwnedValue::copy_of(&Value::Tensor(*tensor))?;
            emit.row(&[Value::List(&[vec![numbers]])])
        })
    }
}
