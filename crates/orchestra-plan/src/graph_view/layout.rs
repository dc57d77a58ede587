//! Places the nodes of one pipeline: layers from left to right, ordered so that edges seldom cross, each node near what it is connected
//! with, and no two things on top of each other. It knows sizes and connections, and writes no picture.

use super::{PipelineView, text};

/// Size of the text of names, in pixels; other sizes below.
pub(super) const NAME_SIZE: f64 = 14.0;
/// Size of the text of details and tensors.
pub(super) const DETAIL_SIZE: f64 = 12.0;
/// Height of a line of details or tensors.
pub(super) const LINE: f64 = 16.0;
/// From the top of a box to the line of its kind, and on to that of its name.
pub(super) const KIND_BASELINE: f64 = 17.0;
/// From the top of a box to the line of its name.
pub(super) const NAME_BASELINE: f64 = 35.0;
/// Between the edge of a box and its text.
pub(super) const INSET: f64 = 14.0;

/// Width of a column in the unit of the font's size: monospaced fonts have at most 0.602.
const COLUMN: f64 = 0.62;
const LEAST_WIDTH: f64 = 110.0;
/// Between things above each other.
const GAP: f64 = 18.0;
/// Free on both sides of a tensor's text.
const LABEL_PAD: f64 = 10.0;
/// What the curves between a layer's texts and the next layer have.
const CURVES: f64 = 46.0;
/// Between a line and what lies below it.
const BELOW_LINE: f64 = 7.0;
/// More rounds change nothing that can be seen.
const ROUNDS: usize = 8;

/// Nodes and edges with their places; the left upper corner is at 0, 0.
pub(super) struct Placed {
    pub width: f64,
    pub height: f64,
    /// One per node, in the same order.
    pub boxes: Vec<Rect>,
    pub runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// What leaves a node in one piece: a straight line below its text, then a curve to each taker.
pub(super) struct Run {
    pub x: f64,
    pub y: f64,
    /// Where the curves begin.
    pub end: f64,
    pub text: Vec<String>,
    /// The left middle of each taker.
    pub takers: Vec<(f64, f64)>,
}

/// The most that a line takes.
pub(super) fn text_width(line: &str, size: f64) -> f64 {
    text::columns(line) * size * COLUMN
}

/// Places everything.
pub(super) fn place(view: &PipelineView) -> Placed {
    let mut layout = Layout::new(view);
    layout.order();
    layout.gather_ports();
    layout.align();
    layout.finish()
}

struct Layout<'a> {
    view: &'a PipelineView,
    /// Nodes of each layer, from top to bottom.
    layers: Vec<Vec<usize>>,
    layer_of: Vec<usize>,
    ports: Vec<Vec<Port>>,
    /// Height of each box, and how far each node with its texts reaches above and below its middle.
    heights: Vec<f64>,
    above: Vec<f64>,
    below: Vec<f64>,
    middle: Vec<f64>,
}

/// Edges that leave a node with the same text.
struct Port {
    text: Vec<String>,
    takers: Vec<usize>,
    /// From the middle of the box.
    offset: f64,
}

impl<'a> Layout<'a> {
    fn new(view: &'a PipelineView) -> Self {
        let n = view.nodes.len();
        // Nodes come behind what they read from, so one pass finds the longest paths. All that a node reads from lies in the layer
        // before it (the planner accepts nothing else), so no edge runs behind a box.
        let mut layer_of = vec![0; n];
        for node in 0..n {
            let before = view.edges.iter().filter(|e| e.to == node).map(|e| layer_of[e.from] + 1);
            layer_of[node] = before.max().unwrap_or(0);
        }
        let mut layers = vec![Vec::new(); layer_of.iter().max().map_or(0, |m| m + 1)];
        for (node, layer) in layer_of.iter().enumerate() {
            layers[*layer].push(node);
        }
        let zero = vec![0.0; n];
        Self {
            view,
            layers,
            layer_of,
            ports: Vec::new(),
            heights: zero.clone(),
            above: zero.clone(),
            below: zero.clone(),
            middle: zero,
        }
    }

