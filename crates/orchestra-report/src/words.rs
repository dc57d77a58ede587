//! Sentences about a run that the summary of a command and the page share.

use orchestra_launch::{Bottleneck, RunStatus, StagePace};

use crate::human::counted;

/// A word as a shell takes it for one.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What set the pace, and what would change it; `None` where too little ran to tell.
pub fn pace_in_words(report: &RunStatus) -> Option<String> {
    let percent = |part: f64| (part * 100.0).round();
    let busiest = report.pace.as_ref().map(|StagePace { stage, workers, busy, cores_idle, .. }| {
        let workers = counted(*workers, "worker was", "workers were");
        format!(
            "`{stage}`: its {workers} busy {} %, and the run used {} % of the cores",
            percent(*busy),
            percent(1.0 - cores_idle)
        )
    });
    let set = report.pace.as_ref().map_or(&[][..], |pace| &pace.set);
    let set = set.iter().map(|set| format!(" --set {}", shell_word(set))).collect::<String>();
    Some(match (report.bottleneck, busiest) {
        (Bottleneck::Unknown, _) => return None,
        (Bottleneck::Inference, Some(busiest)) if set.is_empty() => {
            format!("set by {busiest}; a faster model or script helps, or more cores or devices")
        }
        (Bottleneck::Inference, Some(busiest)) => format!("set by {busiest};{set} helps"),
        (Bottleneck::Handover, Some(busiest)) => {
            format!("set by no part alone; the busiest was {busiest}")
        }
        (Bottleneck::Inference | Bottleneck::Handover, None) => return None,
        (Bottleneck::Loading, _) => {
            "set by reading and decoding: the models waited for items; smaller files help".into()
        }
        (Bottleneck::Cpu, _) => {
            "set by the processor: decoding and models keep its cores busy; more cores help".into()
        }
        (Bottleneck::Sinks, _) => {
            "set by writing results: loaders and models waited for it; a faster disk or smaller records help"
                .into()
        }
    })
}
