//! A quadrilateral of a picture as a picture of its own: upright, as `cv2.getPerspectiveTransform` and `cv2.warpPerspective` make it.

use orchestra_core::data::Pixels;

use crate::error::MediaError;
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind};
use crate::preparer::Preparer;

/// A quadrilateral, and the size of the picture that is made of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quadrilateral {
    /// Clockwise from the corner that becomes the top left one. The middle of the first pixel is (0, 0), as in OpenCV.
    pub corners: [[f64; 2]; 4],
    /// Pixels along the first side, as the longer one of it and the side across has.
    pub width: u32,
    /// Pixels along the second side.
    pub height: u32,
    /// The picture is turned to the left by 90 degrees in the end.
    pub is_turned: bool,
    /// The picture is turned by 180 degrees after that.
    pub is_upside_down: bool,
}

impl Quadrilateral {
    /// The picture that lies within four corners; `None` where there is no pixel, or where the corners do not go around once. With `turn`, what
    /// is 1.5 times as high as wide is turned to the left, as texts that run downwards are read.
    pub fn new(corners: [[f64; 2]; 4], turn: bool) -> Option<Self> {
        let side = |a: usize, b: usize| (corners[a][0] - corners[b][0]).hypot(corners[a][1] - corners[b][1]);
        // Cut off, as `int` does.
        let (width, height) = (side(0, 1).max(side(2, 3)) as u32, side(0, 3).max(side(1, 2)) as u32);
        let cross = |at: usize| {
            let [a, b, c] = [0, 1, 2].map(|n| corners[(at + n) % 4]);
            (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])
        };
        let is_convex = (0..4).all(|at| cross(at) > 0.0);
        let is_turned = turn && u64::from(height) * 2 >= u64::from(width) * 3;
        (width > 0 && height > 0 && is_convex).then_some(Self {
            corners,
            width,
            height,
            is_turned,
            is_upside_down: false,
        })
    }

    /// With fewer pixels, where it would have more than the picture (width, height) that it is cut from and a border: there is no more to see.
    pub fn no_larger_than(self, picture: [u32; 2]) -> Self {
        let (most, area) = (room(picture), u64::from(self.width) * u64::from(self.height));
        if area <= most {
            return self;
        }
        let by = (most as f64 / area as f64).sqrt();
        let side = |side: u32, most: u64| u64::from((f64::from(side) * by) as u32).clamp(1, most) as u32;
        let width = side(self.width, most);
        Self { width, height: side(self.height, most / u64::from(width)), ..self }
    }

    /// Width and height of the picture in the end.
    pub fn size(&self) -> [u32; 2] {
        if self.is_turned { [self.height, self.width] } else { [self.width, self.height] }
    }

    /// `x = m[0] * column + m[1] * line + m[2]`, and `y` in the same way: where the pixels of the picture in the end lie. Exact where the
    /// quadrilateral is a parallelogram.
    pub fn to_picture(&self) -> [f64; 6] {
        let [origin, right, _, down] = self.corners;
        let (width, height) = (f64::from(self.width), f64::from(self.height));
        let [a, c] = [0, 1].map(|axis| (right[axis] - origin[axis]) / width);
        let [b, d] = [0, 1].map(|axis| (down[axis] - origin[axis]) / height);
        let [a, b, x, c, d, y] = if self.is_turned {
            // A column of the end is a line before, and a line counts the columns from the right.
            [b, -a, origin[0] + a * width, d, -c, origin[1] + c * width]
        } else {
            [a, b, origin[0], c, d, origin[1]]
        };
        if !self.is_upside_down {
            return [a, b, x, c, d, y];
        }
        let [width, height] = self.size().map(f64::from);
        [-a, -b, x + a * width + b * height, -c, -d, y + c * width + d * height]
    }

    /// The point of the picture for pixel (x, y) of the upright one: `(a u + b v + c) / (g u + h v + 1)` for `u = x / width`, `v = y / height`
    /// (Heckbert, "Fundamentals of Texture Mapping", 1989).
    fn projection(&self) -> Option<impl Fn(f64, f64) -> [f64; 2] + use<>> {
        let [p0, p1, p2, p3] = self.corners;
        let d1 = [p1[0] - p2[0], p1[1] - p2[1]];
        let d2 = [p3[0] - p2[0], p3[1] - p2[1]];
        let sum = [0, 1].map(|axis| p0[axis] - p1[axis] + p2[axis] - p3[axis]);
        let area = d1[0] * d2[1] - d2[0] * d1[1];
        let g = (sum[0] * d2[1] - d2[0] * sum[1]) / area;
        let h = (d1[0] * sum[1] - sum[0] * d1[1]) / area;
        let [a, b] = [p1, p3].map(|p| [p[0] - p0[0], p[1] - p0[1]]);
        let (width, height) = (f64::from(self.width), f64::from(self.height));
        (g.is_finite() && h.is_finite()).then_some(move |x: f64, y: f64| {
            let (u, v) = (x / width, y / height);
            let by = g * u + h * v + 1.0;
            [0, 1].map(|axis| ((a[axis] + g * p1[axis]) * u + (b[axis] + h * p3[axis]) * v + p0[axis]) / by)
        })
    }
}

/// Pixels that a cut of a picture may have: those of the picture and of a border.
fn room(picture: [u32; 2]) -> u64 {
    let [width, height] = picture.map(|side| u64::from(side) + 2);
    width * height
}

