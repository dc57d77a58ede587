//! `[models.*]`, and what stages say of the workers of their programs.

use super::{ModelNode, StageProgram, tuning};
use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::keys::{self, AskedWorkers};
use crate::settings::Settings as _;
use crate::tree::Table;

pub(super) fn read(name: Spanned<String>, table: &Table, diags: &mut Diagnostics) -> ModelNode {
    let what = format!("model `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, keys::MODEL, diags);
    let streams = f.integer("streams");
    let tuning = tuning::read(&mut f, streams.as_ref().is_some_and(|n| n.value > 1));
    ModelNode {
        path: f.required_string("path", "name the ONNX file, relative to this file"),
        labels: f.string("labels"),
        max_batch: f.integer("max_batch"),
        memory_limit: f.get("memory_limit"),
        streams,
        custom_ops: f.strings("custom_ops").unwrap_or_default(),
        tf32: f.value("tf32"),
        tuning,
        ..workers(name, &mut f)
    }
}

/// The model that stands for a program: the table of its stage says how its workers are run.
pub(super) fn of_program(name: Spanned<String>, program: StageProgram, f: &mut Fields<'_, '_>) -> ModelNode {
    ModelNode { program: Some(program), ..workers(name, f) }
}

/// What its table asks of the workers, and nothing else.
fn workers(name: Spanned<String>, f: &mut Fields<'_, '_>) -> ModelNode {
    ModelNode { asked: AskedWorkers::read(f).unwrap_or_default(), tf32: true, name, ..ModelNode::default() }
}
