//! The flowchart language of Mermaid, as in Markdown files. It lays nothing out: the viewer does.

use std::fmt::{self, Write};

use super::{GraphNode, GraphView, NodeKind, PipelineView, text};

pub(super) fn render(view: &GraphView) -> String {
    let mut out = String::new();
    write(&mut out, view).expect("a string takes any text");
    out
}

fn write(out: &mut String, view: &GraphView) -> fmt::Result {
    writeln!(out, "---\ntitle: {}\n---\nflowchart LR", yaml(&view.name))?;
    for (number, pipeline) in view.pipelines.iter().enumerate() {
        if let [_] = view.pipelines[..] {
            write_pipeline(out, number, pipeline, "  ")?;
        } else {
            writeln!(out, "  subgraph p{number}[\"pipeline {}\"]", escaped(&pipeline.name))?;
            write_pipeline(out, number, pipeline, "    ")?;
            out.push_str("  end\n");
        }
    }
    Ok(())
}

fn write_pipeline(out: &mut String, number: usize, pipeline: &PipelineView, indent: &str) -> fmt::Result {
    for (i, node) in pipeline.nodes.iter().enumerate() {
        let (open, close) = shape(node.shape);
        writeln!(out, "{indent}p{number}n{i}{open}\"{}\"{close}", label(node))?;
    }
    for edge in &pipeline.edges {
        let tensors: Vec<String> = edge.tensors.iter().map(|t| escaped(t)).collect();
        let tensors =
            if tensors.is_empty() { String::new() } else { format!("|\"{}\"|", tensors.join("<br/>")) };
        writeln!(out, "{indent}p{number}n{} -->{tensors} p{number}n{}", edge.from, edge.to)?;
    }
    Ok(())
}

fn label(node: &GraphNode) -> String {
    let mut lines = vec![format!("{} <b>{}</b>", node.kind, escaped(&node.name))];
    lines.extend(text::details(node).iter().map(|d| escaped(d)));
    lines.join("<br/>")
}

fn shape(kind: NodeKind) -> (&'static str, &'static str) {
    match kind {
        NodeKind::Source => ("([", "])"),
        NodeKind::Map | NodeKind::Fold => ("[", "]"),
        NodeKind::Batch => ("[[", "]]"),
        NodeKind::Sink => ("[(", ")]"),
    }
}

/// Text between quotes: everything that Mermaid, its Markdown or HTML could read as more than text, as a character code.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text::line(text).chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '%' | '\\' | '*' | ';' | '$' | '|' => {
                out.push_str(&format!("#{};", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

/// A quoted text of YAML. `%` is written as a code: Mermaid looks for `%%{` everywhere.
fn yaml(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text::line(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' => out.push_str("\\u0025"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_quotes_or_becomes_markup() {
        assert_eq!(escaped("a\"b#c<d>`e` %%{ \n*"), "a#34;b#35;c#60;d#62;#96;e#96; #37;#37;{  #42;");
        assert_eq!(yaml("a\"b\\ %%{init"), r#""a\"b\\ \u0025\u0025{init""#);
    }
}
