//! A picture of the graph as SVG, without any other program. Places come from `layout.rs`; this module only draws.
//!
//! Boxes have a ground of their own, everything else is of a grey that stands out from white and from black alike, so the picture
//! needs no ground and no style sheet.

use std::fmt::{self, Write};

use super::layout::{
    DETAIL_SIZE, INSET, KIND_BASELINE, LINE, NAME_BASELINE, NAME_SIZE, Placed, Rect, Run, place, text_width,
};
use super::{GraphView, Node, NodeKind, text};

const MARGIN: f64 = 20.0;
/// Between the edge of a pipeline's frame and its nodes.
const FRAME: f64 = 20.0;
const HEADING: f64 = 26.0;
const TITLE_SIZE: f64 = 16.0;
const KIND_SIZE: f64 = 11.0;
/// Names, paths and shapes are code, and only such fonts have a width that is known beforehand.
const FONT: &str = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace";
const GREY: &str = "#7a7e84";
const ARROW: f64 = 7.0;

pub(super) fn render(view: &GraphView) -> String {
    let mut out = String::new();
    write(&mut out, view).expect("a string takes any text");
    out
}

fn write(out: &mut String, view: &GraphView) -> fmt::Result {
    let placed: Vec<Placed> = view.pipelines.iter().map(place).collect();
    let framed = placed.len() != 1;
    let (around, heading) = if framed { (FRAME, HEADING) } else { (0.0, 0.0) };
    let title = text::line(&view.name);
    let headings: Vec<String> =
        view.pipelines.iter().map(|p| text::line(&format!("pipeline {}", p.name))).collect();
    let inner = placed.iter().map(|p| p.width).fold(0.0, f64::max);
    let texts =
        headings.iter().map(|h| text_width(h, DETAIL_SIZE)).fold(text_width(&title, TITLE_SIZE), f64::max);
    let width = (inner + 2.0 * around).max(texts + 2.0 * around) + 2.0 * MARGIN;
    let heights: Vec<f64> = placed.iter().map(|p| p.height + 2.0 * around + heading).collect();
    let top = MARGIN + HEADING + 8.0;
    let between = heights.len().saturating_sub(1) as f64 * MARGIN;
    let height = top + heights.iter().sum::<f64>() + between + MARGIN;

    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" font-family="{FONT}">"#
    )?;
    writeln!(out, "<title>{}</title>", escaped(&title))?;
    let baseline = MARGIN + TITLE_SIZE;
    write_text(out, MARGIN, baseline, TITLE_SIZE, GREY, " font-weight=\"bold\"", &title)?;
    let mut y = top;
    for ((placed, heading), (view, height)) in
        placed.iter().zip(&headings).zip(view.pipelines.iter().zip(&heights))
    {
        if framed {
            let wide = width - 2.0 * MARGIN;
            writeln!(
                out,
                r#"<rect x="{MARGIN}" y="{y:.1}" width="{wide:.1}" height="{height:.1}" rx="8" fill="none" stroke="{GREY}" stroke-opacity="0.5"/>"#
            )?;
            write_text(out, MARGIN + around, y + HEADING, DETAIL_SIZE, GREY, "", heading)?;
        }
        let down = if framed { y + around + HEADING } else { y };
        writeln!(out, r#"<g transform="translate({:.1} {down:.1})">"#, MARGIN + around)?;
        for run in &placed.runs {
            write_run(out, run)?;
        }
        for (node, rect) in view.nodes.iter().zip(&placed.boxes) {
            write_box(out, node, *rect)?;
        }
        out.push_str("</g>\n");
        y += height + MARGIN;
    }
    out.push_str("</svg>\n");
    Ok(())
}

fn write_run(out: &mut String, run: &Run) -> fmt::Result {
    let Run { x, y, end, .. } = run;
    write!(out, r#"<path d="M{x:.1} {y:.1}H{end:.1}"#)?;
    for (i, (taker_x, taker_y)) in run.takers.iter().enumerate() {
        let (tip, bend) = (taker_x - ARROW, (end + taker_x) / 2.0);
        if i > 0 {
            write!(out, "M{end:.1} {y:.1}")?;
        }
        write!(out, "C{bend:.1} {y:.1} {bend:.1} {taker_y:.1} {tip:.1} {taker_y:.1}")?;
    }
    writeln!(out, r#"" fill="none" stroke="{GREY}" stroke-width="1.5"/>"#)?;
    for (taker_x, taker_y) in &run.takers {
        let (tip, up, down) = (taker_x - ARROW, taker_y - 4.0, taker_y + 4.0);
        writeln!(
            out,
            r#"<path d="M{tip:.1} {up:.1}L{taker_x:.1} {taker_y:.1}L{tip:.1} {down:.1}Z" fill="{GREY}"/>"#
        )?;
    }
    let middle = (x + end) / 2.0;
    for (i, line) in run.text.iter().enumerate() {
        let baseline = y - 6.0 - (run.text.len() - 1 - i) as f64 * LINE;
        write_text(out, middle, baseline, DETAIL_SIZE, GREY, " text-anchor=\"middle\"", line)?;
    }
    Ok(())
}

fn write_box(out: &mut String, node: &Node, rect: Rect) -> fmt::Result {
    let Rect { x, y, width, height } = rect;
    let colour = colour(node.shape);
    writeln!(
        out,
        r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="6" fill="#f6f7f9" stroke="{colour}" stroke-width="1.5"/>"##
    )?;
    let details = text::details(node);
    // A box that is taller than its text, because much leaves it, has the text in its middle.
    let text_height = NAME_BASELINE + details.len() as f64 * LINE + 12.0;
    let (left, top) = (x + INSET, y + (height - text_height) / 2.0);
    write_text(out, left, top + KIND_BASELINE, KIND_SIZE, colour, "", &node.kind)?;
    let name = text::line(&node.name);
    write_text(out, left, top + NAME_BASELINE, NAME_SIZE, "#1d2127", " font-weight=\"bold\"", &name)?;
    for (i, line) in details.iter().enumerate() {
        let baseline = top + NAME_BASELINE + (i + 1) as f64 * LINE + 2.0;
        write_text(out, left, baseline, DETAIL_SIZE, "#4a5058", "", line)?;
    }
    Ok(())
}

fn write_text(
    out: &mut String,
    x: f64,
    y: f64,
    size: f64,
    colour: &str,
    more: &str,
    line: &str,
) -> fmt::Result {
    writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" font-size="{size:.0}" fill="{colour}"{more}>{}</text>"#,
        escaped(line)
    )
}

/// The kind stands in the box as a word, too.
fn colour(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Source | NodeKind::Sink => "#5c6672",
        NodeKind::Map => "#3d6f9e",
        NodeKind::Batch => "#8a5a2b",
        NodeKind::Fold => "#4f7a4a",
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_becomes_markup() {
        assert_eq!(escaped("<b a=\"1\">'&"), "&lt;b a=&quot;1&quot;&gt;&apos;&amp;");
    }
}
