//! The graph of a workflow as a picture, with what went along each edge.

use std::collections::BTreeMap;

use maud::{Markup, html};
use orchestra_launch::plan::{NodeKind, PipelineView};

use crate::gather::RunReport;
use crate::human::count;

const WIDTH: usize = 190;
const HEIGHT: usize = 44;
/// From one node to the next, down and to the side.
const DOWN: usize = 72;
const ASIDE: usize = 250;
/// Characters of a name that fit into a node.
const NAME: usize = 24;

pub fn graph(report: &RunReport) -> Option<Markup> {
    let pipelines: Vec<&PipelineView> =
        report.plan.pipelines.iter().filter(|pipeline| !pipeline.nodes.is_empty()).collect();
    (!pipelines.is_empty()).then(|| {
        html! {
            p { "Numbers are rows that went along." }
            @for pipeline in pipelines { div.graph tabindex="0" role="group" aria-label={ "Graph of " (pipeline.name) } { (draw(report, pipeline)) } }
        }
    })
}

/// Rows that a node gave; `None` for a sink.
fn given(report: &RunReport, pipeline: &PipelineView, node: usize) -> Option<u64> {
    let node = &pipeline.nodes[node];
    match node.shape {
        NodeKind::Source => report.status.sources.get(&node.name).copied().flatten(),
        NodeKind::Sink => None,
        _ => report.status.stages.iter().find(|stage| stage.name == node.name).map(|stage| stage.out),
    }
}

/// The row and the place in it of each node: below everything that it reads from.
fn places(pipeline: &PipelineView) -> Vec<(usize, usize)> {
    let mut rows = vec![0; pipeline.nodes.len()];
    // The taker of an edge always stands behind the giver.
    let mut edges: Vec<_> = pipeline.edges.iter().collect();
    edges.sort_by_key(|edge| edge.to);
    for edge in edges {
        if edge.from < rows.len() && edge.to < rows.len() {
            rows[edge.to] = rows[edge.to].max(rows[edge.from] + 1);
        }
    }
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let place = |row: usize| {
        let n = taken.entry(row).or_default();
        *n += 1;
        (row, *n - 1)
    };
    rows.into_iter().map(place).collect()
}

fn draw(report: &RunReport, pipeline: &PipelineView) -> Markup {
    let places = places(pipeline);
    let at = |node: usize| (places[node].1 * ASIDE + 4, places[node].0 * DOWN + 4);
    let width = places.iter().map(|(_, aside)| aside * ASIDE).max().unwrap_or(0) + WIDTH + 70;
    let height = places.iter().map(|(row, _)| row * DOWN).max().unwrap_or(0) + HEIGHT + 8;
    let edges = pipeline.edges.iter().filter(|edge| edge.from < places.len() && edge.to < places.len());
    let edges: Vec<_> = edges
        .map(|edge| {
            let ((x, y), (to_x, to_y)) = (at(edge.from), at(edge.to));
            let (x, y, to_x) = (x + WIDTH / 2, y + HEIGHT, to_x + WIDTH / 2);
            // One that passes others by goes around them.
            let side = if places[edge.to].0 > places[edge.from].0 + 1 { WIDTH / 2 + 30 } else { 0 };
            let (below, above) = (y + 20, to_y.saturating_sub(20));
            let path = match side {
                0 => format!("M{x} {y}C{x} {below} {to_x} {above} {to_x} {to_y}"),
                side => {
                    let aside = x.max(to_x) + side;
                    format!("M{x} {y}C{x} {below} {aside} {y} {aside} {below}L{aside} {above}C{aside} {to_y} {to_x} {above} {to_x} {to_y}")
                }
            };
            (path, (x + to_x) / 2, (y + y + DOWN - HEIGHT) / 2 + 4, given(report, pipeline, edge.from), edge.tensors.join(", "))
        })
        .collect();
    let cut = |name: &str| match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    html! {
        svg role="img" aria-label={ "Graph: " (in_words(pipeline)) } width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
            @for (path, x, y, n, tensors) in &edges {
                path.edge d=(path) { title { (tensors) } }
                @if let Some(n) = n { text.count x=(x + 6) y=(y) { (count(*n)) } }
            }
            @for (node, view) in pipeline.nodes.iter().enumerate() {
                @let (x, y) = at(node);
                g.node.(view.kind.chars().filter(char::is_ascii_alphanumeric).collect::<String>()) {
                    title { (view.name) ", " (view.kind) @for detail in &view.details { "; " (detail) } }
                    rect x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="6" {}
                    text x=(x + 8) y=(y + 18) { (cut(&view.name)) }
                    text.kind x=(x + 8) y=(y + 35) { (cut(&view.kind)) @if !view.devices.is_empty() { " · " (cut(&view.devices.join(", "))) } }
                }
            }
        }
    }
}

fn in_words(pipeline: &PipelineView) -> String {
    let name = |node: usize| pipeline.nodes.get(node).map_or("", |node| node.name.as_str());
    let edges = pipeline.edges.iter().map(|edge| format!("{} to {}", name(edge.from), name(edge.to)));
    edges.collect::<Vec<_>>().join(", ")
}
