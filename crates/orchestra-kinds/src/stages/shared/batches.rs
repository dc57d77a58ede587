//! What stages have in common that run batches in worker processes: what feeds them, and how rows become batches.

use std::time::Duration;

use orchestra_plan::tree::{Toml, TomlNode};
use orchestra_plan::{
    BatchDraft, Fields, Key, MAX_BATCH, NamedTexts, Setting, Settings, Spanned, Upstreams, settings,
};

settings! {
    /// How rows become batches.
    #[derive(Debug)]
    pub struct BatchSettings {
        /// the most rows that the model runs at once
        #[range(1, MAX_BATCH)]
        max: Option<Spanned<u64>> => "by device",
        /// how long the oldest item waits for the batch to fill
        wait: Duration = "5ms",
    }
}

impl Setting for BatchSettings {
    const TYPE: &'static str = "table";
    const TABLE: &'static [Key] = <Self as Settings>::KEYS;
    const LEFT_OUT: &'static str = "by device";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        <Self as Settings>::read(&mut f.table_or_empty(key))
    }
}

impl BatchSettings {
    /// Those of a model, or of a program by the name of its file.
    pub fn of(&self, model: Spanned<String>) -> BatchDraft {
        let (max_batch, wait) = (self.max.clone(), self.wait);
        BatchDraft { model, program: None, max_batch, wait, constants: Vec::new(), iteration: None }
    }
}

/// What each input of a model reads: [`upstreams_of_model`] has it.
#[derive(Debug)]
pub struct InputTable;

impl Setting for InputTable {
    const TYPE: &'static str = "table";
    const LEFT_OUT: &'static str = "none";

    fn read(_: &mut Fields<'_, '_>, _: &str) -> Option<Self> {
        Some(Self)
    }
}

/// What a stage with a program reads: `from`, or a stage for each input.
pub fn upstreams_of_program(f: &mut Fields<'_, '_>) -> Upstreams {
    upstreams(f, |_| false)
}

/// What a stage with a model reads: `from`, or a stage for each input that is no constant.
pub fn upstreams_of_model(f: &mut Fields<'_, '_>) -> Upstreams {
    upstreams(f, is_constant)
}

/// The inputs of a model that are the same for all items.
pub fn constants(f: &Fields<'_, '_>) -> Vec<(Spanned<String>, TomlNode)> {
    let Some(Toml::Table(inputs)) = f.entry("inputs").map(|inputs| &inputs.node.value) else {
        return Vec::new();
    };
    let constants = inputs.entries.iter().filter(|input| is_constant(&input.node.value));
    constants.map(|input| (Spanned::new(input.key.clone(), input.key_span), input.node.clone())).collect()
}

/// What names no stage.
fn is_constant(value: &Toml) -> bool {
    !matches!(value, Toml::String(_) | Toml::Datetime)
}

fn upstreams(f: &mut Fields<'_, '_>, is_constant: fn(&Toml) -> bool) -> Upstreams {
    match (f.entry("from"), f.entry("inputs")) {
        (Some(_), Some(second)) => {
            f.bad("inputs", second.key_span, "stands beside `from`")
                .help("`from` feeds a model with one input, `inputs` names what feeds each of several");
            Vec::new()
        }
        (None, None) => {
            f.missing("from", "name the image stage that feeds the model: from = \"pixels\"");
            Vec::new()
        }
        (Some(_), None) => f.string("from").map(|from| (None, from)).into_iter().collect(),
        (None, Some(entry)) => {
            let table_of = "a table: inputs = { input_name = \"stage\" }";
            let each = "a string: \"stage\" or \"stage.tensor\"";
            let inputs = f.texts_beside("inputs", [table_of, "is empty", each], is_constant);
            if inputs.as_ref().is_some_and(|NamedTexts(inputs)| inputs.is_empty()) {
                f.bad("inputs", entry.node.span, "has constants alone").help(
                    "name what feeds one of the inputs: input_name = \"stage\"; an item is a row of that",
                );
            }
            let inputs = inputs.into_iter().flat_map(|NamedTexts(inputs)| inputs);
            inputs.map(|(input, from)| (Some(input), from)).collect()
        }
    }
}
