//! Failures by their causes, and the first results to look at.

use maud::{Markup, html};
use orchestra_core::FailureKind;
use orchestra_launch::FAILURE_RECORDS;

use crate::gather::{LabelledBox, RunReport, SinkSamples, Thumbnail};
use crate::human::{count, counted};

pub fn failures(report: &RunReport) -> Option<Markup> {
    let failed = report.status.items.failed;
    if report.failures.is_empty() && (failed == 0 || report.is_service) {
        return None;
    }
    let shown: u64 = report.failures.iter().map(|group| group.cause.items).sum();
    Some(html! {
        p.lead {
            (counted(failed.max(shown), "item", "items")) " failed, for " (counted(report.failures.len() as u64, "cause", "causes"))
            "; all of them are in " code { (report.folder.join(FAILURE_RECORDS).display()) } "."
        }
        @for group in &report.failures {
            @let cause = &group.cause;
            article.cause {
                h3 { (counted(cause.items, "item", "items")) " at " code { (cause.stage) } ": " (kind(&cause.kind)) }
                pre { (cause.error) }
                p { "The first of them: " code { (cause.item) } "." }
                @if !group.pictures.is_empty() { div.pictures { @for shown in &group.pictures { div { (picture(shown, &[])) p { code { (shown.name) } } } } } }
            }
        }
        @if failed > shown { p { (count(failed - shown)) " for other causes." } }
    })
}

/// A kind of failure, and what it means.
fn kind(name: &str) -> String {
    let Some(kind) = FailureKind::ALL.into_iter().find(|kind| kind.as_str() == name) else {
        return name.to_owned();
    };
    let meaning = match kind {
        FailureKind::Read => "it could not be opened or read",
        FailureKind::Unreachable => "what holds it did not answer",
        FailureKind::Decode => "it could not be decoded",
        FailureKind::TooLarge => "it is larger than `limits` allows",
        FailureKind::Model => "the model or the stage reported an error for it",
        FailureKind::Crash => {
            "it killed each worker that ran it, also alone; `logs/` has what they wrote last"
        }
        FailureKind::Timeout => "it took longer than `limits.item_timeout` or `limits.batch_timeout` allows",
        FailureKind::OutOfMemory => "it does not fit into memory, even alone",
        FailureKind::Result => "its result could not be written as a record",
    };
    format!("{} – {meaning}", name.replace('_', " "))
}

pub fn results(report: &RunReport) -> Option<Markup> {
    (!report.samples.is_empty()).then(|| {
        html! {
            p { "The first records of each sink, as they were written; they are no random sample." }
            @for sink in &report.samples { (of_sink(sink)) }
        }
    })
}

fn of_sink(sink: &SinkSamples) -> Markup {
    html! {
        h3 { "Sink " code { (sink.sink) } " (" (sink.kind) "), in " code { (sink.path.display()) } }
        @if sink.samples.is_empty() {
            p { "It has no records of text: nothing of it is shown here." }
        }
        div.samples {
            @for sample in &sink.samples {
                article.sample {
                    @if let Some(shown) = &sample.picture { (picture(shown, &sample.boxes)) }
                    @if !sample.item.is_empty() { h4 { (sample.item) } }
                    @if !sample.words.is_empty() { p { (sample.words) } }
                    @if sample.words.is_empty() || sample.picture.is_none() { pre { (sample.record) } }
                    @else { details { summary { "record" } pre { (sample.record) } } }
                }
            }
        }
    }
}

/// A picture with boxes over it; a script fits them to its size.
fn picture(shown: &Thumbnail, boxes: &[LabelledBox]) -> Markup {
    html! {
        div.picture {
            img src=(shown.url) alt={ "item " (shown.name) } title=(shown.name);
            @if !boxes.is_empty() {
                svg.boxes aria-hidden="true" preserveAspectRatio="none" {
                    @for LabelledBox { corners: [left, top, right, bottom], label } in boxes {
                        rect x=(left) y=(top) width=((right - left).max(0.0)) height=((bottom - top).max(0.0)) { title { (label) } }
                    }
                }
            }
        }
    }
}