impl Preparer {
    /// Takes a quadrilateral of some pixels as the picture for `write_row`. Between pixels it is bilinear; beyond the edge the last pixel goes on.
    ///
    /// # Errors
    /// There are not as many bytes as the pixels take, or the quadrilateral is larger than the picture, which a rectangle within it never is.
    pub fn load_quadrilateral(&mut self, pixels: &Pixels<'_>, of: &Quadrilateral) -> Result<(), MediaError> {
        self.picture = None;
        self.release_excess();
        let kind = match pixels.channels {
            1 => PixelKind::Gray,
            _ => PixelKind::Rgb,
        };
        let channels = kind.channels();
        let (across, down) = (pixels.width as usize, pixels.height as usize);
        let room = room([pixels.width, pixels.height]);
        let projection = of.projection().filter(|_| u64::from(of.width) * u64::from(of.height) <= room);
        let Some(projection) = projection else { return Err(MediaError::NothingDecoded) };
        if channels != pixels.channels || across == 0 || pixels.bytes.len() != across * down * channels {
            return Err(MediaError::NothingDecoded);
        }
        let [width, height] = of.size();
        self.pixels.clear();
        self.pixels.reserve(width as usize * height as usize * channels);
        let (last_x, last_y) = ((across - 1) as f64, (down - 1) as f64);
        for y in 0..height {
            for x in 0..width {
                let (x, y) = if of.is_upside_down { (width - 1 - x, height - 1 - y) } else { (x, y) };
                let [x, y] = match of.is_turned {
                    true => projection(f64::from(of.width - 1 - y), f64::from(x)),
                    false => projection(f64::from(x), f64::from(y)),
                };
                let (x, y) = (x.clamp(0.0, last_x), y.clamp(0.0, last_y));
                let (left, top) = (x as usize, y as usize);
                let (right, bottom) = ((left + 1).min(across - 1), (top + 1).min(down - 1));
                let (part_x, part_y) = ((x - left as f64) as f32, (y - top as f64) as f32);
                for channel in 0..channels {
                    let at =
                        |x: usize, y: usize| f32::from(pixels.bytes[(y * across + x) * channels + channel]);
                    let upper = at(left, top) + (at(right, top) - at(left, top)) * part_x;
                    let lower = at(left, bottom) + (at(right, bottom) - at(left, bottom)) * part_x;
                    self.pixels.push((upper + (lower - upper) * part_y).round() as u8);
                }
            }
        }
        self.picture = Some(PictureInfo::full(width, height, kind, Orientation::default()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(corners: [[f64; 2]; 4]) -> (Quadrilateral, Vec<u8>) {
        let quad = Quadrilateral::new(corners, true).unwrap();
        let pixels = load(&quad);
        (quad, pixels)
    }

    fn load(quad: &Quadrilateral) -> Vec<u8> {
        let bytes: Vec<u8> = (0..80).map(|at| (at % 10 * 20 + at / 10) as u8).collect();
        let pixels = Pixels { width: 10, height: 8, channels: 1, bytes: &bytes };
        let mut preparer = Preparer::new();
        preparer.load_quadrilateral(&pixels, quad).unwrap();
        preparer.pixels
    }

    #[test]
    fn an_upright_cut_is_the_pixels_themselves_and_a_tall_one_is_turned_to_the_left() {
        let (quad, pixels) = cut([[2.0, 1.0], [6.0, 1.0], [6.0, 3.0], [2.0, 3.0]]);
        assert_eq!((quad.size(), pixels), ([4, 2], vec![41, 61, 81, 101, 42, 62, 82, 102]));
        // numpy.rot90 of columns 2 and 3, lines 1 to 4.
        let (quad, pixels) = cut([[2.0, 1.0], [4.0, 1.0], [4.0, 5.0], [2.0, 5.0]]);
        assert_eq!((quad.size(), pixels), ([4, 2], vec![61, 62, 63, 64, 41, 42, 43, 44]));
        let [a, b, c, d, e, f] = quad.to_picture();
        assert_eq!([a * 4.0 + b * 0.0 + c, d * 4.0 + e * 0.0 + f], [4.0, 5.0], "the top right corner");
        let upside_down = Quadrilateral { is_upside_down: true, ..quad };
        let [a, b, c, d, e, f] = upside_down.to_picture();
        assert_eq!(
            [a * 4.0 + b * 2.0 + c, d * 4.0 + e * 2.0 + f],
            [4.0, 1.0],
            "the first corner of the other"
        );
        assert_eq!(load(&upside_down), [44, 43, 42, 41, 64, 63, 62, 61]);
        // Between pixels, and on beyond the edge.
        let (_, pixels) = cut([[8.5, 6.5], [12.5, 6.5], [12.5, 8.5], [8.5, 8.5]]);
        assert_eq!(pixels[..4], [177, 187, 187, 187]);
    }

    #[test]
    fn what_is_no_quadrilateral_gives_no_picture() {
        let ok = [[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]];
        assert!(Quadrilateral::new(ok, false).is_some());
        for at in 0..4 {
            let mut bad = ok;
            bad[at] = [f64::NAN, 1.0];
            assert!(Quadrilateral::new(bad, false).is_none());
            bad[at] = bad[(at + 1) % 4];
            assert!(Quadrilateral::new(bad, false).is_none());
        }
        let [a, b, c, d] = ok;
        assert!(Quadrilateral::new([a, c, b, d], false).is_none());
        let huge = Quadrilateral::new(ok.map(|p| p.map(|v| v * 1e6)), false).unwrap();
        for long in [huge, Quadrilateral { height: 1, ..huge }, Quadrilateral { width: 1, ..huge }] {
            let cut = long.no_larger_than([30, 20]);
            assert!((1..=32 * 22).contains(&(cut.width * cut.height)), "{cut:?}");
        }
        let pixels = Pixels { width: 2, height: 2, channels: 1, bytes: &[0; 4] };
        assert!(Preparer::new().load_quadrilateral(&pixels, &huge).is_err());
    }
}
