//! Rotated rectangles: the smallest one around points, how it grows, its corners in order, and what a map says within it. Works on points;
//! knows no model.

use orchestra_core::compare_numbers;

/// Four corners, clockwise from the top left one where y goes down.
pub type Quad = [[f64; 2]; 4];

/// A rectangle that may be turned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rectangle {
    pub centre: [f64; 2],
    /// Lengths along `axis` and across it.
    pub sides: [f64; 2],
    /// A unit vector.
    pub axis: [f64; 2],
}

impl Rectangle {
    pub fn short_side(&self) -> f64 {
        self.sides[0].min(self.sides[1])
    }

    pub fn has_area(&self) -> bool {
        self.short_side() > 0.0
    }

    /// Clockwise from the corner that is the upper one of the two on the left, as PaddleOCR orders them.
    pub fn ordered(&self) -> Quad {
        let ([cx, cy], [ux, uy]) = (self.centre, self.axis);
        let (w, h) = (self.sides[0] / 2.0, self.sides[1] / 2.0);
        let at = |a: f64, b: f64| [cx + ux * a * w - uy * b * h, cy + uy * a * w + ux * b * h];
        let mut points = [at(-1.0, -1.0), at(1.0, -1.0), at(1.0, 1.0), at(-1.0, 1.0)];
        points.sort_by(|a, b| compare_numbers(a[0], b[0]));
        let [a, b, c, d] = points;
        let (top_left, bottom_left) = if b[1] > a[1] { (a, b) } else { (b, a) };
        let (top_right, bottom_right) = if d[1] > c[1] { (c, d) } else { (d, c) };
        [top_left, top_right, bottom_right, bottom_left]
    }
}

/// The rectangle of the smallest area around points; `None` around nothing. One of its sides lies on a side of the convex hull, so all of
/// these are tried. Sorts the points.
pub fn min_area_rectangle(points: &mut Vec<[f64; 2]>) -> Option<Rectangle> {
    let hull = convex_hull(points);
    let (first, n) = (*hull.first()?, hull.len());
    let mut best: Option<(f64, Rectangle)> = None;
    for (at, from) in hull.iter().enumerate() {
        let to = hull[(at + 1) % n];
        let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
        let length = dx.hypot(dy);
        if length == 0.0 {
            continue;
        }
        let axis = [dx / length, dy / length];
        let extent = |[ux, uy]: [f64; 2]| {
            let along = hull.iter().map(|p| p[0] * ux + p[1] * uy);
            along.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), v| (least.min(v), most.max(v)))
        };
        let across = [-axis[1], axis[0]];
        let ((a0, a1), (b0, b1)) = (extent(axis), extent(across));
        let area = (a1 - a0) * (b1 - b0);
        // Clearly smaller: of equal ones the first, whatever the last bits say.
        if best.as_ref().is_none_or(|(least, _)| area < least - least.abs() * 1e-12) {
            let (a, b) = ((a0 + a1) / 2.0, (b0 + b1) / 2.0);
            let centre = [axis[0] * a + across[0] * b, axis[1] * a + across[1] * b];
            best = Some((area, Rectangle { centre, sides: [a1 - a0, b1 - b0], axis }));
        }
    }
    Some(best.map_or(Rectangle { centre: first, sides: [0.0; 2], axis: [1.0, 0.0] }, |(_, found)| found))
}

/// Andrew's monotone chain.
fn convex_hull(points: &mut Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    points.sort_by(|a, b| compare_numbers(a[0], b[0]).then(compare_numbers(a[1], b[1])));
    points.dedup();
    if points.len() < 3 {
        return points.clone();
    }
    let turns = |a: [f64; 2], b: [f64; 2], c: [f64; 2]| {
        (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) > 0.0
    };
    let half = |points: &mut dyn Iterator<Item = [f64; 2]>| {
        let mut hull: Vec<[f64; 2]> = Vec::new();
        for point in points {
            while hull.len() >= 2 && !turns(hull[hull.len() - 2], hull[hull.len() - 1], point) {
                hull.pop();
            }
            hull.push(point);
        }
        hull.pop();
        hull
    };
    let mut hull = half(&mut points.iter().copied());
    hull.extend(half(&mut points.iter().rev().copied()));
    hull
}

/// The rectangle around the outline at a distance of area times `ratio`, divided by the perimeter, from this one. Offsetting rounds the corners;
/// the smallest rectangle around that has the same directions.
pub fn unclip(rectangle: &Rectangle, ratio: f64) -> Rectangle {
    let [w, h] = rectangle.sides;
    let distance = if w + h > 0.0 { w * h * ratio / (2.0 * (w + h)) } else { 0.0 };
    Rectangle { sides: [w + 2.0 * distance, h + 2.0 * distance], ..*rectangle }
}

