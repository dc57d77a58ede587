//! `orchestra inspect`: what a model file says about itself, and a workflow to start from. Loads no weights and no ONNX Runtime.

use std::fmt::Write as _;

use anyhow::anyhow;
use orchestra_launch::plan::{ModelOutput, OutputDim, OutputType, ScalarInput, format_bytes};
use orchestra_launch::{DType, Dim, ModelError, ModelFile, Recognised};
use serde_json::json;

use crate::Failed;
use crate::args::InspectArgs;
use crate::exit_code::ExitCode;
use crate::human::counted;
use crate::stdout;

/// Characters of a value of the metadata that are shown.
const MOST_SHOWN: usize = 100;

pub fn inspect(args: &InspectArgs) -> Result<ExitCode, Failed> {
    let path = args.model.to_string_lossy();
    let file = orchestra_launch::read_model(&args.model).map_err(|error| {
        let help = match error {
            ModelError::NotOnnx(_) => "; name a file in the ONNX format, which often ends in `.onnx`",
            ModelError::Truncated(_) => "; copy, download or export it again",
            _ => "",
        };
        Failed::new(ExitCode::Unavailable, anyhow!("model `{path}`: {error}{help}"))
    })?;
    let recognised = orchestra_launch::recognise(&file.signature);
    let workflow = orchestra_launch::workflow_for(&path, &file.signature, &recognised);
    if args.json {
        let json = in_json(&path, &file, &recognised, &workflow);
        return stdout::print_bytes(format!("{json}\n").as_bytes());
    }
    stdout::print(&in_words(&path, &file, &recognised, &workflow))
}

fn in_json(
    path: &str,
    file: &ModelFile,
    recognised: &Recognised,
    workflow: &Result<String, String>,
) -> serde_json::Value {
    let input = |name: &str, dtype: &str, batch: Dim, row: &[Dim]| {
        let shape: Vec<_> = [batch].iter().chain(row).map(|dim| dim.fixed()).collect();
        json!({"name": name, "dtype": dtype, "shape": shape})
    };
    let output = |output: &ModelOutput| {
        let dtype = match &output.holds {
            OutputType::Tensor(dtype) => dtype.name(),
            OutputType::Text => "text",
            OutputType::Other(what) => what,
        };
        let fixed = |dim: &OutputDim| match dim {
            OutputDim::Fixed(n) => Some(*n),
            OutputDim::Batch | OutputDim::Open => None,
        };
        let shape = output.dims.as_ref().map(|dims| dims.iter().map(fixed).collect::<Vec<_>>());
        json!({"name": output.name, "dtype": dtype, "shape": shape})
    };
    let signature = &file.signature;
    let tensors = signature.inputs.iter().map(|of| {
        let mut shape: Vec<_> = of.row.iter().map(|dim| dim.fixed()).collect();
        shape.insert(signature.batch_axis(&of.name), of.batch.fixed());
        json!({"name": of.name, "dtype": of.dtype.name(), "shape": shape})
    });
    let scalar = |of: &ScalarInput| json!({"name": of.name, "dtype": of.dtype.map_or("text", DType::name), "shape": []});
    let scalars = signature.scalars.iter().map(scalar);
    let texts = signature.text_inputs.iter().map(|of| input(&of.name, "text", of.batch, &of.row));
    json!({
        "model": path,
        "bytes": file.bytes,
        "ir_version": signature.ir_version,
        "opset": signature.opset,
        "inputs": tensors.chain(texts).chain(scalars).collect::<Vec<_>>(),
        "outputs": signature.outputs.iter().map(output).collect::<Vec<_>>(),
        "metadata": signature.metadata,
        "operators": signature.operators,
        "recognised": {
            "purpose": recognised.purpose,
            "layout": recognised.layout,
            "possible_layouts": recognised.possible_layouts,
            "why": recognised.why,
        },
        "workflow": workflow.as_ref().ok(),
        "no_workflow": workflow.as_ref().err(),
    })
}

/// The findings as comments of the workflow, so that all of it is a workflow file.
fn in_words(
    path: &str,
    file: &ModelFile,
    recognised: &Recognised,
    workflow: &Result<String, String>,
) -> String {
    let signature = &file.signature;
    let mut text = format!(
        "# model      {} ({}, ONNX format {}, operator set {})\n",
        one_line(path),
        format_bytes(file.bytes),
        signature.ir_version,
        signature.opset
    );
    // Writing to a string cannot fail.
    for input in &signature.inputs {
        let axis = signature.batch_axis(&input.name);
        let along = if axis > 0 { format!(", items along axis {axis} of the model") } else { String::new() };
        let _ = writeln!(text, "# input      {} {input}{along}", one_line(&input.name));
    }
    for input in &signature.text_inputs {
        let _ = writeln!(text, "# input      {} {input}", one_line(&input.name));
    }
    for ScalarInput { name, dtype } in &signature.scalars {
        let _ = writeln!(
            text,
            "# input      {} {}, a single value",
            one_line(name),
            dtype.map_or("text", DType::name)
        );
    }
    for output in &signature.outputs {
        let _ = writeln!(text, "# output     {} {output}", one_line(&output.name));
    }
    for (key, value) in &signature.metadata {
        let _ = writeln!(text, "# metadata   {} = {}", one_line(key), one_line(value));
    }
    let n: u64 = signature.operators.values().sum();
    let operators: Vec<_> =
        signature.operators.iter().map(|(name, n)| format!("{} {n}", one_line(name))).collect();
    let _ = writeln!(text, "# operators  {}: {}", counted(n, "node", "nodes"), operators.join(", "));
    let what = match recognised.layout {
        Some(layout) => format!("{} of layout {layout}", recognised.purpose),
        None => recognised.purpose.to_owned(),
    };
    let _ = writeln!(text, "# purpose    {what}: {}", one_line(&recognised.why));
    if !recognised.possible_layouts.is_empty() {
        let names = recognised.possible_layouts.join(", ");
        let _ = writeln!(text, "#            if it is a detector, by the shapes of its outputs: {names}");
    }
    match workflow {
        Ok(workflow) => {
            let _ = write!(text, "\n{workflow}");
        }
        Err(why) => {
            let _ = writeln!(text, "# workflow   none: {why}");
        }
    }
    text
}

/// Text of the file without line ends and control characters, cut where it is long.
fn one_line(text: &str) -> String {
    let mut shown: String =
        text.chars().take(MOST_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST_SHOWN).is_some() {
        let _ = write!(shown, ".. ({} characters)", text.chars().count());
    }
    shown
}