    /// Barycentre ordering: each layer is sorted by the mean place of its neighbours, forwards and backwards in turns.
    fn order(&mut self) {
        let mut place = vec![0.0; self.view.nodes.len()];
        let number = |layer: &[usize], place: &mut [f64]| {
            layer.iter().enumerate().for_each(|(i, node)| place[*node] = i as f64);
        };
        self.layers.iter().for_each(|layer| number(layer, &mut place));
        for round in 0..ROUNDS {
            let forwards = round % 2 == 0;
            for i in 0..self.layers.len() {
                let i = if forwards { i } else { self.layers.len() - 1 - i };
                let mut layer = std::mem::take(&mut self.layers[i]);
                let key: Vec<f64> = layer
                    .iter()
                    .map(|n| mean(self.neighbours(*n, forwards).map(|m| place[m])).unwrap_or(place[*n]))
                    .collect();
                let mut by_key: Vec<(f64, usize)> = key.into_iter().zip(layer.drain(..)).collect();
                by_key.sort_by(|a, b| a.0.total_cmp(&b.0));
                layer.extend(by_key.into_iter().map(|(_, node)| node));
                number(&layer, &mut place);
                self.layers[i] = layer;
            }
        }
    }

    /// What a node reads from, or what reads from it.
    fn neighbours(&self, node: usize, before: bool) -> impl Iterator<Item = usize> {
        let edges = self.view.edges.iter();
        edges.filter_map(move |e| match before {
            true => (e.to == node).then_some(e.from),
            false => (e.from == node).then_some(e.to),
        })
    }

