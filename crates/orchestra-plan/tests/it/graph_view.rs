//! Pictures of graphs: the file in `tests/graphs` against the pictures beside it, what a graph with branches shows, and what must hold for any
//! SVG.
//!
//! Run with `UPDATE_REPORTS=1` to write the pictures anew, then look at them.

use std::fs;
use std::path::Path;

use crate::common::{DIGITS, FakeHost, digits};
use orchestra_plan::{Edge, GraphView, Node, PlanOptions};
use proptest::prelude::*;

/// Two preparations, a model with two inputs and two outputs, models behind a model, many sinks.
const BRANCHES: &str = r#"
version = 1
name = "branches"
[sources.photos]
kind = "images"
paths = ["images/2021", "images/2022", "images/<old> & \"older\"/*.jpg", "images/2024"]
[models.two]
path = "two.onnx"
[models.features]
path = "embed.onnx"
devices = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
[models.head]
path = "head.onnx"
devices = ["cuda:0", "cpu"]
[stages.small]
kind = "image"
from = "photos"
size = [8, 8]
[stages.mask]
kind = "image"
from = "photos"
size = [8, 8]
color = "gray"
layout = "nhwc"
dtype = "u8"
filter = "nearest"
[stages.find]
kind = "infer"
inputs = { image = "small", mask = "mask" }
model = "two"
[stages.embed]
kind = "infer"
from = "small"
model = "features"
[stages.judge]
kind = "infer"
from = "embed"
model = "head"
[stages.judge-with-a-name-that-is-longer-than-anybody-would-want]
kind = "infer"
from = "embed"
model = "head"
[stages.what]
kind = "classify"
from = "find.scores"
[stages.best]
kind = "classify"
from = "judge"
top_k = 2
scores = "sigmoid"
[stages.second]
kind = "classify"
from = "judge-with-a-name-that-is-longer-than-anybody-would-want"
[sinks.found]
kind = "jsonl"
from = "find"
[sinks.pixels]
kind = "jsonl"
from = "small"
[sinks.what]
kind = "jsonl"
from = "what"
[sinks.best]
kind = "jsonl"
from = "best"
path = "nested/best.jsonl"
ordered = true
[sinks.second]
kind = "jsonl"
from = "second"
"#;

/// Two pipelines, and a name that every format has to escape.
fn pipelines() -> (std::path::PathBuf, String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs/pipelines.toml");
    (file.clone(), fs::read_to_string(file).unwrap())
}

/// The view of a file, made without a machine.
fn view(text: &str) -> GraphView {
    let mut host = FakeHost::with_cores(1);
    host.machine = Err("asked although offline".into());
    let options = PlanOptions { offline: true, ..PlanOptions::default() };
    GraphView::new(&host.good_with(text, &options))
}

#[test]
fn a_graph_gets_its_pictures() {
    let (file, text) = pipelines();
    let view = view(&text);
    for (ending, picture) in [("mmd", view.to_mermaid()), ("svg", view.to_svg())] {
        let expected = file.with_extension(ending);
        if std::env::var_os("UPDATE_REPORTS").is_some() {
            fs::write(&expected, &picture).unwrap();
        }
        assert_eq!(fs::read_to_string(&expected).unwrap(), picture, "{}", expected.display());
    }
}

