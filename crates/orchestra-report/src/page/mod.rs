//! The page: its frame, and its sections in their order. Every value passes through `maud`, which escapes it, or [`json`].

mod account;
mod chart;
mod compare;
mod graph;
pub mod measures;
mod pace;
mod results;
mod settings;
mod table;
mod tasks;
mod timeline;

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::compare::RunComparison;
use crate::gather::RunReport;

/// The library that draws curves, with its style, and what of the page is ours.
const PLOTS: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const SCRIPT: &str = include_str!("../../assets/page.js");
const PLOTS_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const STYLE: &str = include_str!("../../assets/page.css");

/// A part of the page; `None` where the run has nothing for it.
struct Section {
    id: &'static str,
    title: &'static str,
    body: Option<Markup>,
}

/// The page of a run as one file, which asks for nothing.
pub fn page(report: &RunReport) -> String {
    let sections = sections(report);
    frame(&title(report), PageKind::File, whole(report, &sections, PageKind::File)).into_string()
}

/// The page of a run that goes on: it asks `events` beside it for [`parts`].
pub fn live_page(report: &RunReport) -> String {
    let sections = sections(report);
    let body = html! {
        p #live role="status" { "" }
        (whole(report, &sections, PageKind::Events))
    };
    frame(&title(report), PageKind::Events, body).into_string()
}

/// The parts of the page of a run by their ids, as a live page takes them; a part without anything is empty.
pub fn parts(report: &RunReport) -> BTreeMap<&'static str, String> {
    let sections = sections(report);
    let ends = [("top", top(report, &sections)), ("end", end(report, &sections))];
    let bodies = sections.iter().map(|section| (section.id, inner(section)));
    ends.into_iter().chain(bodies).map(|(id, part)| (id, part.into_string())).collect()
}

/// Runs with their addresses and folders, as a list.
pub fn list_page(runs: Vec<(String, PathBuf, Option<RunReport>)>) -> String {
    let row = |(address, folder, run): &(String, PathBuf, Option<RunReport>)| {
        let link = table::markup(html! { a href=(address) { (folder.display()) } });
        let Some(run) = run else { return vec![link, table::text(""), table::text("cannot be read")] };
        let items = &run.status.items;
        let cells = [
            table::text(&run.status.workflow),
            table::text(account::state(run)),
            table::count(items.done),
            table::count(items.failed),
        ];
        std::iter::once(link).chain(cells).collect()
    };
    let rows = runs.iter().map(row).collect();
    let body = html! {
        header { h1 { "Runs" } }
        main { (table::table("Runs", &["folder", "workflow", "state", "done", "failed"], rows)) }
    };
    frame("Runs", PageKind::File, body).into_string()
}

fn title(report: &RunReport) -> String {
    format!("{} · {}", report.status.workflow, account::state(report))
}

/// What a server may send later has its place from the beginning.
fn whole(report: &RunReport, sections: &[Section], kind: PageKind) -> Markup {
    html! {
        header #top { (top(report, sections)) }
        main {
            @for section in sections.iter().filter(|section| section.body.is_some() || kind == PageKind::Events) {
                section id=(section.id) aria-labelledby={ (section.id) "-title" } hidden[section.body.is_none()] { (inner(section)) }
            }
        }
        footer #end { (end(report, sections)) }
    }
}

fn top(report: &RunReport, sections: &[Section]) -> Markup {
    html! {
        h1 { (report.status.workflow) }
        (account::verdict(report))
        nav aria-label="Sections" {
            @for section in sections.iter().filter(|section| section.body.is_some()) {
                a href={ "#" (section.id) } { (section.title) } " "
            }
        }
    }
}

fn inner(section: &Section) -> Markup {
    html! {
        @if let Some(body) = &section.body {
            h2 id={ (section.id) "-title" } { (section.title) }
            (body)
        }
    }
}

/// The page of two runs, as one file.
pub fn compared_page(comparison: &RunComparison) -> String {
    frame("Two runs side by side", PageKind::File, compare::compared(comparison)).into_string()
}

fn sections(report: &RunReport) -> [Section; 13] {
    let section = |id, title, body| Section { id, title, body };
    [
        section("account", "Account", (!report.is_service).then(|| account::account(report))),
        section("pace", "What set the pace", pace::pace(report)),
        section("timeline", "Timeline", timeline::timeline(report)),
        section("rates", "Rates and queues", measures::rates(report)),
        section("batches", "Batches", measures::batches(report)),
        section("latency", "Latency", measures::latency(report)),
        section("machine", "CPU, memory and GPUs", measures::machine(report)),
        section("tasks", "Tasks", tasks::tasks(report)),
        section("failures", "Failures", results::failures(report)),
        section("results", "First results", results::results(report)),
        section("graph", "The graph", graph::graph(report)),
        section(
            "settings",
            "Settings and versions",
            (!report.is_service).then(|| settings::settings(report)),
        ),
        section("next", "How to go on", (!report.is_service).then(|| settings::next(report))),
    ]
}

fn end(report: &RunReport, sections: &[Section]) -> Markup {
    let missing: Vec<&str> =
        sections.iter().filter(|section| section.body.is_none()).map(|section| section.title).collect();
    html! {
            @if !missing.is_empty() && !report.is_service {
                p { "Not shown, because this run has nothing for them: " (missing.join(", ")) "." }
            }
            @for sentence in &report.left_out { p { (sentence) } }
            p {
                "Figures over time are samples: at most 512 statuses over all starts, evenly thinned. Counts and distributions are of every item and batch. \
                 This page is one file and asks for nothing from the network."
            }
    }
}

/// Where a page has its contents from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    /// Itself alone.
    File,
    /// Also what a server sends it.
    Events,
}

fn frame(title: &str, kind: PageKind, body: Markup) -> Markup {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let connects = if kind == PageKind::Events { "connect-src 'self'; " } else { "" };
    let policy = format!(
        "default-src 'none'; {connects}img-src data:; script-src {} {}; style-src {} {}; base-uri 'none'; form-action 'none'",
        hash(PLOTS),
        hash(SCRIPT),
        hash(PLOTS_STYLE),
        hash(STYLE)
    );
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(PLOTS_STYLE)) }
                style { (PreEscaped(STYLE)) }
            }
            body data-events=[(kind == PageKind::Events).then_some("events")] {
                (body)
                script { (PreEscaped(PLOTS)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// Data for a script: nothing in it ends the element that it stands in.
fn json(value: &impl Serialize) -> PreEscaped<String> {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    PreEscaped(text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}