/// The mean of a map over the pixels whose centres lie in a polygon whose corners are cut to whole pixels, as OpenCV fills it: what its outline
/// passes counts, too.
pub fn score_within(map: &[f32], width: usize, height: usize, corners: &Quad) -> f32 {
    if width == 0 || height == 0 {
        return f32::NAN;
    }
    let axis = |at: usize, side: usize| {
        let (least, most) =
            corners.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), p| (a.min(p[at]), b.max(p[at])));
        let last = (side - 1) as f64;
        (least.floor().clamp(0.0, last) as i64, most.ceil().clamp(0.0, last) as i64)
    };
    let ((left, right), (top, bottom)) = (axis(0, width), axis(1, height));
    // Truncated as a cast to an integer does, within the part that is looked at.
    let points = corners.map(|p| [(p[0] - left as f64) as i64 + left, (p[1] - top as f64) as i64 + top]);
    let (mut sum, mut n) = (0.0, 0_u64);
    for y in top..=bottom {
        let Some((from, to)) = covered(&points, y) else { continue };
        for x in from.max(left)..=to.min(right) {
            sum += f64::from(map[y as usize * width + x as usize]);
            n += 1;
        }
    }
    if n == 0 { f32::NAN } else { (sum / n as f64) as f32 }
}

/// The first and the last pixel that a convex polygon of whole corners covers in a line, with the lines that are drawn along its sides: a flat one
/// passes several pixels of a line.
fn covered(points: &[[i64; 2]; 4], y: i64) -> Option<(i64, i64)> {
    let mut span: Option<(f64, f64)> = None;
    let mut add = |x: f64| {
        span = Some(span.map_or((x, x), |(least, most)| (least.min(x), most.max(x))));
    };
    for (at, &[ax, ay]) in points.iter().enumerate() {
        let [bx, by] = points[(at + 1) % 4];
        let (top, bottom) = (ay.min(by), ay.max(by));
        if !(top..=bottom).contains(&y) {
            continue;
        }
        if ay == by {
            add(ax as f64);
            add(bx as f64);
            continue;
        }
        let slope = (bx - ax) as f64 / (by - ay) as f64;
        let of = |y: f64| ax as f64 + (y - ay as f64) * slope;
        add(of(y as f64).round());
        if slope.abs() > 1.0 {
            add(of((y as f64 - 0.5).max(top as f64)));
            add(of((y as f64 + 0.5).min(bottom as f64)));
        }
    }
    span.map(|(least, most)| ((least - 1e-9).ceil() as i64, (most + 1e-9).floor() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_rectangle_is_found_however_points_are_turned() {
        for angle in [0.0_f64, 0.3, 0.8, 1.3, 2.9] {
            let (cos, sin) = (angle.cos(), angle.sin());
            let mut points: Vec<[f64; 2]> =
                [[0.0, 0.0], [9.0, 0.0], [9.0, 4.0], [0.0, 4.0], [3.0, 2.0], [9.0, 2.0]]
                    .map(|[x, y]| [x * cos - y * sin + 20.0, x * sin + y * cos + 20.0])
                    .to_vec();
            let found = min_area_rectangle(&mut points).unwrap();
            assert!((found.sides[0] * found.sides[1] - 36.0).abs() < 1e-9, "{angle}: {found:?}");
            assert!((found.short_side() - 4.0).abs() < 1e-9);
            let quad = found.ordered();
            let area: f64 = (0..4)
                .map(|at| quad[at][0] * quad[(at + 1) % 4][1] - quad[(at + 1) % 4][0] * quad[at][1])
                .sum();
            assert!((area / 2.0 - 36.0).abs() < 1e-6, "clockwise where y goes down: {quad:?}");
        }
        assert_eq!(min_area_rectangle(&mut Vec::new()), None);
        assert_eq!(min_area_rectangle(&mut vec![[1.0, 2.0]; 5]).unwrap().short_side(), 0.0);
        assert_eq!(
            min_area_rectangle(&mut vec![[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]]).unwrap().short_side(),
            0.0
        );
    }

    #[test]
    fn a_score_is_the_mean_of_the_pixels_with_the_outline() {
        let map: Vec<f32> = (0..48).map(|at| (at % 8) as f32).collect();
        assert_eq!(score_within(&map, 8, 6, &[[1.2, 1.0], [4.9, 1.0], [4.9, 3.0], [1.2, 3.0]]), 2.5);
        let diamond = [[4.0, 0.0], [7.0, 3.0], [4.0, 6.0], [1.0, 3.0]];
        assert_eq!(score_within(&map, 8, 6, &diamond), 4.0);
    }
}
