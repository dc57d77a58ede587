//! The tables as written. Nothing is filled in.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::time::Duration;

use orchestra_core::tasks::{Retries, WHOLE};

use super::metrics::{self, Measured};
use super::settings::positive;
use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::keys;
use crate::template::{TemplatePart, parts};
use crate::tree::{Table, Toml, TomlEntry, TomlNode};

const VALUES_OF_TASKS: [&str; 3] = ["output", "folder", "best"];

/// The longest `timeout`, `grace` or pause: a task without a `timeout` may run for ever.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The least `memory`: a shell does not start with less.
const LEAST_MEMORY: u64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct RawTask {
    pub name: Spanned<String>,
    /// `None` was reported.
    pub command: Option<RawCommand>,
    pub cwd: Option<Spanned<String>>,
    pub env: Vec<(String, Spanned<String>)>,
    pub pass_env: Vec<Spanned<String>>,
    pub device: RawDevice,
    pub priority: u32,
    pub gpu_memory: Option<Spanned<u64>>,
    pub after: Vec<Spanned<String>>,
    /// Its keys, each with its values as texts.
    pub matrix: Vec<(Spanned<String>, Vec<String>)>,
    pub for_each: Option<Spanned<String>>,
    pub timeout: Option<Duration>,
    pub quiet: Option<Duration>,
    pub retries: Retries,
    pub stop_signal: i32,
    pub grace: Duration,
    pub memory: Option<u64>,
    pub cpus: Option<usize>,
    pub inputs: Vec<Spanned<String>>,
    pub outputs: Vec<Spanned<String>>,
    /// Those that have names, by these: paths in the task's own folder.
    pub named_outputs: BTreeMap<String, String>,
    pub measured: Measured,
}

#[derive(Debug)]
pub(crate) enum RawCommand {
    Words(Vec<Spanned<String>>),
    Shell(Spanned<String>),
}

#[derive(Debug)]
pub(crate) enum RawDevice {
    None,
    /// Thousandths of a GPU.
    Share(u32),
    Count(Spanned<usize>),
    Named(Spanned<String>),
}