#[test]
fn the_view_says_what_flows_and_where_it_runs() {
    let view = view(BRANCHES);
    let [branches] = &view.pipelines[..] else { panic!("{view:?}") };
    let node = |node: &Node| {
        let (details, devices) = (node.details.join(", "), node.devices.join(" "));
        format!("{:?} {} {}: {details}; {devices}", node.shape, node.kind, node.name)
    };
    let edge = |edge: &Edge| {
        let [from, to] = [edge.from, edge.to].map(|at| &branches.nodes[at].name);
        format!("{from} -> {to}: {}", edge.tensors.join(" and "))
    };
    let nodes = [
        "Source source photos: images/2021, images/2022, images/<old> & \"older\"/*.jpg, images/2024; ",
        "Map image small: 8 x 8 rgb, stretch, bilinear; ",
        "Map image mask: 8 x 8 gray, stretch, nearest; ",
        "Batch infer find: model two; auto",
        "Batch infer embed: model features; cuda:0 cuda:1 cuda:2 cuda:3",
        "Batch infer judge: model head; cuda:0 cpu",
        "Batch infer judge-with-a-name-that-is-longer-than-anybody-would-want: model head; cuda:0 cpu",
        "Map classify what: best 1, softmax; ",
        "Map classify best: best 2, sigmoid; ",
        "Map classify second: best 1, softmax; ",
        "Sink sink found: found.jsonl; ",
        "Sink sink pixels: pixels.jsonl; ",
        "Sink sink what: what.jsonl; ",
        "Sink sink best: nested/best.jsonl, in the source's order; ",
        "Sink sink second: second.jsonl; ",
    ];
    assert_eq!(branches.nodes.iter().map(node).collect::<Vec<_>>(), nodes);
    let edges = [
        "photos -> small: ",
        "photos -> mask: ",
        "small -> find: image: f32[batch, 3, 8, 8]",
        "mask -> find: mask: u8[batch, 8, 8, 1]",
        "small -> embed: f32[batch, 3, 8, 8]",
        "embed -> judge: f32[batch, 16]",
        "embed -> judge-with-a-name-that-is-longer-than-anybody-would-want: f32[batch, 16]",
        "find -> what: scores: f32[batch, 3]",
        "judge -> best: f32[batch, 3]",
        "judge-with-a-name-that-is-longer-than-anybody-would-want -> second: f32[batch, 3]",
        "find -> found: scores: f32[batch, 3] and boxes: f32[batch, ?, 4]",
        "small -> pixels: f32[batch, 3, 8, 8]",
        "what -> what: ",
        "best -> best: ",
        "second -> second: ",
    ];
    assert_eq!(branches.edges.iter().map(edge).collect::<Vec<_>>(), edges);
    assert!(branches.edges.iter().all(|edge| edge.from < edge.to));
    let of_a_list = digits(&[("paths = [\"images/*.png\"]", "manifest = \"list.csv\"")]);
    assert_eq!(self::view(&of_a_list).pipelines[0].nodes[0].details, ["list list.csv"]);
    assert_eq!(self::view(DIGITS).pipelines[0].nodes[2].devices, ["auto"]);
}

#[test]
fn each_format_shows_long_texts_shortened_and_all_tensors_of_an_edge() {
    let view = view(BRANCHES);
    for (picture, line_end) in [(view.to_mermaid(), "<br/>"), (view.to_svg(), "")] {
        for shown in
            ["and 2 more", "4 devices", "cuda:0 … cuda:3", "devices cuda:0, cpu", "in the source's order"]
        {
            assert!(picture.replace("&apos;", "'").contains(shown), "{shown}: {picture}");
        }
        assert!(
            picture.contains("r-than-anybody-would-want") && !picture.contains("with-a-name"),
            "{picture}"
        );
        let both = format!("\"scores: f32[batch, 3]{line_end}boxes: f32[batch, ?, 4]\"");
        assert_eq!(picture.contains(&both), !line_end.is_empty(), "{picture}");
    }
    let frames = [view.to_mermaid().contains("subgraph"), view.to_svg().contains("rx=\"8\"")];
    assert_eq!(frames, [false; 2], "one pipeline needs no frame");
    for place in ["p0n3 -->|\"scores", "p0n7 --> p0n12", "p0n13[(\"sink <b>best</b>"] {
        assert!(view.to_mermaid().contains(place), "{place}");
    }
}

