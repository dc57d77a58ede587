//! A picture of the graph as SVG, without any other program. Places come from `layout.rs`; this module measures and draws.
//!
//! A box names what it takes. Boxes have a ground of their own, everything else is of a grey that stands out from white and from black
//! alike, so the picture needs no ground and no style sheet.

use std::fmt::{self, Write};

use super::layout::{Rect, place};
use super::{GraphView, NodeKind, PipelineView, text};

const MARGIN: f64 = 20.0;
/// Between the edge of a pipeline's frame and its nodes.
const FRAME: f64 = 20.0;
const HEADING: f64 = 26.0;
const TITLE_SIZE: f64 = 16.0;
const NAME_SIZE: f64 = 14.0;
const DETAIL_SIZE: f64 = 12.0;
const KIND_SIZE: f64 = 11.0;
/// Height of a line of details.
const LINE: f64 = 16.0;
/// From the top of a box to the line of its name.
const NAME_BASELINE: f64 = 35.0;
/// Between the edge of a box and its text.
const INSET: f64 = 14.0;
const LEAST_WIDTH: f64 = 110.0;
/// Width of a column in the unit of the font's size: monospaced fonts have at most 0.602.
const COLUMN: f64 = 0.62;
/// Names, paths and shapes are code, and only such fonts have a width that is known beforehand.
const FONT: &str = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace";
const GREY: &str = "#7a7e84";
const ARROW: f64 = 7.0;

struct Line {
    size: f64,
    colour: &'static str,
    bold: bool,
    text: String,
}

struct Placed {
    size: (f64, f64),
    /// One per node, in the same order.
    boxes: Vec<Rect>,
    lines: Vec<Vec<Line>>,
}

pub(super) fn render(view: &GraphView) -> String {
    let mut out = String::new();
    write(&mut out, view).expect("a string takes any text");
    out
}

fn write(out: &mut String, view: &GraphView) -> fmt::Result {
    let placed: Vec<Placed> = view.pipelines.iter().map(placed).collect();
    let framed = placed.len() != 1;
    let (around, heading) = if framed { (FRAME, HEADING) } else { (0.0, 0.0) };
    let title = Line { bold: true, ..Line::new(TITLE_SIZE, GREY, text::line(&view.name)) };
    let of_pipeline =
        |p: &PipelineView| Line::new(DETAIL_SIZE, GREY, text::line(&format!("pipeline {}", p.name)));
    let headings: Vec<Line> = view.pipelines.iter().map(of_pipeline).collect();
    let texts = headings.iter().chain([&title]).map(Line::width);
    let inner = placed.iter().map(|p| p.size.0).chain(texts).fold(0.0, f64::max);
    let width = inner + 2.0 * (around + MARGIN);
    let heights: Vec<f64> = placed.iter().map(|p| p.size.1 + 2.0 * around + heading).collect();
    let top = MARGIN + HEADING + 8.0;
    let between = heights.len().saturating_sub(1) as f64 * MARGIN;
    let height = top + heights.iter().sum::<f64>() + between + MARGIN;

    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" font-family="{FONT}">"#
    )?;
    writeln!(out, "<title>{}</title>", escaped(&title.text))?;
    title.write(out, MARGIN, MARGIN + TITLE_SIZE)?;
    let mut y = top;
    for (((placed, heading), view), height) in placed.iter().zip(&headings).zip(&view.pipelines).zip(&heights)
    {
        if framed {
            let wide = width - 2.0 * MARGIN;
            writeln!(
                out,
                r#"<rect x="{MARGIN}" y="{y:.1}" width="{wide:.1}" height="{height:.1}" rx="8" fill="none" stroke="{GREY}" stroke-opacity="0.5"/>"#
            )?;
            heading.write(out, MARGIN + around, y + HEADING)?;
        }
        let down = if framed { y + around + HEADING } else { y };
        writeln!(out, r#"<g transform="translate({:.1} {down:.1})">"#, MARGIN + around)?;
        for edge in &view.edges {
            write_edge(out, &placed.boxes[edge.from], &placed.boxes[edge.to])?;
        }
        for ((node, rect), lines) in view.nodes.iter().zip(&placed.boxes).zip(&placed.lines) {
            write_box(out, node.shape, *rect, lines)?;
        }
        out.push_str("</g>\n");
        y += height + MARGIN;
    }
    out.push_str("</svg>\n");
    Ok(())
}

