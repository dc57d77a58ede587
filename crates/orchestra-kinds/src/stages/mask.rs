//! `kind = "mask"`: what a segmentation model gives, as a picture.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Pixels, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{Dim, Element, Placement};
use orchestra_plan::{Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings};

use super::shared::best_classes::BestClasses;
use crate::elements::no_number;
use crate::picture_encoders::png;

settings! {
    #[derive(Debug)]
    pub struct Mask {
        /// of one score per pixel: what is above it is class 1, all else class 0
        above: f64 = 0.5,
    }
}

impl TypedStage for Mask {
    const NAME: &'static str = "mask";
    const ABOUT: &'static str = "Makes a mask, `mask`, the content of a gray PNG file of 8 bits with the number of the class in each pixel, of scores `[C, height, width]` (the best class of each pixel counts), of one score per pixel (`[1, height, width]` or \
         `[height, width]`, float), or of classes `[height, width]` (integer or bool, as `argmax` and `threshold` give them). With `from = [\"pictures\", \
         \"scores\"]` it has the size of the picture and lies on it as the row of the image or crop stage did, whatever its `fit` (nearest pixel); \
         what the row does not show is class 0.";
    type Work = MaskWork;
}

impl Connect for Mask {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let mut reads = Vec::new();
        if stage.inputs.len() > 1 {
            let what = "pictures first, which a source gives, where it reads from two";
            reads.push((0, stage.column(0, what, |c| c.ty == ColumnType::Picture)?));
        }
        let at = reads.len();
        let what = "scores or classes of pixels, which an infer stage gives";
        let place = stage.column(at, what, |c| matches!(c.ty.required(), ColumnType::Tensor(_)))?;
        reads.push((at, place));
        let (name, input) = (stage.name, &stage.inputs[at]);
        let placed = input.gives.0.iter().position(|column| column.ty == ColumnType::Placement);
        let placed = placed.filter(|_| at == 1);
        reads.extend(placed.map(|column| (at, column)));
        let tensor = input.gives.0[place].ty.tensor().ok_or(Reported)?.clone();
        let floats = tensor.dtype.is_float();
        // `None`: scores of several classes.
        let one = match tensor.row[..] {
            [_, _] => Some(floats),
            [Dim::Fixed(1), _, _] => Some(floats),
            [_, _, _] if floats => None,
            _ => {
                let message = format!("stage `{name}` cannot make a mask of `{}`", tensor.name);
                return stage.error(input.span, message).label(format!("it is {tensor}")).help(
                    "it takes scores f32[batch, C, height, width], or one score or class per pixel, [batch, height, width]",
                ).fail();
            }
        };
        let open = matches!(tensor.row[..], [Dim::Dynamic, _, _]);
        if one != Some(true) && !open {
            stage.warn_of("above", &format!(" on `{}`, which is {tensor}", tensor.name));
        }
        // No picture says how large the mask is.
        let cost = tensor.row_len().filter(|_| at == 0).map(|n| n.saturating_mul(PER_PIXEL));
        let about = "classes as PNG".to_owned();
        let mut details = vec![about.clone()];
        details.extend((at == 1).then(|| "size of the picture".to_owned()));
        Ok(StageConnected {
            gives: Schema::of("mask", ColumnType::Bytes("png".into())),
            settings: self.json(),
            reads,
            details,
            about,
            runs: Runs::map::<Self>(MaskWork { above: self.above, is_placed: placed.is_some() }, cost),
        })
    }
}

/// What a pixel costs to encode, in numbers that are read.
const PER_PIXEL: usize = 8;

/// How a mask is made of scores.
#[derive(Debug, Encode, Decode)]
pub struct MaskWork {
    above: f64,
    /// The last column read is a placement.
    is_placed: bool,
}

impl RowWork for MaskWork {
    type Scratch = BestClasses;