/// The value of an attribute of the element `tag`.
fn number(tag: &str, name: &str) -> f64 {
    let rest = tag.split(&format!(" {name}=\"")).nth(1).unwrap_or_else(|| panic!("no `{name}`: {tag}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

/// Elements of a picture, in order: start tag without `<` and `>`, and the text behind it.
fn elements(svg: &str) -> Vec<(&str, &str)> {
    svg.split('<').skip(1).map(|e| e.split_once('>').unwrap_or_else(|| panic!("`<{e}` has no end"))).collect()
}

/// Every element is closed, every attribute quoted, and every `&` begins one of the five entities.
fn is_well_formed(svg: &str) {
    let mut open = Vec::new();
    for (tag, text) in elements(svg) {
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;", "apos;"].iter().any(|e| entity.starts_with(e)), "{text}");
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!svg.chars().any(|c| c.is_control() && c != '\n'));
}

/// Boxes of one pipeline as left, top, right and bottom, each with its lines of text and their right ends as a font with columns of
/// 0.602 of its size draws them.
fn boxes(pipeline: &str) -> Vec<([f64; 4], f64)> {
    let mut found: Vec<([f64; 4], f64)> = Vec::new();
    for (tag, text) in elements(pipeline) {
        if tag.starts_with("rect") && tag.contains("fill=\"#") {
            let (x, y) = (number(tag, "x"), number(tag, "y"));
            found.push(([x, y, x + number(tag, "width"), y + number(tag, "height")], x));
        } else if let (true, Some(last)) = (tag.starts_with("text"), found.last_mut()) {
            let [left, top, _, bottom] = last.0;
            assert!(number(tag, "x") >= left && number(tag, "y") > top && number(tag, "y") < bottom, "{tag}");
            let text = text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
            let text = text.replace("&quot;", "\"").replace("&apos;", "'");
            let end = number(tag, "x") + text.chars().count() as f64 * number(tag, "font-size") * 0.602;
            last.1 = last.1.max(end);
        }
    }
    found
}

/// The first point of a line, and the tip of its arrow.
fn lines(pipeline: &str) -> Vec<[[f64; 2]; 2]> {
    let point = |tag: &str, before: &str| -> [f64; 2] {
        let rest = tag.split(before).nth(1).unwrap().split(|c: char| c == ' ' || c.is_ascii_alphabetic());
        let numbers: Vec<f64> = rest.take(2).map(|number| number.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    let paths: Vec<&str> =
        elements(pipeline).iter().map(|e| e.0).filter(|tag| tag.starts_with("path")).collect();
    paths.chunks(2).map(|path| [point(path[0], "d=\"M"), point(path[1], "L")]).collect()
}

fn is_tidy(view: &GraphView) {
    let svg = &view.to_svg()[..];
    is_well_formed(svg);
    let width = number(svg, "width");
    for (pipeline, view) in svg.split("<g ").skip(1).zip(&view.pipelines) {
        let pipeline = pipeline.split("</g>").next().unwrap();
        let boxes = boxes(pipeline);
        let lines = lines(pipeline);
        assert_eq!((boxes.len(), lines.len()), (view.nodes.len(), view.edges.len()));
        for (edge, [[x, y], [tip_x, tip_y]]) in view.edges.iter().zip(lines) {
            let ([_, top, right, bottom], [left, to_top, _, to_bottom]) =
                (boxes[edge.from].0, boxes[edge.to].0);
            let off = [
                x - right,
                y - f64::midpoint(top, bottom),
                tip_x - left,
                tip_y - f64::midpoint(to_top, to_bottom),
            ];
            assert!(off.iter().all(|off| off.abs() < 0.2), "{edge:?} leads elsewhere, by {off:?}:\n{svg}");
        }
        for (i, ([left, top, right, bottom], text_end)) in boxes.iter().enumerate() {
            assert!(text_end < right, "text stands over the edge of box {i}:\n{svg}");
            assert!(*left >= 0.0 && *top >= -0.1 && *right <= width, "box {i} is outside:\n{svg}");
            for ([l, t, r, b], _) in &boxes[i + 1..] {
                assert!(right < l || r < left || bottom < t || b < top, "boxes overlap:\n{svg}");
            }
        }
    }
}

#[test]
fn texts_stay_in_their_boxes_boxes_apart_and_lines_between_them() {
    is_tidy(&view(BRANCHES));
    is_tidy(&view(&pipelines().1));
}

/// A workflow with some preparations, models on each, and results of each model.
fn bush(name: &str, shape: &[Vec<usize>]) -> String {
    let mut text = format!(
        "version = 1\nname = {name:?}\n[sources.s]\nkind = \"images\"\npaths = [\"images\"]\n[models.m]\npath = \"digits.onnx\"\n"
    );
    for (i, models) in shape.iter().enumerate() {
        text +=
            &format!("[stages.i{i}]\nkind = \"image\"\nfrom = \"s\"\nsize = [32, 32]\ncolor = \"gray\"\n");
        text += &format!("[sinks.p{i}]\nkind = \"jsonl\"\nfrom = \"i{i}\"\n");
        for (j, sinks) in models.iter().enumerate() {
            text += &format!("[stages.m{i}x{j}]\nkind = \"infer\"\nfrom = \"i{i}\"\nmodel = \"m\"\n");
            for k in 0..*sinks {
                text += &format!("[sinks.r{i}x{j}x{k}]\nkind = \"jsonl\"\nfrom = \"m{i}x{j}\"\n");
            }
        }
    }
    text
}

proptest! {
    #[test]
    fn any_bush_is_drawn_tidily(
        // No `$`, with which a variable begins.
        name in "[ -#%-~äß日]{0,59}[!-#%-~äß日]",
        shape in proptest::collection::vec(proptest::collection::vec(1usize..4, 0..4), 1..5),
    ) {
        let host = FakeHost::with_cores(2);
        let text = bush(&name, &shape);
        let plan = host.good(&text);
        let view = GraphView::new(&plan);
        is_tidy(&view);
        let nodes = view.pipelines[0].nodes.len();
        prop_assert_eq!(view.to_mermaid().matches("<b>").count(), nodes);
    }
}
