//! A report as a table and a few sentences. Formats only. The labels of the rows are the keys of the JSON, with blanks for `_`.

use std::fmt::Write as _;

use orchestra::lab::Quantiles;
use orchestra::lab::chaos_report::Report;

use crate::columns::{Row, aligned};
use crate::human::{count, counted, per_second, short_time};

pub fn table(report: &Report) -> String {
    let leaks = ("leaks", report.leaks.len() as u64);
    let counts: Vec<Row> =
        report.counts.iter().chain([&leaks]).map(|(key, n)| Row::new(label(key), [count(*n)])).collect();
    let head = Row::new("", ["p50", "p99", "max", "n"].map(String::from));
    let time = |(key, q): &(&str, Option<Quantiles>)| {
        let q = q.as_ref()?;
        Some(Row::new(label(key), [short_time(q.p50), short_time(q.p99), short_time(q.max), count(q.n)]))
    };
    let times: Vec<Row> = std::iter::once(head).chain(report.times.iter().filter_map(time)).collect();
    let text = format!("{}\n\n{}\n{}\n", title(report), aligned(&counts), aligned(&times));
    text + &aligned(&rates(report)) + "\n" + &notes(report)
}

fn label(key: &str) -> String {
    key.replace('_', " ")
}

fn title(report: &Report) -> String {
    let every = |what: &str, every: Option<std::time::Duration>| {
        every.map_or(format!("no {what}"), |every| format!("a {what} every {}", brief(every.as_secs_f64())))
    };
    format!(
        "{}: {}, {}, {}, seed {}, {}",
        report.workflow,
        counted(report.count("runs"), "round", "rounds"),
        every("SIGKILL", report.strikes.kill_every),
        every("SIGSTOP", report.strikes.stop_every),
        report.strikes.seed,
        counted(report.count("workers"), "worker", "workers"),
    )
}

fn rates(report: &Report) -> Vec<Row> {
    let recovery = report.recovery.iter().map(|(key, ratio)| {
        Row::new(label(key), [ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))])
    });
    let throughput = report.throughput.iter().map(|(key, spread)| {
        let is_ratio = key.ends_with("_ratio");
        let median = if is_ratio { format!("{:.3}", spread.median) } else { per_second(spread.median) };
        Row::new(label(key), [median])
    });
    recovery.chain(throughput).collect()
}

fn notes(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if report.count("kills") == 0 && report.count("stops") == 0 {
        let _ = writeln!(
            text,
            "no worker was struck: more items (`--items`) or more strikes (`--kill-every`) would tell more"
        );
    }
    if report.count("other_deaths") > 0 {
        let deaths = counted(report.count("other_deaths"), "worker", "workers");
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
    text
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
