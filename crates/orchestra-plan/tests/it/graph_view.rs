//! Pictures of graphs: the file in `tests/graphs` against the picture beside it, and what a graph with branches shows.
//!
//! Run with `UPDATE_REPORTS=1` to write the picture anew, then look at it.

use std::fs;
use std::path::Path;

use crate::common::{DIGITS, FakeHost, digits};
use orchestra_plan::{Edge, GraphNode, GraphView, PlanOptions};
use orchestra_testkit::workflow_file::WorkflowFile;
use proptest::prelude::*;

/// Two preparations, a model with two inputs and two outputs, models behind a model, many sinks.
fn branches() -> WorkflowFile {
    let photos = "paths = ['images/2021', 'images/2022', 'images/<old> & \"older\"/*.jpg', 'images/2024']";
    let mask = "size = [8, 8]\ncolor = 'gray'\nlayout = 'nhwc'\ndtype = 'u8'\nfilter = 'nearest'";
    let long = "judge-with-a-name-that-is-longer-than-anybody-would-want";
    WorkflowFile::new()
        .source("photos", "images", photos)
        .model("two", "two.onnx")
        .table("models.features", "path = 'embed.onnx'\ndevices = ['cuda:0', 'cuda:1', 'cuda:2', 'cuda:3']")
        .table("models.head", "path = 'head.onnx'\ndevices = ['cuda:0', 'cpu']")
        .stage("small", "image", "photos", "size = [8, 8]")
        .stage("mask", "image", "photos", mask)
        .table("stages.find", "kind = 'infer'\ninputs = { image = 'small', mask = 'mask' }\nmodel = 'two'")
        .infer("embed", "small", "features")
        .infer("judge", "embed", "head")
        .infer(long, "embed", "head")
        .stage("what", "classify", "find.scores", "")
        .stage("best", "classify", "judge", "top_k = 2\nscores = 'sigmoid'")
        .stage("second", "classify", long, "")
        .sink("found", "jsonl", "find")
        .sink("pixels", "jsonl", "small")
        .sink("what", "jsonl", "what")
        .table("sinks.best", "kind = 'jsonl'\nfrom = 'best'\npath = 'nested/best.jsonl'\nordered = true")
        .sink("second", "jsonl", "second")
}

/// Two pipelines, and a name that has to be escaped.
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
fn a_graph_gets_its_picture() {
    let (file, text) = pipelines();
    let view = view(&text);
    let (picture, expected) = (view.to_mermaid(), file.with_extension("mmd"));
    if std::env::var_os("UPDATE_REPORTS").is_some() {
        fs::write(&expected, &picture).unwrap();
    }
    assert_eq!(fs::read_to_string(&expected).unwrap(), picture, "{}", expected.display());
}

#[test]
fn the_view_says_what_flows_and_where_it_runs() {
    let view = view(&branches());
    let [branches] = &view.pipelines[..] else { panic!("{view:?}") };
    let node = |node: &GraphNode| {
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
fn long_texts_are_shortened_and_all_tensors_of_an_edge_are_shown() {
    let picture = view(&branches()).to_mermaid();
    for shown in [
        "and 2 more",
        "4 devices",
        "cuda:0 … cuda:3",
        "devices cuda:0, cpu",
        "in the source's order",
        "r-than-anybody-would-want",
        "\"scores: f32[batch, 3]<br/>boxes: f32[batch, ?, 4]\"",
        "p0n3 -->|\"scores",
        "p0n7 --> p0n12",
        "p0n13[(\"sink <b>best</b>",
    ] {
        assert!(picture.contains(shown), "{shown}: {picture}");
    }
    assert!(!picture.contains("with-a-name"), "{picture}");
    assert!(!picture.contains("subgraph"), "one pipeline needs no frame: {picture}");
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
    fn a_picture_of_any_bush_has_each_node_and_edge_once(
        // No `$`, with which a variable begins.
        name in "[ -#%-~äß日]{0,59}[!-#%-~äß日]",
        shape in proptest::collection::vec(proptest::collection::vec(1usize..4, 0..4), 1..5),
    ) {
        let host = FakeHost::with_cores(2);
        let text = bush(&name, &shape);
        let plan = host.good(&text);
        let view = GraphView::new(&plan);
        let pipeline = &view.pipelines[0];
        let picture = view.to_mermaid();
        // The title may hold anything.
        let picture = picture.split_once("\nflowchart LR\n").unwrap().1;
        prop_assert_eq!(picture.matches("<b>").count(), pipeline.nodes.len());
        prop_assert_eq!(picture.matches("-->").count(), pipeline.edges.len());
        prop_assert!(!picture.chars().any(|c| c.is_control() && c != '\n'));
    }
}
