//! The map of a `detect` stage: outputs of a row to a list, with all places in pixels of the picture. Knows no layout.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ItemError, OwnedRow, OwnedValue, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, LeftOut, Placement, compare_numbers};

use super::dbnet::{Dbnet, Regions};
use super::decode::Decoding;
use super::found::Candidate;
use super::layout::OutputTensor;
use super::rectangle::Quad;
use crate::elements::read_numbers;

/// What makes lists of outputs.
#[derive(Debug, Encode, Decode)]
pub struct Detecting {
    pub decode: Decoding,
    /// The last column read is a placement.
    pub is_placed: bool,
    pub labels: Vec<Arc<str>>,
}

#[derive(Default)]
pub struct DetectBuffers {
    tensors: Vec<OutputTensor>,
    found: Vec<Candidate>,
    regions: Regions,
}

impl RowWork for Detecting {
    type Scratch = DetectBuffers;
    const IN_LOADER: bool = false;

    fn apply(
        &self,
        DetectBuffers { tensors, found, regions }: &mut DetectBuffers,
        inputs: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        let (outputs, placed) = match inputs {
            [outputs @ .., placed] if self.is_placed => (outputs, Some(Placement::of(placed)?)),
            outputs => (outputs, None),
        };
        tensors.resize_with(outputs.len(), OutputTensor::default);
        for (tensor, output) in tensors.iter_mut().zip(outputs) {
            output.with_tensor(|view| {
                view.name.clone_into(&mut tensor.name);
                view.shape.clone_into(&mut tensor.shape);
                read_numbers(view, &mut tensor.values)
            })?;
        }
        let rows = match &self.decode {
            Decoding::Boxes(boxes) => {
                found.clear();
                let row = placed.map_or([0; 2], |placed| placed.row);
                boxes.found(tensors, row, found)?;
                self.boxes(found, placed.as_ref(), emit)?
            }
            Decoding::Texts(settings) => {
                let [map] = &tensors[..] else {
                    return Err(ItemError::result("internal error: an output is missing; this is a bug"));
                };
                texts(settings, map, placed.as_ref(), regions)?
            }
        };
        emit.row(&[Value::List(&rows)])
    }
}

impl Detecting {
    fn boxes(
        &self,
        found: &[Candidate],
        placed: Option<&Placement>,
        emit: &mut dyn Emit,
    ) -> Result<Vec<OwnedRow>, ItemError> {
        let mut rows = Vec::with_capacity(found.len());
        let (mut n_outside, mut n_without_area) = (0, 0);
        for (n, found) in found.iter().enumerate() {
            let [a, b, c, d] = found.corners;
            let place = |point| placed.map_or(point, |placed| placed.point(point));
            let polygon = found.rectangle.map(|rectangle| rectangle.ordered().map(place));
            let mut numbers = found.corners.iter().chain(polygon.iter().flatten().flatten());
            if !numbers.all(|v| (*v as f32).is_finite()) {
                let error = format!("box {n} is ({a}, {b}, {c}, {d}), which is no place in a picture");
                return Err(ItemError::result(error));
            }
            let has_area = match found.rectangle {
                Some(rectangle) => rectangle.has_area(),
                None => c > a && d > b,
            };
            if !has_area {
                n_without_area += 1;
                continue;
            }
            let corners = match (placed, &polygon) {
                (Some(placed), Some(polygon)) => within(bounds(polygon), placed.picture),
                (Some(placed), None) => within(placed.rectangle(found.corners), placed.picture),
                (None, _) => found.corners,
            };
            // What lies outside of the picture shows nothing of it.
            if corners[2] <= corners[0] || corners[3] <= corners[1] {
                n_outside += 1;
                continue;
            }
            let label = self.labels.get(found.class as usize);
            let label = label.map_or_else(|| found.class.to_string().into(), Arc::clone);
            let mut row = row(label, found.class, found.score, corners);
            row.extend(polygon.as_ref().map(owned_polygon));
            rows.push(row);
        }
        for (what, n) in [(LeftOut::BoxesOutside, n_outside), (LeftOut::BoxesWithoutArea, n_without_area)] {
            if n > 0 {
                emit.left_out(what, n);
            }
        }
        Ok(rows)
    }
}

