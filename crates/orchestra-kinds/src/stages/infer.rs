//! `kind = "infer"`: runs an ONNX model over batches of rows, in worker processes. What runs where follows from the model and the machine,
//! and is planned with them.

use orchestra_plan::{BatchDraft, Draft, Drafted, Fields, Spanned, TypedStage, Upstreams, settings};

use super::shared::batches::{BatchSettings, InputTable, constants, upstreams_of_model};

settings! {
    pub struct Infer {
        /// instead of `from`, for a model with several inputs: `{ input_name = "stage" }` or `"stage.tensor"`; a number, `true`, a list or `{ value = "text" }` is [the same for all items](../guide/workflow-file.md#inputs)
        inputs: InputTable,
        /// one of `[models.*]`
        #[missing("name one of [models.*]")]
        model: Spanned<String>,
        /// how rows become batches
        batch: BatchSettings,
    }
}

impl TypedStage for Infer {
    const NAME: &'static str = "infer";
    const ABOUT: &'static str = "Runs a model. It gives the outputs of the model, one tensor each.";
    type Work = ();

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_model(f)
    }
}

impl Drafted for Infer {
    fn draft(self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        let draft = self.batch.of(self.model);
        Some(Draft::Batch(BatchDraft { constants: constants(f), ..draft }))
    }
}
