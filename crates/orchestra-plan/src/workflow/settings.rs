//! The tables of what holds for the whole run: `[limits]`, `[devices]` and `[telemetry]`.

use std::time::Duration;

use super::RawDevices;
use crate::fields::Fields;
use crate::keys::{self, DeviceNames};
use crate::plan::{Limits, ServeSettings, TelemetryPlan};
use crate::settings::{Bytes, Settings as _};

pub(super) fn limits(fields: &mut Fields<'_, '_>) -> Limits {
    let mut f = fields.section("limits", keys::LIMITS);
    let limits = Limits::read(&mut f).expect("each limit has a default");
    for (key, duration) in [
        ("item_timeout", limits.item_timeout),
        ("batch_timeout", limits.batch_timeout),
        ("load_timeout", limits.load_timeout),
    ] {
        if duration.is_zero() {
            positive(&mut f, key);
        }
    }
    limits
}

pub(super) fn positive(f: &mut Fields<'_, '_>, key: &str) -> Option<Duration> {
    let duration = f.duration(key)?;
    if duration.is_zero()
        && let Some(entry) = f.entry(key)
    {
        return f.bad(key, entry.node.span, "must be longer than nothing").none();
    }
    Some(duration)
}

pub(super) fn devices(fields: &mut Fields<'_, '_>) -> RawDevices {
    let mut f = fields.section("devices", keys::DEVICES);
    RawDevices {
        use_: f.get("use").map(|DeviceNames(names)| names),
        headroom: f.value::<Bytes>("headroom").0,
        slots: f.get("slots"),
    }
}

pub(crate) fn serve(fields: &mut Fields<'_, '_>) -> ServeSettings {
    let mut f = fields.section("serve", keys::SERVE);
    let serve = ServeSettings::read(&mut f).expect("each setting has a default");
    for (key, address) in [("http", &serve.http), ("grpc", &serve.grpc)] {
        let is_right = match address.strip_prefix("unix:") {
            Some(path) => path.starts_with('/'),
            None => address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()),
        };
        if let Some(entry) = f.entry(key).filter(|_| !is_right) {
            f.bad(key, entry.node.span, "is no address to listen on").help(
                "HOST:PORT, for example \"127.0.0.1:8000\" for this machine alone; or the absolute path of a socket, \"unix:/run/orchestra.sock\"",
            );
        }
    }
    positive(&mut f, "deadline");
    positive(&mut f, "read_timeout");
    serve
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