    /// Sorts what leaves each node from top to bottom, and finds the heights that this needs.
    fn gather_ports(&mut self) {
        let mut place = vec![0; self.view.nodes.len()];
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(i, node)| place[*node] = i);
        }
        for node in 0..self.view.nodes.len() {
            let mut leaving: Vec<_> = self.view.edges.iter().filter(|e| e.from == node).collect();
            leaving.sort_by_key(|e| place[e.to]);
            let mut ports: Vec<Port> = Vec::new();
            for edge in leaving {
                let text: Vec<String> = edge.tensors.iter().map(|t| text::line(t)).collect();
                match ports.iter_mut().find(|p| p.text == text) {
                    Some(port) => port.takers.push(edge.to),
                    None => ports.push(Port { text, takers: vec![edge.to], offset: 0.0 }),
                }
            }
            self.measure(node, ports);
        }
    }

    fn measure(&mut self, node: usize, mut ports: Vec<Port>) {
        let tall = |port: &Port| port.text.len() as f64 * LINE + BELOW_LINE;
        let mut y = 0.0;
        for port in &mut ports {
            y += tall(port);
            port.offset = y;
        }
        let centre = mean(ports.iter().map(|p| p.offset)).unwrap_or(0.0);
        ports.iter_mut().for_each(|p| p.offset -= centre);
        let details = text::details(&self.view.nodes[node]).len() as f64;
        let text_height = NAME_BASELINE + details * LINE + 12.0;
        let reach = ports.iter().map(|p| p.offset.abs() + BELOW_LINE).fold(0.0, f64::max);
        let half = (text_height / 2.0).max(reach);
        self.heights[node] = 2.0 * half;
        self.above[node] = ports.first().map_or(half, |p| half.max(tall(p) - p.offset));
        self.below[node] = ports.last().map_or(half, |p| half.max(p.offset + BELOW_LINE));
        self.ports.push(ports);
    }

    /// Moves each node as near as possible to where its edges would be straight.
    fn align(&mut self) {
        for layer in 0..self.layers.len() {
            self.settle(layer, |_, _| 0.0);
        }
        for _ in 0..ROUNDS {
            for layer in 0..self.layers.len() {
                self.settle(layer, |this, node| {
                    let wish = |m: usize| this.middle[m] + this.offset(m, node);
                    mean(this.neighbours(node, true).map(wish)).unwrap_or(this.middle[node])
                });
            }
            for layer in (0..self.layers.len()).rev() {
                self.settle(layer, |this, node| {
                    let wish = |m: usize| this.middle[m] - this.offset(node, m);
                    mean(this.neighbours(node, false).map(wish)).unwrap_or(this.middle[node])
                });
            }
        }
    }

    fn offset(&self, from: usize, to: usize) -> f64 {
        self.ports[from].iter().find(|p| p.takers.contains(&to)).map_or(0.0, |p| p.offset)
    }

    /// Places a layer as near to the wishes of its nodes as can be without changing their order or touching: the least squares answer,
    /// by pooling neighbours whose wishes contradict each other.
    fn settle(&mut self, layer: usize, wish: impl Fn(&Self, usize) -> f64) {
        let nodes = &self.layers[layer];
        let mut stacked = Vec::with_capacity(nodes.len());
        let mut y = 0.0;
        for (i, node) in nodes.iter().enumerate() {
            if i > 0 {
                y += self.below[nodes[i - 1]] + GAP + self.above[*node];
            }
            stacked.push(y);
        }
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (node, stacked) in nodes.iter().zip(&stacked) {
            let mut pool = (wish(self, *node) - stacked, 1);
            while let Some((shift, n)) = pools.pop_if(|p| p.0 > pool.0) {
                pool = ((shift * n as f64 + pool.0 * pool.1 as f64) / (n + pool.1) as f64, n + pool.1);
            }
            pools.push(pool);
        }
        let shifts = pools.iter().flat_map(|(shift, n)| std::iter::repeat_n(*shift, *n));
        let settled: Vec<(usize, f64)> =
            nodes.iter().zip(stacked).zip(shifts).map(|((node, y), shift)| (*node, y + shift)).collect();
        settled.into_iter().for_each(|(node, y)| self.middle[node] = y);
    }

    fn finish(self) -> Placed {
        let all = 0..self.view.nodes.len();
        let top = all.clone().map(|n| self.middle[n] - self.above[n]).fold(f64::INFINITY, f64::min);
        let bottom = all.clone().map(|n| self.middle[n] + self.below[n]).fold(top, f64::max);
        // Left side, width of the boxes and end of the texts of each layer.
        let mut columns = Vec::new();
        let mut x = 0.0;
        for layer in &self.layers {
            let width = layer.iter().map(|n| self.box_width(*n)).fold(LEAST_WIDTH, f64::max);
            let texts = layer.iter().flat_map(|n| &self.ports[*n]).flat_map(|p| &p.text);
            let text = texts.map(|t| text_width(t, DETAIL_SIZE)).fold(0.0, f64::max);
            let end = x + width + if text > 0.0 { text + 2.0 * LABEL_PAD } else { 0.0 };
            columns.push((x, width, end));
            x = end + CURVES;
        }
        let boxes: Vec<Rect> = all
            .clone()
            .map(|n| {
                let (x, width, _) = columns[self.layer_of[n]];
                Rect { x, y: self.middle[n] - top - self.heights[n] / 2.0, width, height: self.heights[n] }
            })
            .collect();
        let run = |n: usize, port: Port| {
            let (x, width, end) = columns[self.layer_of[n]];
            let taker = |t: &usize| (boxes[*t].x, boxes[*t].y + boxes[*t].height / 2.0);
            let takers = port.takers.iter().map(taker).collect();
            Run { x: x + width, y: self.middle[n] - top + port.offset, end, text: port.text, takers }
        };
        let runs = self.ports.into_iter().enumerate();
        let runs = runs.flat_map(|(n, ports)| ports.into_iter().map(move |p| (n, p)));
        let runs = runs.map(|(n, port)| run(n, port)).collect();
        let width = columns.last().map_or(0.0, |(x, width, _)| x + width);
        Placed { width, height: (bottom - top).max(0.0), runs, boxes }
    }

    fn box_width(&self, node: usize) -> f64 {
        let node = &self.view.nodes[node];
        let name = text_width(&text::line(&node.name), NAME_SIZE);
        let details = text::details(node).iter().map(|d| text_width(d, DETAIL_SIZE)).fold(0.0, f64::max);
        name.max(details) + 2.0 * INSET
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (n, sum) = values.fold((0, 0.0), |(n, sum), v| (n + 1, sum + v));
    (n > 0).then(|| sum / f64::from(n))
}