    fn apply(
        &self,
        best: &mut BestClasses,
        inputs: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        let (inputs, placed) = match inputs {
            [inputs @ .., placed] if self.is_placed => (inputs, Some(Placement::of(placed)?)),
            inputs => (inputs, None),
        };
        let Some((scores, picture)) = inputs.split_last() else {
            return Err(ItemError::result("the scores to make a mask of are missing"));
        };
        let mut size = (0, 0);
        scores.with_tensor(|view| {
            size = self.classes(view, best)?;
            Ok(())
        })?;
        let mut wanted = size;
        if let Some(Value::Picture(picture)) = picture.first() {
            picture.with_pixels(&mut |pixels| {
                wanted = (pixels.width as usize, pixels.height as usize);
                Ok(())
            })?;
        }
        let to_mask = placed.map_or(stretched(size, wanted), |placed| to_mask(&placed, size));
        let grid = ClassGrid { classes: &best.classes, size, wanted, to_mask };
        emit.row(&[Value::Bytes(&grid.png()?)])
    }
}

impl MaskWork {
    /// Finds the class of each pixel; gives width and height.
    fn classes(&self, view: &TensorView<'_>, best: &mut BestClasses) -> Result<(usize, usize), ItemError> {
        let (n, height, width) = match *view.shape {
            [height, width] => (1, height, width),
            [n, height, width] => (n, height, width),
            _ => {
                return Err(ItemError::result(format!(
                    "`{}` has {} dimensions",
                    view.name,
                    view.shape.len()
                )));
            }
        };
        if n == 0 || height == 0 || width == 0 {
            return Err(ItemError::result(format!(
                "`{}` is {n} x {height} x {width}: there is no pixel",
                view.name
            )));
        }
        if n > 1 {
            best.find(view, 0)?;
            return Ok((width, height));
        }
        best.classes.clear();
        for (place, bytes) in view.data.chunks_exact(view.dtype.size_bytes()).enumerate() {
            let element = Element::read(view.dtype, bytes);
            let class = match element.to_i64() {
                Some(v) => i32::try_from(v).ok().filter(|v| *v >= 0).ok_or_else(|| {
                    ItemError::result(format!("`{}` holds {v}, which is no class", view.name))
                })?,
                None => i32::from(element.is_above(self.above).ok_or_else(|| no_number(view.name, place))?),
            };
            best.classes.push(class);
        }
        Ok((width, height))
    }
}

/// `x = m[0] * column + m[1] * line + m[2]`, `y = m[3] * column + m[4] * line + m[5]`, as in [`Placement`].
type MaskTransform = [f64; 6];

/// From the size that is wanted to a mask that shows all of it.
fn stretched(size: (usize, usize), wanted: (usize, usize)) -> MaskTransform {
    [size.0 as f64 / wanted.0 as f64, 0.0, 0.0, 0.0, size.1 as f64 / wanted.1 as f64, 0.0]
}

/// From the picture to a mask of the whole row: the inverse of `to_picture`, and the mask may have fewer pixels than the row.
fn to_mask(placed: &Placement, size: (usize, usize)) -> MaskTransform {
    let [a, b, c, d, e, f] = placed.to_picture;
    let across = size.0 as f64 / f64::from(placed.row[0]) / (a * e - b * d);
    let down = size.1 as f64 / f64::from(placed.row[1]) / (a * e - b * d);
    [e * across, -b * across, (b * f - c * e) * across, -d * down, a * down, (c * d - a * f) * down]
}

/// So much may a point be off by rounding that lies on the edge of two pixels, which is then in the later one.
const EDGE: f64 = 1e-6;

/// Classes of pixels, at the size that is wanted.
struct ClassGrid<'a> {
    classes: &'a [i32],
    /// Width and height of what is there.
    size: (usize, usize),
    wanted: (usize, usize),
    to_mask: MaskTransform,
}