pub(super) fn read(name: Spanned<String>, table: &Table, diags: &mut Diagnostics) -> RawTask {
    let what = format!("task `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, keys::TASK, diags);
    let (outputs, named_outputs) = outputs(&mut f);
    RawTask {
        command: command(&mut f),
        cwd: f.string("cwd"),
        env: env(&mut f),
        pass_env: f.strings("pass_env").unwrap_or_default(),
        device: device(&mut f),
        priority: f.value("priority"),
        gpu_memory: f.bytes("gpu_memory"),
        after: f.strings("after").unwrap_or_default(),
        matrix: value_lists(&mut f, "lists of texts or numbers", |node| node.value.to_text())
            .unwrap_or_default(),
        for_each: f.string("for_each"),
        timeout: bounded(&mut f, "timeout", positive),
        quiet: bounded(&mut f, "quiet", positive),
        retries: retries(&mut f),
        stop_signal: f.setting("stop_signal", "").map_or(15, keys::StopSignal::number),
        grace: bounded(&mut f, "grace", Fields::duration).unwrap_or(Duration::from_secs(10)),
        memory: memory(&mut f),
        cpus: f.get("cpus"),
        inputs: f.strings("inputs").unwrap_or_default(),
        outputs,
        named_outputs,
        measured: metrics::read(&mut f),
        name,
    }
}

/// A list of paths, or a table of them: names for other tables to use, `{tasks.train.best.model}`.
fn outputs(f: &mut Fields<'_, '_>) -> (Vec<Spanned<String>>, BTreeMap<String, String>) {
    let Some(TomlEntry { node: TomlNode { value: Toml::Table(table), .. }, .. }) = f.entry("outputs") else {
        return (f.strings("outputs").unwrap_or_default(), BTreeMap::new());
    };
    let (mut outputs, mut named) = (Vec::new(), BTreeMap::new());
    for TomlEntry { key, key_span, node, .. } in &table.entries {
        let Toml::String(text) = &node.value else {
            f.wrong("outputs", node, "a path by each name: { model = \"{output}/model.onnx\" }");
            continue;
        };
        let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        if key.is_empty() || !is_name || VALUES_OF_TASKS.contains(&&key[..]) {
            let reason = format!("cannot call an output `{key}`");
            f.bad("outputs", *key_span, &reason)
                .help("letters, digits, `_` and `-`; `output`, `folder` and `best` are taken");
            continue;
        }
        // Known for each task, and for the best of a table before that is.
        let own = text.strip_prefix("{output}/").filter(|rest| {
            let is_inside = Path::new(rest).components().all(|part| matches!(part, Component::Normal(_)));
            parts(rest).iter().all(|part| matches!(part, TemplatePart::Text(_)))
                && is_inside
                && !rest.is_empty()
        });
        match own {
            Some(rest) => {
                named.insert(key.clone(), rest.to_owned());
                outputs.push(Spanned::new(text.clone(), node.span));
            }
            None => {
                named.insert(key.clone(), String::new());
                f.bad("outputs", node.span, "may give names to files in the task's own folder alone")
                    .help("for example { model = \"{output}/model.onnx\" }, without values; a list of paths needs no names");
            }
        }
    }
    (outputs, named)
}

fn command(f: &mut Fields<'_, '_>) -> Option<RawCommand> {
    let help = "a list of words, command = [\"python\", \"train.py\"], or a text for the shell";
    let Some(entry) = f.entry("command") else {
        f.missing("command", help);
        return None;
    };
    match &entry.node.value {
        Toml::String(_) => f.string("command").map(RawCommand::Shell),
        Toml::Array(words) if words.is_empty() => {
            f.bad("command", entry.node.span, "is empty").help(help).none()
        }
        Toml::Array(words) => {
            let text = |node: &TomlNode| Some(Spanned::new(node.value.to_text()?, node.span));
            let texts: Option<Vec<Spanned<String>>> = words.iter().map(text).collect();
            if texts.is_none() {
                f.wrong("command", &entry.node, "a list of words or a text for the shell");
            }
            texts.map(RawCommand::Words)
        }
        _ => f.wrong("command", &entry.node, "a list of words or a text for the shell").none(),
    }
}

fn env(f: &mut Fields<'_, '_>) -> Vec<(String, Spanned<String>)> {
    let Some(entry) = f.entry("env") else { return Vec::new() };
    let Toml::Table(table) = &entry.node.value else {
        f.wrong("env", &entry.node, "a table: env = { NAME = \"value\" }");
        return Vec::new();
    };
    let mut variables = Vec::new();
    for entry in &table.entries {
        let is_name = !entry.key.is_empty() && !entry.key.contains(['=', '\0']);
        match entry.node.value.to_text().filter(|_| is_name) {
            Some(text) => variables.push((entry.key.clone(), Spanned::new(text, entry.node.span))),
            None if is_name => drop(f.wrong("env", &entry.node, "texts or numbers by their names")),
            None => drop(f.bad("env", entry.key_span, "has a name that no variable can have")),
        }
    }
    variables
}

fn device(f: &mut Fields<'_, '_>) -> RawDevice {
    let whole = |span| RawDevice::Count(Spanned::new(1, span));
    let Some(entry) = f.entry("device") else { return whole(f.span) };
    let node = &entry.node;
    let expected =
        "\"auto\", \"none\", a device such as \"cuda:0\", a number of GPUs, or a share of one such as 0.5";
    match &node.value {
        Toml::String(text) if text == "auto" => whole(node.span),
        Toml::String(text) if text == "none" => RawDevice::None,
        Toml::String(text) => RawDevice::Named(Spanned::new(text.clone(), node.span)),
        Toml::Integer(n @ 1..=1024) => RawDevice::Count(Spanned::new(n.unsigned_abs() as usize, node.span)),
        // At least a thousandth: the bound on commands that share a GPU.
        Toml::Float(share) if (0.001..=1.0).contains(share) => {
            RawDevice::Share((share * f64::from(WHOLE)).round() as u32)
        }
        _ => {
            f.wrong("device", node, expected);
            RawDevice::None
        }
    }
}

/// What `read` gives of the key, of a year at most.
fn bounded<'a, 'd>(
    f: &mut Fields<'a, 'd>,
    key: &str,
    read: impl Fn(&mut Fields<'a, 'd>, &str) -> Option<Duration>,
) -> Option<Duration> {
    let duration = read(f, key)?;
    if duration > LONGEST
        && let Some(entry) = f.entry(key)
    {
        return f.bad(key, entry.node.span, "must be a year at most").none();
    }
    Some(duration)
}

fn memory(f: &mut Fields<'_, '_>) -> Option<u64> {
    let bytes = f.bytes("memory")?;
    if bytes.value < LEAST_MEMORY {
        return f.bad("memory", bytes.span, "must be 16 MiB or more").none();
    }
    Some(bytes.value)
}

fn retries(f: &mut Fields<'_, '_>) -> Retries {
    let Some(entry) = f.entry("retries") else { return Retries::default() };
    if matches!(entry.node.value, Toml::Integer(_)) {
        let n = f.value("retries");
        let pause = Duration::ZERO;
        return Retries { out_of_memory: n, device_lost: n, timeout: n, code: n, signal: n, pause };
    }
    let Some(mut f) = f.table("retries") else { return Retries::default() };
    let mut times = |key| f.value::<u32>(key);
    Retries {
        out_of_memory: times("out_of_memory"),
        device_lost: times("device_lost"),
        timeout: times("timeout"),
        code: times("code"),
        signal: times("signal"),
        pause: bounded(&mut f, "pause", Fields::duration).unwrap_or_default(),
    }
}

/// Lists of values by their names.
/// The lists of `matrix`, as `value` reads each of their values; `None`: there is none, or it is wrong. `lists` says what they are, for the message.
pub(crate) fn value_lists<T>(
    f: &mut Fields<'_, '_>,
    lists: &str,
    value: impl Fn(&TomlNode) -> Option<T>,
) -> Option<Vec<(Spanned<String>, Vec<T>)>> {
    let entry = f.entry("matrix")?;
    let Toml::Table(table) = &entry.node.value else {
        return f.wrong("matrix", &entry.node, "a table of lists: matrix = { lr = [0.1, 0.01] }").none();
    };
    let mut all = Some(Vec::new());
    for entry in &table.entries {
        let values = match &entry.node.value {
            Toml::Array(nodes) if !nodes.is_empty() => nodes.iter().map(&value).collect(),
            _ => None,
        };
        match (&mut all, values) {
            (Some(all), Some(values)) => {
                all.push((Spanned::new(entry.key.clone(), entry.key_span), values));
            }
            (None, Some(_)) => {}
            (_, None) => {
                all = f.wrong("matrix", &entry.node, &format!("a table whose entries are {lists}")).none();
            }
        }
    }
    all
}
