//! A measurement as a table and a few sentences. Formats only.

use std::fmt::Write as _;

use orchestra_bench::{Advice, Measured, Pace, Report, RungReport, Spread, Tuned};

use crate::columns::{Row, aligned};
use crate::human::{count, counted, per_second, short_time};

/// Others that take more than this part of the cores are worth a word.
const NOISY: f64 = 0.05;

/// Everything that a person wants to know.
pub fn table(report: &Report) -> String {
    let rounds = counted(report.rounds.len() as u64, "round", "rounds");
    let title = format!(
        "{}: {} of {} items, {}, {rounds}",
        report.workflow,
        count(report.items),
        count(report.items_total),
        counted(report.cores as u64, "core", "cores"),
    );
    let mut rows = vec![Row::new(title, ["median", "min", "max"].map(String::from))];
    parts(report, &mut rows);
    whole(report, &mut rows);
    let mut text = aligned(&rows);
    notes(report, &mut text);
    if let Some(tuned) = &report.tune {
        tuning(tuned, &mut text);
    }
    text
}

/// One line per stage, size and device.
pub fn rungs(report: &RungReport) -> String {
    let mut rows = vec![Row::new(
        report.workflow.clone(),
        ["items/s", "time of a batch", "of the first", "behind another size"].map(String::from),
    )];
    for rung in &report.rungs {
        let workers = counted(rung.workers as u64, "worker", "workers");
        let label = format!("infer {} on {}: {workers}, batches of {}", rung.stage, rung.device, rung.batch);
        let batch_seconds = (rung.batch * rung.workers) as f64 / rung.items_per_second.max(f64::MIN_POSITIVE);
        let [usual, first] = [batch_seconds, rung.first_batch_seconds].map(short_time);
        let switched = rung.switched_batch_seconds.map(short_time).unwrap_or_default();
        rows.push(Row::new(label, [per_second(rung.items_per_second), usual, first, switched]));
    }
    aligned(&rows)
}

fn row(label: impl Into<String>, spread: &Spread, format: impl Fn(f64) -> String) -> Row {
    Row::new(label, [spread.median, spread.min, spread.max].map(format))
}

fn parts(report: &Report, rows: &mut Vec<Row>) {
    for part in &report.decode {
        let threads = counted(part.threads as u64, "thread", "threads");
        rows.push(row(
            format!("decode {}: {threads}, items/s", part.source),
            &part.items_per_second,
            per_second,
        ));
        rows.push(row("  per core, items/s", &part.items_per_second_per_core, per_second));
        rows.push(row("  time of a core per item", &part.core_seconds_per_item, short_time));
    }
    for part in &report.infer {
        let workers = counted(part.workers as u64, "worker", "workers");
        let threads = counted(part.threads as u64, "thread", "threads");
        let at_once = if part.streams > 1 { format!(", {} at once", part.streams) } else { String::new() };
        let label = format!(
            "infer {} on {}: {workers} of {threads}{at_once}, batches of {}, items/s",
            part.stage, part.device, part.batch
        );
        rows.push(row(label, &part.items_per_second, per_second));
        if let (Some(rate), Some(time)) = (&part.items_per_second_per_core, &part.core_seconds_per_item) {
            rows.push(row("  per core, items/s", rate, per_second));
            rows.push(row("  time of a core per item", time, short_time));
        }
    }
}

fn whole(report: &Report, rows: &mut Vec<Row>) {
    let run = &report.run;
    rows.push(row(format!("limit, set by {}, items/s", report.limited_by), &report.limit, per_second));
    let label = match run.measured {
        Measured::Steady => "run, in its steady state, items/s",
        Measured::Whole => "run, from start to end, items/s",
    };
    rows.push(row(label, &run.items_per_second, per_second));
    rows.push(row("run / limit", &report.ratio_spread, |r| format!("{r:.3}")));
    if let Some(ratio) = &report.ratio_by_cpu_time {
        rows.push(row("  the same by CPU time, whatever else runs here", ratio, |r| format!("{r:.3}")));
    }
    if run.measured == Measured::Steady {
        rows.push(row("  from start to end, items/s", &run.whole_items_per_second, per_second));
    }
    rows.push(row("  from start to end", &run.seconds, short_time));
    rows.push(row("  of that, until the first batch was done", &run.seconds_starting, short_time));
    rows.push(row("  CPU time per item", &run.cpu_seconds_per_item, short_time));
    rows.push(row("  of that, decoding and inference", &run.useful_cpu_share, |s| {
        format!("{:.1}%", s * 100.0)
    }));
    rows.push(row("  of that, anything else", &run.overhead_seconds_per_item, short_time));
}

fn notes(report: &Report, text: &mut String) {
    text.push('\n');
    let mut say = |head: &str, what: &str| {
        let _ = writeln!(text, "{head:<9} {what}");
    };
    if report.items_unreadable > 0 {
        let failed = counted(report.items_unreadable, "item", "items");
        say("skipped", &format!("{failed} of {} cannot be read or decoded", count(report.items)));
    }
    if let Some(others) = report.run.others_share.as_ref().filter(|o| o.median > NOISY) {
        let share =
            format!("other programs took {:.0}% of the cores during the runs: ", others.median * 100.0);
        say("noise", &(share + "rates and run / limit are those of a busy machine"));
    }
    say("pace", pace(report.bottleneck));
    for advice in &report.advice {
        say("change", &change(advice));
    }
}

fn pace(pace: Pace) -> &'static str {
    match pace {
        Pace::Loading => "loading: reading and decoding keep the cores busy",
        Pace::Inference => "inference: the models set it",
        Pace::Cpu => "cpu: decoding and the models share the cores",
        Pace::Sinks => "sinks: results are not written fast enough",
        Pace::Overhead => "overhead: neither decoding nor the models are near their limits",
    }
}

fn change(advice: &Advice) -> String {
    let mut text = match (&advice.key, &advice.value, &advice.now) {
        (Some(key), Some(value), Some(now)) => format!("{key} = {value} (now {now}): {}", advice.why),
        _ => advice.why.clone(),
    };
    if let Some(limit) = advice.expected_limit {
        let _ = write!(text, " [limit then: {} items/s]", per_second(limit));
    }
    text
}

fn tuning(tuned: &Tuned, text: &mut String) {
    let _ = writeln!(text, "\ntried");
    for trial in &tuned.trials {
        let outcome = match (&trial.best, &trial.tried) {
            (Some(best), Some(tried)) => format!(
                "{} items/s against {}{}",
                per_second(tried.median),
                per_second(best.median),
                if trial.taken { ": better" } else { "" }
            ),
            _ => "cannot be run".to_owned(),
        };
        let _ = writeln!(text, "  {} = {}: {outcome}", trial.key, trial.value);
    }
    if tuned.settings.is_empty() {
        let _ = writeln!(text, "the present settings are the best of those tried");
    } else {
        let _ = writeln!(text, "best, {:.2} times as fast:", tuned.gain);
        for s in &tuned.settings {
            let _ = writeln!(text, "  {} = {} (now {})", s.key, s.value, s.now);
        }
    }
    if tuned.ran_out {
        let _ = writeln!(text, "there were no trials left: more of them (`--trials`) may find more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_key_value_and_what_the_limit_would_be() {
        let advice = Advice {
            key: Some("limits.loaders".into()),
            now: Some("1".into()),
            value: Some("4".into()),
            expected_limit: Some(1234.0),
            why: "too few".into(),
        };
        assert_eq!(change(&advice), "limits.loaders = 4 (now 1): too few [limit then: 1,234 items/s]");
    }
}
