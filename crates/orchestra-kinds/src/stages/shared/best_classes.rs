//! The class with the largest score, for each place of a tensor of scores.

use orchestra_core::DType;
use orchestra_core::data::{ItemError, TensorView};

use super::largest::largest_of;
use crate::elements::{Number, no_number, with_number};

/// The best class of each place.
#[derive(Debug, Default)]
pub struct BestClasses {
    /// Of the places in order, without the dimension of the classes.
    pub classes: Vec<i32>,
}

impl BestClasses {
    /// Finds the best classes along `axis`.
    ///
    /// # Errors
    /// There is no such dimension, no class, or a number that is NaN.
    pub fn find(&mut self, view: &TensorView<'_>, axis: usize) -> Result<(), ItemError> {
        let n = view.shape.get(axis).copied().unwrap_or(0);
        if n == 0 || i32::try_from(n).is_err() {
            return Err(ItemError::result(format!("`{}` scores {n} classes", view.name)));
        }
        let inner: usize = view.shape[axis + 1..].iter().product();
        self.classes.clear();
        if inner == 0 {
            return Ok(());
        }
        with_number!(view.dtype, read => self.of_blocks(view, n * inner, inner, read))
    }

    fn of_blocks<const N: usize, T: Number>(
        &mut self,
        view: &TensorView<'_>,
        block: usize,
        inner: usize,
        read: impl Fn(&[u8; N]) -> T,
    ) -> Result<(), ItemError> {
        for (at, block_of) in view.data.as_chunks().0.chunks_exact(block).enumerate() {
            let found = match inner {
                1 => largest_of(block_of, &read).map(|(class, _)| self.classes.push(class as i32)),
                _ => self.planes(block_of, inner, &read),
            };
            if found.is_none() {
                let place = block_of.iter().position(|bytes| read(bytes).is_nan());
                return Err(no_number(view.name, at * block + place.unwrap_or(0)));
            }
        }
        Ok(())
    }

    /// Appends the best classes of planes that lie one behind the other, one per class. A plane is compared with the best so far without a
    /// branch, which vector instructions do. `None`: a number is NaN.
    fn planes<const N: usize, T: Number>(
        &mut self,
        block: &[[u8; N]],
        inner: usize,
        read: impl Fn(&[u8; N]) -> T,
    ) -> Option<()> {
        let start = self.classes.len();
        self.classes.resize(start + inner, -1);
        let mut scores = vec![T::LEAST; inner];
        let mut has_nan = false;
        for (class, plane) in block.chunks_exact(inner).enumerate() {
            let class = class as i32;
            let best = self.classes[start..].iter_mut();
            for ((bytes, score), best) in plane.iter().zip(&mut scores).zip(best) {
                let value = read(bytes);
                has_nan |= value.is_nan();
                // The least number is a score, too: the first class that has one is better than none.
                let is_better = (value > *score) | ((*best < 0) & (value == *score));
                *score = if is_better { value } else { *score };
                *best = if is_better { class } else { *best };
            }
        }
        (!has_nan).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(values: &[f32], shape: &[usize], axis: usize) -> Result<Vec<i32>, ItemError> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let mut best = BestClasses::default();
        best.find(&TensorView { name: "y", dtype: DType::F32, shape, data: &data }, axis)?;
        Ok(best.classes)
    }

    #[test]
    fn the_best_class_is_found_along_any_dimension() {
        let least = f32::NEG_INFINITY;
        let values = [1.0, -9.0, 3.0, least, 2.0, 5.0, 3.0, least, 0.0, 5.0, 9.0, least];
        assert_eq!(classes(&values, &[3, 4], 0).unwrap(), [1, 1, 2, 0]);
        assert_eq!(classes(&values, &[3, 4], 1).unwrap(), [2, 1, 2]);
        assert_eq!(classes(&values, &[3, 2, 2], 1).unwrap(), [1, 0, 1, 0, 1, 0]);
        assert_eq!(classes(&values[4..7], &[3], 0).unwrap(), [1]);
    }

    #[test]
    fn what_is_no_number_and_no_class_at_all_fail_the_item() {
        for (shape, axis) in [(&[2, 2][..], 0), (&[2, 2], 1), (&[4], 0), (&[1, 2, 2], 1)] {
            let error = classes(&[1.0, f32::NAN, 2.0, 0.0], shape, axis).unwrap_err().error;
            assert!(error.contains("`y` holds no number at place 1"), "{error}");
        }
        assert!(classes(&[f32::NAN; 2], &[2], 0).is_err());
        assert!(classes(&[], &[0, 4], 0).unwrap_err().error.contains("0 classes"));
        assert!(classes(&[], &[4, 0], 0).unwrap().is_empty());
    }
}
