//! A report as a table and a few sentences. Formats only. The labels of the rows are the keys of the JSON, with blanks for `_`.

use std::fmt::Write as _;

use orchestra_chaos::{Quantiles, Report};

use crate::columns::{Row, aligned};
use crate::human::{count, counted, per_second, short_time};

/// Everything that a person wants to know.
pub fn table(report: &Report) -> String {
    let mut text = format!("{}\n\n", title(report));
    text.push_str(&aligned(&counts(report)));
    text.push('\n');
    text.push_str(&aligned(&times(report)));
    text.push('\n');
    text.push_str(&aligned(&rates(report)));
    text.push('\n');
    notes(report, &mut text);
    text
}

fn title(report: &Report) -> String {
    let every = |what: &str, seconds: Option<f64>| {
        seconds.map_or(format!("no {what}"), |s| format!("a {what} every {}", brief(s)))
    };
    format!(
        "{}: {}, {}, {}, seed {}, {} and {}",
        report.workflow,
        counted(report.runs, "round", "rounds"),
        every("SIGKILL", report.kill_every),
        every("SIGSTOP", report.stop_every),
        report.seed,
        counted(report.workers, "worker", "workers"),
        counted(report.spares, "spare", "spares"),
    )
}

fn counts(report: &Report) -> Vec<Row> {
    let rows = [
        ("items", report.items),
        ("done", report.done),
        ("failed", report.failed),
        ("lost", report.lost),
        ("doubled", report.doubled),
        ("differing", report.differing),
        ("unknown", report.unknown),
        ("kills", report.kills),
        ("stops", report.stops),
        ("spares struck", report.spares_struck),
        ("missed", report.missed),
        ("unmeasured", report.unmeasured),
        ("restarts", report.restarts),
        ("spare takeovers", report.spare_takeovers),
        ("other deaths", report.other_deaths),
    ];
    let leaks = ("leaks", report.leaks.len() as u64);
    rows.into_iter().chain([leaks]).map(|(label, n)| Row::new(label, [count(n)])).collect()
}

fn times(report: &Report) -> Vec<Row> {
    let measured = [
        ("kill recovery", &report.kill_recovery),
        ("kill notice", &report.kill_notice),
        ("kill takeover", &report.kill_takeover),
        ("kill stall", &report.kill_stall),
        ("stop recovery", &report.stop_recovery),
        ("stop notice", &report.stop_notice),
        ("stop takeover", &report.stop_takeover),
        ("stop stall", &report.stop_stall),
        ("batch", &report.batch),
        ("load", &report.load),
        ("load with faults", &report.load_with_faults),
    ];
    let row = |(label, q): (&str, &Option<Quantiles>)| {
        let q = q.as_ref()?;
        Some(Row::new(label, [short_time(q.p50), short_time(q.p99), short_time(q.max), count(q.n)]))
    };
    let head = Row::new("", ["p50", "p99", "max", "n"].map(String::from));
    std::iter::once(head).chain(measured.into_iter().filter_map(row)).collect()
}

fn rates(report: &Report) -> Vec<Row> {
    let ratio = |of: Option<f64>| of.map_or("-".to_owned(), |r| format!("{r:.2}"));
    vec![
        Row::new("recovery in batches", [ratio(report.recovery_in_batches)]),
        Row::new("recovery in loads", [ratio(report.recovery_in_loads)]),
        Row::new("throughput without faults", [per_second(report.throughput_without_faults.median)]),
        Row::new("throughput with faults", [per_second(report.throughput_with_faults.median)]),
        Row::new("throughput ratio", [format!("{:.3}", report.throughput_ratio.median)]),
    ]
}

fn notes(report: &Report, text: &mut String) {
    // Writing to a string cannot fail.
    if report.kills == 0 && report.stops == 0 {
        let _ = writeln!(
            text,
            "nobody was struck: more items (`--items`) or more strikes (`--kill-every`) would tell more"
        );
    }
    if report.other_deaths > 0 {
        let deaths = counted(report.other_deaths, "worker", "workers");
        let _ = writeln!(text, "{deaths} died of other causes; `orchestra run -v` says of which");
    }
    for finding in &report.findings {
        let _ = writeln!(text, "{finding}");
    }
    for leak in &report.leaks {
        let _ = writeln!(text, "left behind: {leak}");
    }
    let verdict = match report.passed {
        true => "every item has one end, the same as without faults, and nothing is left behind",
        false => "FLAWS WERE FOUND",
    };
    let _ = writeln!(text, "{verdict}");
}

/// `100 ms`, `1 s`, `2.5 s`
fn brief(seconds: f64) -> String {
    let (number, unit) = if seconds < 1.0 { (seconds * 1e3, "ms") } else { (seconds, "s") };
    let text = format!("{number:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_short() {
        assert_eq!([0.1, 1.0, 2.5, 0.0015].map(brief), ["100 ms", "1 s", "2.5 s", "1.5 ms"]);
    }
}
