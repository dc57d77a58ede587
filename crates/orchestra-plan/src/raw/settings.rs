//! The tables of what holds for the whole run: `[limits]`, `[devices]` and `[telemetry]`.

use std::time::Duration;

use orchestra_core::SandboxMode;

use super::RawDevices;
use crate::bytes::parse_bytes;
use crate::fields::{At, Fields};
use crate::keys;
use crate::plan::{Limits, MaxFailed, OtlpProtocol, TelemetryPlan};
use crate::tree::Value;

/// Default of `limits.max_pixels`: 2^28, a square of 16,384 pixels.
const MAX_PIXELS: u64 = 1 << 28;
/// Default of `limits.first_failed`.
const FIRST_FAILED: u64 = 100;
/// Of a source, whose list takes some dozens of bytes for each.
const MAX_ITEMS: u64 = 100_000_000;

pub(super) fn limits(fields: &mut Fields<'_, '_>) -> (Limits, Option<At<u64>>, Option<At<u64>>) {
    let mut limits = Limits {
        max_failed: None,
        first_failed: FIRST_FAILED,
        item_timeout: Duration::from_secs(30),
        batch_timeout: Duration::from_secs(60),
        load_timeout: Duration::from_secs(600),
        // What sends SIGTERM and then SIGKILL mostly leaves 30 seconds between.
        grace: Duration::from_secs(25),
        max_pixels: MAX_PIXELS,
        max_items: MAX_ITEMS,
        sandbox: SandboxMode::default(),
        own: None,
    };
    let Some(mut f) = fields.section("limits", &keys::LIMITS) else { return (limits, None, None) };
    limits.max_failed = max_failed(&mut f);
    limits.first_failed = f.integer("first_failed").map_or(limits.first_failed, |n| n.value);
    limits.item_timeout = positive(&mut f, "item_timeout").unwrap_or(limits.item_timeout);
    limits.batch_timeout = positive(&mut f, "batch_timeout").unwrap_or(limits.batch_timeout);
    limits.load_timeout = positive(&mut f, "load_timeout").unwrap_or(limits.load_timeout);
    limits.grace = f.duration("grace").unwrap_or(limits.grace);
    limits.max_pixels = f.integer("max_pixels").map_or(limits.max_pixels, |n| n.value);
    limits.max_items = f.integer("max_items").map_or(limits.max_items, |n| n.value);
    limits.sandbox = f.word("sandbox", &keys::SANDBOX).map_or(limits.sandbox, |mode| mode.value);
    (limits, f.bytes("memory"), f.integer("loaders"))
}

pub(crate) fn positive(f: &mut Fields<'_, '_>, key: &str) -> Option<Duration> {
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
    let default = RawDevices { use_: None, headroom: parse_bytes("2GiB").unwrap_or_default(), slots: None };
    let Some(mut f) = fields.section("devices", &keys::DEVICES) else { return default };
    let use_ = f.strings("use").filter(|names| !matches!(&names[..], [one] if one.value == "auto"));
    if let (Some([]), Some(entry)) = (use_.as_deref(), f.entry("use")) {
        f.bad("use", entry.node.span, "names no device")
            .help("\"auto\" takes all GPUs, or the CPU where there is none");
    }
    RawDevices {
        use_,
        headroom: f.bytes("headroom").map_or(default.headroom, |b| b.value),
        slots: f.integer("slots").map(|n| n.value as usize),
    }
}

pub(super) fn telemetry(fields: &mut Fields<'_, '_>) -> TelemetryPlan {
    let Some(mut f) = fields.section("telemetry", &keys::TELEMETRY) else { return TelemetryPlan::default() };
    let otlp = f.string("otlp");
    if let Some(url) = &otlp
        && !url.value.starts_with("http://")
    {
        f.bad("otlp", url.span, "is no address of a collector")
            .help("for example otlp = \"http://localhost:4318\"; traces are sent without encryption, so `https://` cannot be used");
    }
    TelemetryPlan {
        otlp: otlp.map(|u| u.value),
        protocol: f.word("protocol", &OtlpProtocol::WORDS).map(|p| p.value),
        sample: sample(&mut f),
        slow: f.duration("slow"),
        flush_timeout: f.duration("flush_timeout"),
        metrics: metrics_page(&mut f),
        log_format: f.word("log_format", &keys::LOG_FORMATS).map(|l| l.value),
    }
}

fn metrics_page(f: &mut Fields<'_, '_>) -> Option<String> {
    let address = f.string("metrics")?;
    let port = address.value.rsplit_once(':').map_or(&address.value[..], |(_, port)| port);
    if port.parse::<u16>().is_err() || address.value.contains('/') {
        f.bad("metrics", address.span, "is no address to listen on")
            .help("HOST:PORT, for example metrics = \"127.0.0.1:9464\" for this machine alone");
        return None;
    }
    Some(address.value)
}

fn sample(f: &mut Fields<'_, '_>) -> Option<f64> {
    let share = f.numbers("sample")?;
    match share.value[..] {
        [one] if (0.0..=1.0).contains(&one) => Some(one),
        _ => {
            f.bad("sample", share.span, "is no share of the items")
                .help("a number from 0.0 to 1.0: 0.01 traces one item in a hundred, and those that fail or take longer than `slow`");
            None
        }
    }
}
