//! `[models.*]`, and what stages say of the workers of their programs.

use super::{ModelNode, StageProgram, tuning};
use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::keys::{self, AskedWorkers};
use crate::settings::Settings as _;
use crate::tree::{Table, Toml, TomlEntry};

pub(super) fn read(name: Spanned<String>, table: &Table, diags: &mut Diagnostics) -> ModelNode {
    let what = format!("model `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, keys::MODEL, diags);
    let streams = f.integer("streams");
    let tuning = tuning::read(&mut f, streams.as_ref().is_some_and(|n| n.value > 1));
    ModelNode {
        path: f.required_string("path", "name the ONNX file, relative to this file"),
        labels: f.string("labels"),
        batch_axes: batch_axes(&mut f),
        max_batch: f.integer("max_batch"),
        memory_limit: f.get("memory_limit"),
        streams,
        custom_ops: f.strings("custom_ops").unwrap_or_default(),
        tf32: f.value("tf32"),
        tuning,
        ..workers(name, &mut f)
    }
}

/// `batch_axis`: for each input that is named the axis along which its items lie.
fn batch_axes(f: &mut Fields<'_, '_>) -> Vec<(Spanned<String>, usize)> {
    let Some(entry) = f.entry("batch_axis") else { return Vec::new() };
    let Toml::Table(table) = &entry.node.value else {
        f.wrong("batch_axis", &entry.node, "a table of inputs and axes: batch_axis = { input = 1 }");
        return Vec::new();
    };
    let mut axes = Vec::new();
    for TomlEntry { key, key_span, node } in &table.entries {
        match node.value {
            Toml::Integer(n @ 0..=63) => axes.push((Spanned::new(key.clone(), *key_span), n as usize)),
            _ => drop(f.wrong(&format!("batch_axis.{key}"), node, "an axis, from 0")),
        }
    }
    axes
}

/// The model that stands for a program: the table of its stage says how its workers are run.
pub(super) fn of_program(name: Spanned<String>, program: StageProgram, f: &mut Fields<'_, '_>) -> ModelNode {
    ModelNode { program: Some(program), ..workers(name, f) }
}

/// What its table asks of the workers, and nothing else.
fn workers(name: Spanned<String>, f: &mut Fields<'_, '_>) -> ModelNode {
    ModelNode { asked: AskedWorkers::read(f).unwrap_or_default(), tf32: true, name, ..ModelNode::default() }
}