/// The smallest upright rectangle around a polygon.
fn bounds(polygon: &Quad) -> [f64; 4] {
    let axis = |at: usize| polygon.iter().map(move |p| p[at]);
    let least = |at: usize| axis(at).fold(f64::INFINITY, f64::min);
    let most = |at: usize| axis(at).fold(f64::NEG_INFINITY, f64::max);
    [least(0), least(1), most(0), most(1)]
}

fn owned_polygon(polygon: &Quad) -> OwnedValue {
    owned("polygon", DType::F32, &[4, 2], &floats(polygon.iter().copied().flatten()))
}

/// The part of a rectangle that lies in a picture.
fn within([left, top, right, bottom]: [f64; 4], [width, height]: [u32; 2]) -> [f64; 4] {
    let (width, height) = (f64::from(width), f64::from(height));
    [left.clamp(0.0, width), top.clamp(0.0, height), right.clamp(0.0, width), bottom.clamp(0.0, height)]
}

fn row(label: Arc<str>, class: u32, score: f32, corners: [f64; 4]) -> OwnedRow {
    vec![
        OwnedValue::Text(label),
        owned("class", DType::I64, &[], &i64::from(class).to_ne_bytes()),
        owned("score", DType::F32, &[], &score.to_ne_bytes()),
        owned("box", DType::F32, &[4], &floats(corners)),
    ]
}

fn owned(name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> OwnedValue {
    OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
}

fn floats(numbers: impl IntoIterator<Item = f64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as f32).to_ne_bytes()).collect()
}

/// Texts from top to bottom, those in a line from left to right, as PaddleOCR orders them.
fn texts(
    settings: &Dbnet,
    map: &OutputTensor,
    placed: Option<&Placement>,
    regions: &mut Regions,
) -> Result<Vec<OwnedRow>, ItemError> {
    /// Tops that are nearer than so many pixels belong to one line.
    const LINE: f64 = 10.0;
    /// Sides of texts too small to be read, in pixels of the picture.
    const UNREADABLE: f64 = 3.0;
    let (texts, [width, height]) = settings.texts(map, regions)?;
    let [row_width, row_height] = placed.map_or([width as f64, height as f64], |p| p.row.map(f64::from));
    let (scale_x, scale_y) = (row_width / width as f64, row_height / height as f64);
    let mut found = Vec::new();
    for text in texts {
        let corners = text.corners.map(|[x, y]| {
            let at = [x * scale_x, y * scale_y];
            let Some(placed) = placed else { return at };
            let ([x, y], [width, height]) = (placed.point(at), placed.picture.map(f64::from));
            [x.clamp(0.0, width), y.clamp(0.0, height)]
        });
        let side = |a: usize, b: usize| (corners[a][0] - corners[b][0]).hypot(corners[a][1] - corners[b][1]);
        if side(0, 1) > UNREADABLE && side(0, 3) > UNREADABLE {
            found.push((text.score, corners));
        }
    }
    found.sort_by(|(_, a), (_, b)| compare_numbers(a[0][1], b[0][1]).then(compare_numbers(a[0][0], b[0][0])));
    for at in 1..found.len() {
        let mut n = at;
        while n > 0 {
            let (a, b) = (found[n - 1].1[0], found[n].1[0]);
            if (b[1] - a[1]).abs() >= LINE || b[0] >= a[0] {
                break;
            }
            found.swap(n - 1, n);
            n -= 1;
        }
    }
    let rows = found.into_iter().map(|(score, corners)| {
        let mut row = row("text".into(), 0, score, bounds(&corners));
        row.push(owned_polygon(&corners));
        row
    });
    Ok(rows.collect())
}
