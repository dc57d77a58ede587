//! Pictures of graphs: every file in `tests/graphs` against the pictures beside it, and what must hold for any SVG.
//!
//! Run with `UPDATE_REPORTS=1` to write the pictures anew, then look at them.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::FakeHost;
use orchestra_plan::{GraphView, NodeKind, PlanOptions};
use proptest::prelude::*;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs");
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    assert_eq!(files.len(), 3, "{files:?}");
    files
}

/// The view of a file, made without a machine.
fn view(file: &Path) -> GraphView {
    let mut host = FakeHost::with_cores(1);
    host.machine = Err("asked although offline".into());
    let options = PlanOptions { offline: true, ..PlanOptions::default() };
    GraphView::new(&host.good_with(&fs::read_to_string(file).unwrap(), &options))
}

#[test]
fn every_graph_gets_its_pictures() {
    let mut wrong = Vec::new();
    for case in cases() {
        let view = view(&case);
        for (ending, picture) in [("dot", view.to_dot()), ("mmd", view.to_mermaid()), ("svg", view.to_svg())]
        {
            let expected = case.with_extension(ending);
            if std::env::var_os("UPDATE_REPORTS").is_some() {
                fs::write(&expected, &picture).unwrap();
            } else if fs::read_to_string(&expected).unwrap_or_default() != picture {
                wrong.push(format!("{}:\n{picture}", expected.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "pictures differ:\n{}", wrong.join("\n"));
}

#[test]
fn the_view_says_what_flows_and_where_it_runs() {
    let view = view(&cases()[0]);
    let [branches] = &view.pipelines[..] else { panic!("{view:?}") };
    let place =
        |name: &str, kind| branches.nodes.iter().position(|n| n.name == name && n.shape == kind).unwrap();
    let flows = |from: usize, to: usize| {
        &branches.edges.iter().find(|e| (e.from, e.to) == (from, to)).unwrap().tensors[..]
    };
    let find = place("find", NodeKind::Batch);
    assert_eq!(flows(place("mask", NodeKind::Map), find), ["mask: u8[batch, 8, 8, 1]"]);
    assert_eq!(
        flows(find, place("found", NodeKind::Sink)),
        ["scores: f32[batch, 3]", "boxes: f32[batch, ?, 4]"]
    );
    assert_eq!(flows(find, place("what", NodeKind::Map)), ["scores: f32[batch, 3]"]);
    let best = place("best", NodeKind::Map);
    assert_eq!(flows(place("judge", NodeKind::Batch), best), ["f32[batch, 3]"]);
    assert!(flows(best, place("best", NodeKind::Sink)).is_empty());
    assert_eq!(branches.nodes[find].devices, ["auto"]);
    assert_eq!(branches.nodes[place("judge", NodeKind::Batch)].devices, ["cuda:0", "cpu"]);
    assert!(branches.edges.iter().all(|e| e.from < e.to));
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

fn is_tidy(svg: &str) {
    is_well_formed(svg);
    let width = number(svg, "width");
    for pipeline in svg.split("<g ").skip(1) {
        let boxes = boxes(pipeline.split("</g>").next().unwrap());
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
fn texts_stay_in_their_boxes_and_boxes_apart() {
    for case in cases() {
        is_tidy(&view(&case).to_svg());
    }
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
        is_tidy(&view.to_svg());
        let nodes = view.pipelines[0].nodes.len();
        prop_assert_eq!(view.to_dot().matches("shape=").count(), nodes + 1);
        prop_assert_eq!(view.to_mermaid().matches("<b>").count(), nodes);
    }
}
