//! The DOT language of Graphviz. It lays nothing out: `dot` does.

use std::fmt::{self, Write};

use super::{GraphView, Node, NodeKind, PipelineView, text};

const HEAD: &str = "  graph [rankdir=LR, labelloc=t, fontname=\"Helvetica\", nodesep=0.3, ranksep=0.6];
  node [fontname=\"Helvetica\", fontsize=11, shape=box, style=filled, fillcolor=\"#f4f5f7\", color=\"#787c82\"];
  edge [fontname=\"Helvetica\", fontsize=10, color=\"#787c82\"];
";

pub(super) fn render(view: &GraphView) -> String {
    let mut out = String::new();
    write(&mut out, view).expect("a string takes any text");
    out
}

fn write(out: &mut String, view: &GraphView) -> fmt::Result {
    writeln!(out, "digraph {} {{", quoted(&[&view.name]))?;
    out.push_str(HEAD);
    writeln!(out, "  label={};", quoted(&[&view.name]))?;
    for (number, pipeline) in view.pipelines.iter().enumerate() {
        if let [_] = view.pipelines[..] {
            write_pipeline(out, number, pipeline, "  ")?;
        } else {
            writeln!(out, "  subgraph cluster_{number} {{")?;
            writeln!(out, "    label={};", quoted(&[&format!("pipeline {}", pipeline.name)]))?;
            write_pipeline(out, number, pipeline, "    ")?;
            out.push_str("  }\n");
        }
    }
    out.push_str("}\n");
    Ok(())
}

fn write_pipeline(out: &mut String, number: usize, pipeline: &PipelineView, indent: &str) -> fmt::Result {
    for (i, node) in pipeline.nodes.iter().enumerate() {
        writeln!(out, "{indent}p{number}n{i} [label={}, shape={}];", label(node), shape(node.shape))?;
    }
    for edge in &pipeline.edges {
        write!(out, "{indent}p{number}n{} -> p{number}n{}", edge.from, edge.to)?;
        if !edge.tensors.is_empty() {
            let tensors: Vec<String> = edge.tensors.iter().map(|t| text::line(t)).collect();
            write!(out, " [label={}]", quoted(&tensors))?;
        }
        out.push_str(";\n");
    }
    Ok(())
}

fn label(node: &Node) -> String {
    let mut lines = vec![format!("{} {}", node.kind, text::line(&node.name))];
    lines.extend(text::details(node));
    quoted(&lines)
}

fn shape(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Source => "folder",
        NodeKind::Map | NodeKind::Fold => "box",
        NodeKind::Batch => "component",
        NodeKind::Sink => "note",
    }
}

/// Lines as one quoted string. Graphviz reads `\` escapes and HTML entities in labels.
fn quoted(lines: &[impl AsRef<str>]) -> String {
    let mut out = String::from("\"");
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push_str("\\n");
        }
        for c in text::line(line.as_ref()).chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '&' => out.push_str("&amp;"),
                c => out.push(c),
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn nothing_ends_the_quotes_or_becomes_an_escape() {
        assert_eq!(quoted(&[r#"a"b\Nc &lt;"#, "d\ne"]), r#""a\"b\\Nc &amp;lt;\nd e""#);
    }
}
