//! `orchestra verify`: counts the items of a run again, from its files alone. Prints what was found.

use orchestra_launch::{LeftOutCount, Verified};

use crate::args::VerifyArgs;
use crate::exit_code::ExitCode;
use crate::human::{count, counted};
use crate::{Failed, stdout};

/// Counts the items of a run.
pub fn verify(args: &VerifyArgs) -> Result<ExitCode, Failed> {
    let found = orchestra_launch::verify(&args.output, &orchestra_launch::kinds())
        .map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let printed = match args.json {
        true => stdout::print_json(&found),
        false => stdout::print(&text(&found)),
    };
    printed?;
    Ok(if found.counts.is_empty() { ExitCode::Done } else { ExitCode::Bug })
}

fn text(found: &Verified) -> String {
    use orchestra_launch::FaultKind::{Damaged, Doubled, Lost, Stray};
    let mut text = String::new();
    for fault in &found.faults {
        text.push_str(&format!("{fault}\n"));
    }
    let of = |kind| found.counts.get(&kind).copied().unwrap_or(0);
    let named = found.faults.len() as u64;
    let all: u64 = found.counts.values().sum();
    if all > named {
        text.push_str(&format!("... and {} more\n", count(all - named)));
    }
    for sink in &found.not_counted {
        text.push_str(&format!(
            "records of sink `{sink}` are not of items, or cannot be read back: not counted\n"
        ));
    }
    for (source, by_reason) in &found.passed_over {
        text.push_str(&format!("passed over by source `{source}`:\n"));
        for (reason, n) in by_reason {
            text.push_str(&format!("  {reason:<14}{:>12}\n", count(*n)));
        }
    }
    for LeftOutCount { by, what, items, count: n } in &found.left_out {
        let (n, items) = (count(*n), counted(*items, "item", "items"));
        text.push_str(&format!("left out by `{by}`, as run.json says: {what} {n}, of {items}\n"));
    }
    text.push_str(&format!(
        "{}: {} done, {} failed, {}; {} lost, {} doubled, {} stray, {} damaged\n",
        counted(found.items, "item", "items"),
        count(found.done),
        count(found.failed),
        counted(found.records, "record", "records"),
        count(of(Lost)),
        count(of(Doubled)),
        count(of(Stray)),
        count(of(Damaged)),
    ));
    text
}