/// The boxes with their texts.
fn placed(view: &PipelineView) -> Placed {
    let lines: Vec<Vec<Line>> = (0..view.nodes.len()).map(|node| lines(view, node)).collect();
    let sized = |lines: &Vec<Line>| Rect {
        width: lines.iter().map(|line| line.width() + 2.0 * INSET).fold(LEAST_WIDTH, f64::max),
        height: NAME_BASELINE + (lines.len() - 2) as f64 * LINE + 12.0,
        ..Rect::default()
    };
    let mut boxes: Vec<Rect> = lines.iter().map(sized).collect();
    Placed { size: place(view, &mut boxes), boxes, lines }
}

/// The kind and the name of a node, what it is set to, and what it takes.
fn lines(view: &PipelineView, at: usize) -> Vec<Line> {
    let node = &view.nodes[at];
    let kind = Line::new(KIND_SIZE, colour(node.shape), node.kind.clone());
    let name = Line { bold: true, ..Line::new(NAME_SIZE, "#1d2127", text::line(&node.name)) };
    let details = text::details(node).into_iter();
    let tensors = view.edges.iter().filter(|edge| edge.to == at).flat_map(|edge| &edge.tensors);
    let takes = tensors.map(|tensor| format!("< {}", text::line(tensor)));
    let small = details.chain(takes).map(|text| Line::new(DETAIL_SIZE, "#4a5058", text));
    [kind, name].into_iter().chain(small).collect()
}

fn write_edge(out: &mut String, from: &Rect, to: &Rect) -> fmt::Result {
    let (x, y) = (from.x + from.width, from.middle());
    let (taker_x, taker_y) = (to.x, to.middle());
    let (tip, bend) = (taker_x - ARROW, (x + taker_x) / 2.0);
    let (up, down) = (taker_y - 4.0, taker_y + 4.0);
    writeln!(
        out,
        r#"<path d="M{x:.1} {y:.1}C{bend:.1} {y:.1} {bend:.1} {taker_y:.1} {tip:.1} {taker_y:.1}" fill="none" stroke="{GREY}" stroke-width="1.5"/>"#
    )?;
    writeln!(
        out,
        r#"<path d="M{tip:.1} {up:.1}L{taker_x:.1} {taker_y:.1}L{tip:.1} {down:.1}Z" fill="{GREY}"/>"#
    )
}

fn write_box(out: &mut String, shape: NodeKind, rect: Rect, lines: &[Line]) -> fmt::Result {
    let Rect { x, y, width, height } = rect;
    writeln!(
        out,
        r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="6" fill="#f6f7f9" stroke="{}" stroke-width="1.5"/>"##,
        colour(shape)
    )?;
    for (i, line) in lines.iter().enumerate() {
        let down = if i == 0 { NAME_BASELINE - 18.0 } else { NAME_BASELINE + (i - 1) as f64 * LINE };
        line.write(out, x + INSET, y + down)?;
    }
    Ok(())
}

impl Line {
    fn new(size: f64, colour: &'static str, text: String) -> Self {
        Self { size, colour, bold: false, text }
    }

    /// The most that it takes.
    fn width(&self) -> f64 {
        text::columns(&self.text) * self.size * COLUMN
    }

    fn write(&self, out: &mut String, x: f64, y: f64) -> fmt::Result {
        let Self { size, colour, bold, text } = self;
        let weight = if *bold { " font-weight=\"bold\"" } else { "" };
        let text = escaped(text);
        writeln!(
            out,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size:.0}" fill="{colour}"{weight}>{text}</text>"#
        )
    }
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
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_becomes_markup() {
        assert_eq!(escaped("<b a=\"1\">'&"), "&lt;b a=&quot;1&quot;&gt;&apos;&amp;");
    }
}
