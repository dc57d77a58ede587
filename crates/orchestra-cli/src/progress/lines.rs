//! Lines of coloured segments: what fits beside one another, behind a heading. Knows nothing of a run.

/// From this width on, stages, devices and workers stand behind a heading.
pub const HEADING_FROM: usize = 60;
pub const HEADING: usize = 9;

/// Lines of each section, at most: a display higher than the terminal cannot be drawn in place.
pub const MAX_LINES: usize = 4;
pub const GAP: &str = "  ";

/// A piece of a line that is never broken.
#[derive(Debug, Clone)]
pub struct Segment {
    pub text: String,
    pub tone: Tone,
}

#[derive(Debug, Clone, Copy)]
pub enum Tone {
    Plain,
    Heading,
    Good,
    Warning,
    Bad,
}

pub type Line = Vec<Segment>;

impl Segment {
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    /// The columns that it takes.
    pub fn width(&self) -> usize {
        console::measure_text_width(&self.text)
    }

    pub fn fit(self, width: usize) -> Self {
        Self { text: console::truncate_str(&self.text, width, "…").into_owned(), ..self }
    }
}

/// Segments below one another, behind a heading where there is room for one.
pub fn section(name: &str, segments: Vec<Segment>, width: usize) -> Vec<Line> {
    let room = width - indent(width);
    let mut lines = pack(segments, room, room);
    if lines.len() > MAX_LINES {
        let hidden: usize = lines[MAX_LINES - 1..].iter().map(Vec::len).sum();
        lines.truncate(MAX_LINES - 1);
        lines.push(vec![Segment::new(format!("… and {hidden} more"), Tone::Plain)]);
    }
    behind_heading(name, lines, width)
}

pub fn indent(width: usize) -> usize {
    if width + 1 >= HEADING_FROM { HEADING } else { 0 }
}

pub fn behind_heading(name: &str, mut lines: Vec<Line>, width: usize) -> Vec<Line> {
    if indent(width) > 0 {
        for (i, line) in lines.iter_mut().enumerate() {
            // The gap between segments is part of the indent.
            let heading = if i == 0 { name } else { "" };
            line.insert(0, Segment::new(format!("{heading:<w$}", w = HEADING - GAP.len()), Tone::Heading));
        }
    }
    lines
}

/// Fills lines with segments, in order.
pub fn pack(segments: Vec<Segment>, width: usize, longest: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut used = 0;
    for segment in segments {
        let segment = segment.fit(longest);
        let needed = segment.width();
        match lines.last_mut() {
            Some(line) if used + GAP.len() + needed <= width => {
                used += GAP.len() + needed;
                line.push(segment);
            }
            _ => {
                used = needed;
                lines.push(vec![segment]);
            }
        }
    }
    lines
}

pub fn paint(line: &[Segment], color: bool) -> String {
    let paint = |segment: &Segment| {
        let code = match segment.tone {
            Tone::Plain => "",
            Tone::Heading => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "1;31",
        };
        if color && !code.is_empty() {
            format!("\x1b[{code}m{}\x1b[0m", segment.text)
        } else {
            segment.text.clone()
        }
    };
    line.iter().map(paint).collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}
