//! Where the pixels of a row come from in the picture that it was made of. Arithmetic only.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::data::{ItemError, TensorView, Value, fixed_tensor};
use crate::tensor::{DType, TensorSpec};

/// The map from a row of pixels to the whole picture behind it. Points are in pixels and parts of them: the left edge of the first pixel is 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// Width and height of the row in pixels; of what is left of it, where it is trimmed.
    pub row: [u32; 2],
    /// Width and height of the picture, upright and in full.
    pub picture: [u32; 2],
    /// `x = m[0] * column + m[1] * line + m[2]`, `y = m[3] * column + m[4] * line + m[5]`.
    pub to_picture: [f64; 6],
}

/// An input of a model that computes no more of each row than [`Placement::row`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Trim {
    /// The input, by its place in the model.
    pub input: usize,
    /// The axes of height and width in its rows.
    pub axes: [usize; 2],
}

/// Numbers of a placement as a tensor: four sides, and the bits of six `f64`.
const NUMBERS: usize = 10;

impl Placement {
    /// What lies in memory for it: i64 `[10]`.
    pub fn tensor() -> TensorSpec {
        fixed_tensor("placed", DType::I64, &[NUMBERS])
    }

    /// The point of the picture that lies at a point of the row.
    pub fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let m = &self.to_picture;
        [m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]]
    }

    /// The smallest upright rectangle (left, top, right, bottom) of the picture that holds a rectangle of the row.
    pub fn rectangle(&self, [left, top, right, bottom]: [f64; 4]) -> [f64; 4] {
        let corners = [[left, top], [right, top], [right, bottom], [left, bottom]].map(|p| self.point(p));
        let least = |axis: usize| corners.iter().map(|p| p[axis]).fold(f64::INFINITY, f64::min);
        let most = |axis: usize| corners.iter().map(|p| p[axis]).fold(f64::NEG_INFINITY, f64::max);
        [least(0), least(1), most(0), most(1)]
    }

    /// The elements of [`Placement::tensor`].
    pub fn bytes(&self) -> [u8; NUMBERS * 8] {
        let sides = [self.row[0], self.row[1], self.picture[0], self.picture[1]].map(i64::from);
        let map = self.to_picture.map(|number| number.to_bits().cast_signed());
        let mut bytes = [0; NUMBERS * 8];
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(sides.into_iter().chain(map)) {
            *place = number.to_ne_bytes();
        }
        bytes
    }

    /// The value that stands for `bytes`.
    pub fn value(bytes: &[u8]) -> Value<'_> {
        Value::Tensor(TensorView { name: "placed", dtype: DType::I64, shape: &[NUMBERS], data: bytes })
    }

    /// Reads what [`Placement::value`] holds.
    ///
    /// # Errors
    /// It is none, or has a side without a pixel or a number that is none.
    pub fn of(value: &Value<'_>) -> Result<Self, ItemError> {
        let read = |view: &TensorView<'_>| {
            let numbers = view.data.as_chunks::<8>().0;
            let [a, b, c, d, map @ ..] = numbers else { return None };
            let map: &[[u8; 8]; 6] = map.try_into().ok()?;
            let side = |bytes: &[u8; 8]| u32::try_from(i64::from_ne_bytes(*bytes)).ok().filter(|n| *n > 0);
            let to_picture = map.map(|bits| f64::from_bits(u64::from_ne_bytes(bits)));
            let (row, picture) = ([side(a)?, side(b)?], [side(c)?, side(d)?]);
            to_picture.iter().all(|n| n.is_finite()).then_some(Self { row, picture, to_picture })
        };
        value.with_tensor(|view| {
            read(view).ok_or_else(|| ItemError::result("internal error: a placement is none; this is a bug"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_from_its_bytes_and_anything_else_does_not() {
        let placed =
            Placement { row: [8, 4], picture: [300, 200], to_picture: [0.1, 0.0, -3.5, 0.0, 1e9, 7.0] };
        let bytes = placed.bytes();
        assert_eq!(Placement::of(&Placement::value(&bytes)).unwrap(), placed);
        assert!(Placement::of(&Placement::value(&bytes[8..])).is_err());
        assert!(Placement::of(&Placement::value(&[0; 80])).is_err());
        assert!(Placement::of(&Value::Text("x")).is_err());
    }

    #[test]
    fn a_rectangle_of_a_turned_row_is_the_one_around_it() {
        let turned = Placement { row: [4, 4], picture: [9, 9], to_picture: [0.0, 1.0, 1.0, -1.0, 0.0, 8.0] };
        assert_eq!(turned.rectangle([1.0, 0.0, 2.0, 3.0]), [1.0, 6.0, 4.0, 7.0]);
    }
}
