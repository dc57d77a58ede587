//! A kind of stage of a host that could run in a loader process, and gives a list: the numbers of a tensor, as the only row of it.

use std::sync::Arc;

use orchestra::kind::{
    ColumnType, Connect, Draft, Emit, Fields, KindSettings, Map, MapRun, OwnedValue, Refusal, Reported, Runs,
    Schema, StageConnected, StageContext, StageKind, Value,
};

#[derive(Debug, Clone, Copy, bincode::Encode, bincode::Decode)]
pub struct Listed;

impl StageKind for Listed {
    fn name(&self) -> &'static str {
        "listed"
    }

    fn about(&self) -> &'static str {
        "A stage of a test."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(*self)))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<Listed>()?))
    }
}

impl Connect for Listed {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let column = stage.column(0, "a tensor", |column| column.ty.tensor().is_some())?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor().ok_or(Reported)?.clone();
        let row = Schema::of("numbers", ColumnType::Tensor(tensor));
        Ok(StageConnected {
            gives: Schema::of("rows", ColumnType::List(row)),
            reads: vec![(0, column)],
            runs: Runs::Map(Arc::new(*self)),
            settings: serde_json::json!({}),
            details: Vec::new(),
            about: "a list of one".to_owned(),
        })
    }
}

impl Map for Listed {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(*self)
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of("listed", self)
    }

    fn cost(&self) -> usize {
        usize::MAX
    }
}

impl MapRun for Listed {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        inputs[0].with_tensor(|tensor| {
            let numbers = OwnedValue::copy_of(&Value::Tensor(*tensor))?;
            emit.row(&[Value::List(&[vec![numbers]])])
        })
    }
}
