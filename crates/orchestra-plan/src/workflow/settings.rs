//! The tables of what holds for the whole run: `[limits]`, `[devices]` and `[telemetry]`.

use std::time::Duration;

use super::RawDevices;
use crate::fields::{At, Fields};
use crate::keys;
use crate::plan::{Limits, MaxFailed, TelemetryPlan};
use crate::settings::{Bytes, Settings as _};
use crate::tree::Value;

pub(super) fn limits(fields: &mut Fields<'_, '_>) -> (Limits, Option<At<u64>>, Option<At<u64>>) {
    let mut f = fields.section("limits", keys::LIMITS);
    let limits = Limits {
        max_failed: max_failed(&mut f),
        first_failed: f.value("first_failed"),
        item_timeout: positive_or_default(&mut f, "item_timeout"),
        batch_timeout: positive_or_default(&mut f, "batch_timeout"),
        load_timeout: positive_or_default(&mut f, "load_timeout"),
        grace: f.value("grace"),
        max_pixels: f.value("max_pixels"),
        max_items: f.value("max_items"),
        sandbox: f.value("sandbox"),
        own: None,
    };
    (limits, f.bytes("memory"), f.integer("loaders"))
}

fn positive_or_default(f: &mut Fields<'_, '_>, key: &str) -> Duration {
    match f.entry(key) {
        Some(_) => positive(f, key).unwrap_or_default(),
        None => f.value(key),
    }
}

pub(super) fn positive(f: &mut Fields<'_, '_>, key: &str) -> Option<Duration> {
    let duration = f.duration(key)?;
    if duration.is_zero()
        && let Some(entry) = f.entry(key)
    {
        f.bad(key, entry.node.span, "must be longer than nothing");
        return None;
    }
    Some(duration)
}

pub(super) fn max_failed(f: &mut Fields<'_, '_>) -> Option<MaxFailed> {
    let node = &f.entry("max_failed")?.node;
    let expected = "a number of items or a share of them, for example 100 or \"1%\"";
    match &node.value {
        Value::Integer(n) if *n >= 0 => return Some(MaxFailed::Items(n.unsigned_abs())),
        Value::String(text) => {
            let share = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
            if let Some(share) = share.filter(|s| (0.0..=100.0).contains(s)) {
                return Some(MaxFailed::Share(share / 100.0));
            }
        }
        _ => {}
    }
    f.wrong("max_failed", node, expected);
    None
}

pub(super) fn devices(fields: &mut Fields<'_, '_>) -> RawDevices {
    let mut f = fields.section("devices", keys::DEVICES);
    let use_ = f.strings("use").filter(|names| !matches!(&names[..], [one] if one.value == "auto"));
    if let (Some([]), Some(entry)) = (use_.as_deref(), f.entry("use")) {
        f.bad("use", entry.node.span, "names no device")
            .help("\"auto\" takes all GPUs, or the CPU where there is none");
    }
    RawDevices {
        use_,
        headroom: f.value::<Bytes>("headroom").0,
        slots: f.integer("slots").map(|n| n.value as usize),
    }
}

pub(super) fn telemetry(fields: &mut Fields<'_, '_>) -> TelemetryPlan {
    let mut f = fields.section("telemetry", keys::TELEMETRY);
    let plan = TelemetryPlan::read(&mut f).unwrap_or_default();
    if let (Some(url), Some(entry)) = (&plan.otlp, f.entry("otlp"))
        && !url.starts_with("http://")
    {
        f.bad("otlp", entry.node.span, "is no address of a collector")
            .help("for example otlp = \"http://localhost:4318\"; traces are sent without encryption, so `https://` cannot be used");
    }
    if let (Some(address), Some(entry)) = (&plan.metrics, f.entry("metrics")) {
        let port = address.rsplit_once(':').map_or(&address[..], |(_, port)| port);
        if port.parse::<u16>().is_err() || address.contains('/') {
            f.bad("metrics", entry.node.span, "is no address to listen on")
                .help("HOST:PORT, for example metrics = \"127.0.0.1:9464\" for this machine alone");
        }
    }
    plan
}
