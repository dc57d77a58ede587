//! Expressions: a condition and a formula of a workflow file, read and checked against the columns that there are. It runs none.

use orchestra_plan::PlanOptions;

use crate::workflow;
use crate::world::World;

/// A condition is not read beyond this: it would only be slow.
const MOST_BYTES: usize = 4096;

/// Any text is a condition over a record, and a formula of one, or is explained; never a panic.
pub fn expression(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if text.len() > MOST_BYTES {
        return;
    }
    // As TOML writes a text.
    let text = serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f");
    let file = format!(
        "version = 1\n\
         [sources.scans]\nkind = \"images\"\npaths = [\"*.png\"]\n\
         [models.digits]\npath = \"digits.onnx\"\n\
         [stages.pixels]\nkind = \"image\"\nfrom = \"scans\"\nsize = [32, 32]\ncolor = \"gray\"\n\
         [stages.run]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"digits\"\n\
         [stages.best]\nkind = \"classify\"\nfrom = \"run\"\n\
         [stages.some]\nkind = \"filter\"\nfrom = \"best\"\nkeep = {text}\n\
         [stages.more]\nkind = \"select\"\nfrom = \"best\"\ncolumns = {{ made = {text} }}\n\
         [sinks.some]\nkind = \"jsonl\"\nfrom = \"some\"\n\
         [sinks.more]\nkind = \"jsonl\"\nfrom = \"more\"\n"
    );
    workflow::check(&file, &PlanOptions::default(), &World::with_gpus(0));
}
