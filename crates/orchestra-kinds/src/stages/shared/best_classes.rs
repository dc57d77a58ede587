//! The class with the largest score, for each place of a tensor of scores.

use half::f16;
use orchestra_core::DType;
use orchestra_core::data::{Refusal, TensorView};

use super::largest::largest;

/// The best class of each place, and the buffers to find it.
#[derive(Debug, Default)]
pub struct BestClasses {
    /// Of the places in order, without the dimension of the classes.
    pub classes: Vec<i32>,
    scores: Vec<f32>,
}

impl BestClasses {
    /// Finds the best classes along `axis`.
    ///
    /// # Errors
    /// There is no such dimension, no class, or a place without a number.
    pub fn find(&mut self, view: &TensorView<'_>, axis: usize) -> Result<(), Refusal> {
        let n = view.shape.get(axis).copied().unwrap_or(0);
        if n == 0 || i32::try_from(n).is_err() {
            return Err(Refusal::result(format!("`{}` scores {n} classes", view.name)));
        }
        let inner: usize = view.shape[axis + 1..].iter().product();
        let size = view.dtype.size_bytes();
        self.classes.clear();
        if inner == 0 {
            return Ok(());
        }
        for block in view.data.chunks_exact(n * inner * size) {
            if inner == 1 {
                let best =
                    largest(view.dtype, block).ok_or_else(|| no_number(view.name, self.classes.len()))?;
                self.classes.push(best.0 as i32);
                continue;
            }
            self.planes(view, block, inner)?;
        }
        Ok(())
    }

    /// Appends the best classes of planes that lie one behind the other, one per class. A plane is compared with the best so far without a
    /// branch, which vector instructions do.
    fn planes(&mut self, view: &TensorView<'_>, block: &[u8], inner: usize) -> Result<(), Refusal> {
        let start = self.classes.len();
        self.classes.resize(start + inner, -1);
        self.scores.clear();
        self.scores.resize(inner, f32::NEG_INFINITY);
        let (scores, classes) = (&mut self.scores[..], &mut self.classes[start..]);
        for (class, plane) in block.chunks_exact(inner * view.dtype.size_bytes()).enumerate() {
            let class = class as i32;
            match view.dtype {
                DType::F32 => better(plane.as_chunks().0, class, scores, classes, |v| f32::from_ne_bytes(*v)),
                DType::F16 => {
                    better(plane.as_chunks().0, class, scores, classes, |v| f16::from_ne_bytes(*v).to_f32());
                }
                _ => better(plane.as_chunks().0, class, scores, classes, |[v]| f32::from(*v)),
            }
        }
        match classes.iter().position(|class| *class < 0) {
            Some(place) => Err(no_number(view.name, start + place)),
            None => Ok(()),
        }
    }
}

fn no_number(name: &str, place: usize) -> Refusal {
    Refusal::result(format!("`{name}` holds no number at place {place}"))
}

fn better<T>(plane: &[T], class: i32, scores: &mut [f32], classes: &mut [i32], read: impl Fn(&T) -> f32) {
    for ((value, score), best) in plane.iter().zip(scores).zip(classes) {
        let value = read(value);
        // Minus infinity is a score, too: the first class that has one is better than none.
        let is_better = (value > *score) | ((*best < 0) & (value == *score));
        *score = if is_better { value } else { *score };
        *best = if is_better { class } else { *best };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(values: &[f32], shape: &[usize], axis: usize) -> Result<Vec<i32>, Refusal> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let mut best = BestClasses::default();
        best.find(&TensorView { name: "y", dtype: DType::F32, shape, data: &data }, axis)?;
        Ok(best.classes)
    }

    #[test]
    fn the_best_class_is_found_along_any_dimension() {
        let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
        let values = [1.0, nan, 3.0, least, 2.0, 5.0, 3.0, nan, 0.0, 5.0, 9.0, least];
        assert_eq!(classes(&values, &[3, 4], 0).unwrap(), [1, 1, 2, 0]);
        assert_eq!(classes(&values, &[3, 4], 1).unwrap(), [2, 1, 2]);
        assert_eq!(classes(&values, &[3, 2, 2], 1).unwrap(), [1, 1, 1, 0, 1, 0]);
        assert_eq!(classes(&values[4..7], &[3], 0).unwrap(), [1]);
    }

    #[test]
    fn a_place_without_a_number_and_no_class_at_all_fail_the_item() {
        let error = classes(&[1.0, f32::NAN, 2.0, f32::NAN], &[2, 2], 0).unwrap_err().error;
        assert!(error.contains("place 1"), "{error}");
        assert!(classes(&[f32::NAN; 2], &[2], 0).is_err());
        assert!(classes(&[], &[0, 4], 0).unwrap_err().error.contains("0 classes"));
        assert!(classes(&[], &[4, 0], 0).unwrap().is_empty());
    }
}
