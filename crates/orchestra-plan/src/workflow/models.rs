//! `[models.*]`, and what stages say of the workers of their programs.

use super::{ModelNode, RawSandbox, RawTuning, StageProgram, tuning};
use crate::diagnostics::Diagnostics;
use crate::fields::{At, Fields};
use crate::keys;
use crate::plan::Recycle;
use crate::tree::Table;

pub(super) fn read(name: At<String>, table: &Table, diags: &mut Diagnostics) -> ModelNode {
    let what = format!("model `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, keys::MODEL, diags);
    let streams = f.integer("streams");
    let tuning = tuning::read(&mut f, streams.as_ref().is_some_and(|n| n.value > 1));
    ModelNode {
        path: f.required_string("path", "name the ONNX file, relative to this file"),
        labels: f.string("labels"),
        max_batch: f.integer("max_batch"),
        memory_limit: at_least_one(&mut f, "memory_limit"),
        streams,
        custom_ops: f.strings("custom_ops").unwrap_or_default(),
        tf32: f.value("tf32"),
        tuning,
        ..workers(name, &mut f)
    }
}

/// The model that stands for a program: the table of its stage says how its workers are run.
pub(super) fn of_program(name: At<String>, program: StageProgram, f: &mut Fields<'_, '_>) -> ModelNode {
    ModelNode { program: Some(program), ..workers(name, f) }
}

/// What `keys::WORKERS` say, and nothing else.
fn workers(name: At<String>, f: &mut Fields<'_, '_>) -> ModelNode {
    let devices = f.strings("devices").filter(|names| !matches!(&names[..], [one] if one.value == "auto"));
    if let (Some([]), Some(entry)) = (devices.as_deref(), f.entry("devices")) {
        f.bad("devices", entry.node.span, "names no device").help("leave the key out to use all devices");
    }
    ModelNode {
        program: None,
        path: None,
        labels: None,
        devices,
        workers: f.integer("workers"),
        max_batch: None,
        memory: at_least_one(f, "memory"),
        memory_limit: None,
        priority: f.value("priority"),
        threads: f.integer("threads").map(|n| n.value as usize),
        streams: None,
        custom_ops: Vec::new(),
        recycle: recycle(f),
        tf32: true,
        tuning: RawTuning::default(),
        sandbox: RawSandbox {
            mode: f.get("sandbox"),
            read: f.strings("sandbox_read").unwrap_or_default(),
            write: f.strings("sandbox_write").unwrap_or_default(),
            env: f.strings("sandbox_env").unwrap_or_default(),
        },
        is_deferred: false,
        known: None,
        name,
    }
}

fn at_least_one(f: &mut Fields<'_, '_>, key: &str) -> Option<At<u64>> {
    let bytes = f.bytes(key)?;
    if bytes.value == 0 {
        f.bad(key, bytes.span, "must be more than nothing");
        return None;
    }
    Some(bytes)
}

fn recycle(f: &mut Fields<'_, '_>) -> Recycle {
    let Some(mut f) = f.table("recycle") else { return Recycle::default() };
    if f.entry("batches").is_none() && f.entry("growth").is_none() {
        let message = format!("{} has no effect: it has neither `batches` nor `growth`", f.what);
        f.diags.warning(f.span, message).help("leave it out, or say when a worker is to be replaced");
    }
    Recycle {
        batches: f.integer("batches").map(|n| n.value),
        growth_bytes: at_least_one(&mut f, "growth").map(|b| b.value),
    }
}
