//! `metrics` and `best` as written: what is read from the lines of commands, and what they are compared by.

use orchestra_core::tasks::{CurveValue, Objective};
use regex_lite::Regex;

use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::keys;
use crate::nearest::suggestion;
use crate::plan::TaskMetric;
use crate::tree::{Table, Toml, TomlNode};

/// Most metrics of a table: each is looked for in each line.
const MAX_METRICS: usize = 32;
/// Bytes of the longest name of a metric.
const LONGEST_NAME: usize = 100;

/// What a table says of its metrics.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub metrics: Vec<TaskMetric>,
    pub best: Option<Objective>,
}

pub(super) fn read(f: &mut Fields<'_, '_>) -> Measured {
    // Where a metric was reported, others are not said to be missing.
    let Some(metrics) = metrics(f) else { return Measured::default() };
    let best = best(f, &metrics);
    Measured { metrics, best }
}

fn metrics(f: &mut Fields<'_, '_>) -> Option<Vec<TaskMetric>> {
    let Some(entry) = f.entry("metrics") else { return Some(Vec::new()) };
    let nodes = match &entry.node.value {
        Toml::Array(nodes) => &nodes[..],
        _ => std::slice::from_ref(&entry.node),
    };
    if nodes.len() > MAX_METRICS {
        let reason = format!("names {}, and {MAX_METRICS} is the most", nodes.len());
        return f.bad("metrics", entry.node.span, &reason).none();
    }
    let metrics: Vec<TaskMetric> = nodes.iter().map(|node| metric(f, node)).collect::<Option<_>>()?;
    let twice =
        (0..metrics.len()).find(|at| metrics[..*at].iter().any(|other| other.name == metrics[*at].name));
    if let Some(at) = twice {
        return f.bad("metrics", nodes[at].span, &format!("names `{}` twice", metrics[at].name)).none();
    }
    Some(metrics)
}

fn metric(f: &mut Fields<'_, '_>, node: &TomlNode) -> Option<TaskMetric> {
    let what = format!("a metric of {}", f.what);
    let (name, regex) = match &node.value {
        Toml::String(name) => (Spanned::new(name.clone(), node.span), None),
        Toml::Table(table) => {
            let mut of = Fields::new(what, node.span, table, keys::METRIC, f.diags);
            let name = of.required_string("name", "as reports shall call it")?;
            let regex = of.required_string(
                "regex",
                "an expression with a group for the number; a name alone is a key of lines that are JSON objects",
            )?;
            (name, Some(regex))
        }
        _ => {
            return f.wrong(
                "metrics",
                node,
                "a list of names and of tables: [\"loss\", { name = \"epoch\", regex = 'epoch ([0-9]+)' }]",
            ).none();
        }
    };
    if name.value.is_empty() || name.value.len() > LONGEST_NAME || name.value.contains(char::is_control) {
        let reason =
            format!("has a name that is empty, longer than {LONGEST_NAME} bytes, or has control characters");
        return f.bad("metrics", name.span, &reason).none();
    }
    if name.value == "time_s" {
        return f.bad("metrics", name.span, "has the name `time_s`, which the time has in its curves").none();
    }
    if let Some(regex) = &regex {
        check(regex, f.diags)?;
    }
    Some(TaskMetric { name: name.value, regex: regex.map(|regex| regex.value) })
}

/// Reports an expression that no keeper could use.
fn check(regex: &Spanned<String>, diags: &mut Diagnostics) -> Option<()> {
    match Regex::new(&regex.value) {
        Ok(compiled) if compiled.captures_len() > 1 => Some(()),
        Ok(_) => {
            diags
                .error(regex.span, "the expression has no group for the number")
                .help("put parentheses around what is the number: 'loss=([-+.0-9eE]+)'");
            None
        }
        Err(error) => {
            diags
                .error(regex.span, format!("the expression cannot be used: {error}"))
                .help("expressions are those of regex-lite; in single quotes TOML leaves backslashes alone");
            None
        }
    }
}

fn best(f: &mut Fields<'_, '_>, metrics: &[TaskMetric]) -> Option<Objective> {
    let mut f = f.table("best")?;
    let (metric, objective) = objective(&mut f)?;
    must_have(&metric, "the table", metrics, f.diags).then_some(objective)
}

fn objective(f: &mut Fields<'_, '_>) -> Option<(Spanned<String>, Objective)> {
    let metric = f.required_string("metric", "the metric that tasks are compared by");
    let goal = f.setting("goal", "\"min\" where less is better, \"max\" where more is");
    let value = f.choice("value").unwrap_or(CurveValue::Last);
    let metric = metric?;
    Some((metric.clone(), Objective { metric: metric.value, goal: goal?, value }))
}

/// Whether there is such a metric; else reported.
pub(crate) fn must_have(
    name: &Spanned<String>,
    table: &str,
    metrics: &[TaskMetric],
    diags: &mut Diagnostics,
) -> bool {
    let mut names = metrics.iter().map(|metric| &metric.name[..]);
    let has = names.any(|known| known == name.value);
    if !has {
        let names = metrics.iter().map(|metric| &metric.name[..]);
        let help = suggestion("`metrics`", &name.value, names);
        diags.error(name.span, format!("{table} has no metric `{}`", name.value)).help(help);
    }
    has
}

/// `[best.NAME]`
#[derive(Debug)]
pub(crate) struct RawBest {
    pub name: Spanned<String>,
    pub of: Vec<Spanned<String>>,
    /// With where its metric is named; `None` was reported.
    pub objective: Option<(Spanned<String>, Objective)>,
}

pub(super) fn read_best(name: Spanned<String>, table: &Table, diags: &mut Diagnostics) -> RawBest {
    let mut f = Fields::new(format!("best `{}`", name.value), name.span, table, keys::BEST_OF, diags);
    let of = f.names("of", "the tables of tasks: of = [\"mlp\", \"svm\"]");
    RawBest { of, objective: objective(&mut f), name }
}