impl ClassGrid<'_> {
    /// The class of a pixel: that of the pixel of the mask in which its centre lies, and 0 where there is none.
    fn class(&self, x: usize, y: usize) -> i32 {
        let (x, y) = (x as f64 + 0.5, y as f64 + 0.5);
        let [a, b, c, d, e, f] = self.to_mask;
        let within = |at: f64, size: usize| {
            let at = (at + EDGE).floor();
            (at >= 0.0 && at < size as f64).then_some(at as usize)
        };
        let place = within(a * x + b * y + c, self.size.0).zip(within(d * x + e * y + f, self.size.1));
        place.map_or(0, |(x, y)| self.classes[y * self.size.0 + x])
    }

    fn png(&self) -> Result<Vec<u8>, ItemError> {
        let (width, height) = self.wanted;
        let mut bytes = Vec::with_capacity(width * height);
        for y in 0..height {
            for x in 0..width {
                let class = self.class(x, y);
                bytes.push(u8::try_from(class).map_err(|_| {
                    ItemError::result(format!(
                        "class {class} has no place in a PNG of 8 bits, which ends at 255"
                    ))
                })?);
            }
        }
        let side = |side: usize| u32::try_from(side).map_err(|_| ItemError::result("the mask is too large"));
        png(&Pixels { width: side(width)?, height: side(height)?, channels: 1, bytes: &bytes })
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;

    use super::super::shared::testing::apply;
    use super::*;

    fn mask(dtype: DType, shape: &[usize], data: &[u8]) -> Result<Vec<u8>, String> {
        let work = MaskWork { above: 0.5, is_placed: false };
        let view = TensorView { name: "y", dtype, shape, data };
        let mut made = Vec::new();
        let applied = apply(&work, &[Value::Tensor(view)], |row| match row {
            [Value::Bytes(bytes)] => made.extend(*bytes),
            other => panic!("{other:?}"),
        });
        applied.map_err(|item_error| item_error.error)?;
        Ok(made)
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    fn a_png_holds_the_class_of_each_pixel() {
        let scores = floats(&[0.1, 0.9, 0.5, 0.2, 0.2, 0.3, 0.6, 0.1, 0.7, 0.0, 0.0, 0.9]);
        let pixels = |bytes: &[u8]| image::load_from_memory(bytes).unwrap().into_luma8().into_raw();
        assert_eq!(pixels(&mask(DType::F32, &[3, 2, 2], &scores).unwrap()), [2, 0, 1, 2]);
        let one = mask(DType::F32, &[1, 1, 4], &scores[..16]).unwrap();
        assert_eq!(pixels(&one), [0, 1, 0, 0], "0.5 is not above 0.5");
    }

    #[test]
    fn a_mask_of_another_size_takes_the_nearest_pixel() {
        let to_mask = stretched((2, 2), (4, 3));
        assert_eq!(all(&[0, 1, 2, 3], (4, 3), to_mask), [0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]);
    }

    /// The classes of all pixels of a mask that has 2 by 2.
    fn all(classes: &[i32; 4], wanted: (usize, usize), to_mask: MaskTransform) -> Vec<i32> {
        let grid = ClassGrid { classes, size: (2, 2), wanted, to_mask };
        let pixels = (0..wanted.1).flat_map(|y| (0..wanted.0).map(move |x| (x, y)));
        pixels.map(|(x, y)| grid.class(x, y)).collect()
    }

    #[test]
    fn a_mask_lies_on_the_picture_where_its_row_did() {
        let placed = |to_picture| Placement { row: [4, 4], picture: [4, 2], to_picture };
        let of = |to_picture| all(&[1, 2, 3, 4], (4, 2), to_mask(&placed(to_picture), (2, 2)));
        // Stretched; with a line of the picture above and below that is none; a cut out of the middle; turned by 90 degrees.
        assert_eq!(of([1.0, 0.0, 0.0, 0.0, 0.5, 0.0]), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(of([1.0, 0.0, 0.0, 0.0, 1.0, -1.0]), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(of([0.5, 0.0, 1.0, 0.0, 0.5, 0.0]), [0, 1, 2, 0, 0, 3, 4, 0]);
        assert_eq!(of([0.0, 1.0, 0.0, -0.5, 0.0, 2.0]), [2, 2, 4, 4, 1, 1, 3, 3]);
    }

    #[test]
    fn what_is_no_class_or_has_no_pixel_fails_the_item() {
        let ints = |values: &[i64]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
        let error = |shape: &[usize], values: &[i64]| mask(DType::I64, shape, &ints(values)).unwrap_err();
        assert!(error(&[1, 2], &[0, -1]).contains("holds -1"));
        assert!(error(&[1, 2], &[0, 1 << 40]).contains("no class"));
        assert!(error(&[1, 2], &[0, 256]).contains("ends at 255"));
        assert!(error(&[0, 2], &[]).contains("no pixel"));
        assert!(error(&[2], &[0, 1]).contains("1 dimensions"));
    }
}
