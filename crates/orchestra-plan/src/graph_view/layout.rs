//! Places the boxes of one pipeline: layers from left to right, each box near what it is connected with, so that edges are short and seldom
//! cross, and no two boxes on top of each other. It knows sizes and connections, and writes no picture.

use super::PipelineView;

/// Between boxes above each other.
const GAP: f64 = 18.0;
/// Between the boxes of two layers, for the curves.
const CURVES: f64 = 64.0;
/// More rounds change nothing that can be seen. An odd number: the last one goes from left to right.
const ROUNDS: usize = 9;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Rect {
    pub fn middle(&self) -> f64 {
        self.y + self.height / 2.0
    }
}

/// Gives boxes of known size, one per node, their places. All of a layer become as wide as the widest. The left upper corner of all is at
/// 0, 0; the result is the right lower one.
pub(super) fn place(view: &PipelineView, boxes: &mut [Rect]) -> (f64, f64) {
    let mut layers = layers(view);
    let n = layers.len();
    for round in 0..ROUNDS {
        for i in 0..n {
            let (i, forwards) = if round % 2 == 0 { (i, true) } else { (n - 1 - i, false) };
            settle(view, &mut layers[i], boxes, forwards);
        }
    }
    let top = boxes.iter().map(|b| b.y).fold(f64::INFINITY, f64::min);
    let (mut x, mut right) = (0.0, 0.0);
    for layer in &layers {
        let width = layer.iter().map(|node| boxes[*node].width).fold(0.0, f64::max);
        for node in layer {
            let place = &mut boxes[*node];
            *place = Rect { x, y: place.y - top, width, ..*place };
        }
        right = x + width;
        x = right + CURVES;
    }
    (right, boxes.iter().map(|b| b.y + b.height).fold(0.0, f64::max))
}

/// The nodes of each layer. Nodes come behind what they read from, so one pass finds the longest paths.
fn layers(view: &PipelineView) -> Vec<Vec<usize>> {
    let mut layer_of = vec![0; view.nodes.len()];
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for node in 0..view.nodes.len() {
        let before = view.edges.iter().filter(|e| e.to == node).map(|e| layer_of[e.from] + 1);
        layer_of[node] = before.max().unwrap_or(0);
        layers.resize_with(layers.len().max(layer_of[node] + 1), Vec::new);
        layers[layer_of[node]].push(node);
    }
    layers
}

/// Places a layer: each box in the middle of what it reads from (or of what reads from it) as far as the others leave it room.
fn settle(view: &PipelineView, layer: &mut Vec<usize>, boxes: &mut [Rect], forwards: bool) {
    let wish = |node: usize| {
        let neighbours = view.edges.iter().filter_map(|e| match forwards {
            true => (e.to == node).then_some(e.from),
            false => (e.from == node).then_some(e.to),
        });
        let middles: Vec<f64> = neighbours.map(|n| boxes[n].middle()).collect();
        if middles.is_empty() { boxes[node].middle() } else { mean(&middles) }
    };
    let mut wishes: Vec<(f64, usize)> = layer.iter().map(|node| (wish(*node), *node)).collect();
    wishes.sort_by(|a, b| a.0.total_cmp(&b.0));
    // From top to bottom boxes are only pushed down: in the end the layer moves up by what that comes to.
    let mut free_from = f64::NEG_INFINITY;
    let mut pushed = Vec::with_capacity(wishes.len());
    for (wish, node) in &wishes {
        let place = &mut boxes[*node];
        place.y = (wish - place.height / 2.0).max(free_from);
        free_from = place.y + place.height + GAP;
        pushed.push(place.middle() - wish);
    }
    let up = mean(&pushed);
    wishes.iter().for_each(|(_, node)| boxes[*node].y -= up);
    *layer = wishes.into_iter().map(|(_, node)| node).collect();
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
