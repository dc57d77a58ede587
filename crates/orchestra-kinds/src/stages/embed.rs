//! `kind = "embed"`: a vector of unit length for each item, out of what an encoder gives.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Dim, Element, TensorSpec};
use orchestra_plan::{
    Choice as _, Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, choices,
    settings,
};

use crate::elements::read_numbers;

settings! {
    #[derive(Debug)]
    pub struct Embed {
        /// what becomes of several vectors; `[tokens, D]` is pooled over the tokens, `[C, height, width]` over the places
        pool: Pool = "none",
        /// the vector is divided by its length (L2), so that a product of two is their cosine; one of zeros fails its item
        normalize: bool = true,
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum Pool {
        /// there is one, `[D]`
        None = "none",
        /// the mean of each number
        Mean = "mean",
        /// the largest of each number
        Max = "max",
        /// the first is taken
        Cls = "cls",
    }
}

/// How vectors lie in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
enum VectorLayout {
    /// `[vectors, numbers]`
    Rows,
    /// `[numbers, height, width]`
    Planes,
}

impl TypedStage for Embed {
    const NAME: &'static str = "embed";
    const ABOUT: &'static str = "Gives one vector per item, `embedding`, f32, of the output of an encoder. With `from = [\"tokens\", \"mask\"]` only the tokens count whose number \
         in the mask is not 0.";
    type Work = Pooling;
}

impl Connect for Embed {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what = "vectors, which an infer stage gives";
        let place = stage.column(0, what, |c| c.ty.tensor().is_some())?;
        let input = &stage.inputs[0];
        let tensor = input.gives.0[place].ty.tensor().ok_or(Reported)?.clone();
        let wide: Vec<Dim> = tensor.row.iter().copied().filter(|dim| *dim != Dim::Fixed(1)).collect();
        let found = match (self.pool, &tensor.row[..], &wide[..]) {
            (Pool::None, _, []) => Some((VectorLayout::Rows, None, Dim::Fixed(1))),
            (Pool::None, _, [numbers]) => Some((VectorLayout::Rows, None, *numbers)),
            (Pool::Mean | Pool::Max | Pool::Cls, [many, numbers], _) => {
                Some((VectorLayout::Rows, Some(*many), *numbers))
            }
            (Pool::Mean | Pool::Max, [numbers, ..], _) if tensor.row.len() == 3 => {
                Some((VectorLayout::Planes, None, *numbers))
            }
            _ => None,
        };
        let floats = tensor.dtype.is_float();
        let Some((layout, many, numbers)) = found.filter(|_| floats) else {
            let help = match self.pool {
                Pool::None => {
                    "one vector per item is f32[batch, D]; of several say what becomes of them: pool = \"mean\", \"max\" or \"cls\""
                }
                Pool::Cls => "pool = \"cls\" takes f32[batch, tokens, D]",
                Pool::Mean | Pool::Max => {
                    "it takes f32[batch, tokens, D] or f32[batch, C, height, width]; of f32[batch, D] leave `pool` out"
                }
            };
            let message = format!("stage `{}` cannot make a vector of `{}`", stage.name, tensor.name);
            return stage.error(input.span, message).label(format!("it is {tensor}")).help(help).fail();
        };
        let mut reads = vec![(0, place)];
        if let Some(many) = many.filter(|_| stage.inputs.len() > 1 && self.pool != Pool::Cls) {
            reads.push((1, mask(stage, many)?));
        }
        let mut details = vec![if self.normalize { "unit length" } else { "any length" }.to_owned()];
        details.extend((self.pool != Pool::None).then(|| format!("{} of several", self.pool.name())));
        let spec = TensorSpec {
            name: "embedding".into(),
            dtype: DType::F32,
            row: vec![numbers],
            batch: Dim::Dynamic,
        };
        Ok(StageConnected {
            gives: Schema::of("embedding", ColumnType::Tensor(spec)),
            settings: self.json(),
            about: format!("a vector, {}", details.join(", ")),
            details,
            runs: Runs::map::<Self>(
                Pooling { pool: self.pool, layout, normalize: self.normalize },
                tensor.row_len(),
            ),
            reads,
        })
    }
}

/// The column of input 1 that says which of so many tokens count.
fn mask(stage: &mut StageContext<'_>, many: Dim) -> Result<usize, Reported> {
    let place = stage.column(1, "a mask with a number per token", |c| c.ty.tensor().is_some())?;
    let mask = stage.inputs[1].gives.0[place].ty.tensor().ok_or(Reported)?;
    let fits = match (&mask.row[..], many) {
        ([Dim::Fixed(mask)], Dim::Fixed(many)) => *mask == many,
        (row, _) => row.len() == 1,
    };
    if !fits {
        let message = format!("`{}` of stage `{}` is no mask of the tokens", mask.name, stage.inputs[1].name);
        let help = format!("a mask has one number per token: [batch, {many}]");
        return stage.error(stage.inputs[1].span, message).label(format!("it is {mask}")).help(help).fail();
    }
    Ok(place)
}

/// How a vector is made of a tensor.
#[derive(Debug, Encode, Decode)]
pub struct Pooling {
    pool: Pool,
    layout: VectorLayout,
    normalize: bool,
}

#[derive(Default)]
pub struct EmbedBuffers {
    values: Vec<f32>,
    mask: Vec<f32>,
    sums: Vec<f64>,
}

impl RowWork for Pooling {
    type Scratch = EmbedBuffers;

    fn apply(
        &self,
        buffers: &mut EmbedBuffers,
        row: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        let mut shape = Vec::new();
        row[0].with_tensor(|view| {
            read_numbers(view, &mut buffers.values)?;
            let is_zero = |bytes: &[u8]| Element::read(view.dtype, bytes).to_f64() == 0.0;
            let all_zeros = || buffers.values.iter().all(|value| *value == 0.0);
            if view.dtype == DType::F64 && all_zeros() && !view.data.chunks_exact(8).all(is_zero) {
                return Err(ItemError::result("all numbers of the vector are too small for f32"));
            }
            shape.extend_from_slice(view.shape);
            Ok(())
        })?;
        buffers.mask.clear();
        if let Some(mask) = row.get(1) {
            mask.with_tensor(|view| read_numbers(view, &mut buffers.mask))?;
            let many = shape.first().copied().unwrap_or(0);
            if buffers.mask.len() != many {
                let n = buffers.mask.len();
                return Err(ItemError::result(format!("the mask has {n} numbers for {many} tokens")));
            }
        }
        self.pool(&shape, buffers)?;
        let sums = &mut buffers.sums;
        if self.normalize {
            // The square of the least `f32` is far from the least `f64`.
            let length = sums.iter().map(|v| v * v).sum::<f64>().sqrt();
            if length == 0.0 {
                return Err(ItemError::result(
                    "all numbers of the vector are 0, so it has no direction and no unit length; `normalize = false` keeps it as it is",
                ));
            }
            sums.iter_mut().for_each(|v| *v /= length);
        }
        // Of an infinity there is no unit length, and two make a mean that is no number.
        if let Some(place) = sums.iter().position(|v| v.is_nan()) {
            return Err(ItemError::result(format!(
                "there is no vector: its number {place} comes of an infinity"
            )));
        }
        let data: Vec<u8> = sums.iter().flat_map(|v| (*v as f32).to_ne_bytes()).collect();
        let shape = [sums.len()];
        emit.row(&[Value::Tensor(TensorView {
            name: "embedding",
            dtype: DType::F32,
            shape: &shape,
            data: &data,
        })])
    }
}

impl Pooling {
    /// Makes one vector of all, in `sums`.
    fn pool(&self, shape: &[usize], buffers: &mut EmbedBuffers) -> Result<(), ItemError> {
        let nothing =
            || ItemError::result("there is no vector to pool: none is there, or the mask leaves none");
        let EmbedBuffers { values, sums, mask } = buffers;
        sums.clear();
        if self.layout == VectorLayout::Planes {
            let places: usize = shape.iter().skip(1).product();
            if places == 0 {
                return Err(nothing());
            }
            let planes = values.chunks_exact(places);
            sums.extend(planes.map(|plane| match self.pool {
                Pool::Max => f64::from(plane.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
                _ => plane.iter().map(|v| f64::from(*v)).sum::<f64>() / places as f64,
            }));
            return Ok(());
        }
        if self.pool == Pool::None {
            sums.extend(values.iter().map(|v| f64::from(*v)));
            return Ok(());
        }
        let numbers = shape.last().copied().unwrap_or(0).max(1);
        let mut n = 0_u64;
        for (at, vector) in values.chunks_exact(numbers).enumerate() {
            if mask.get(at).is_some_and(|counts| *counts == 0.0) {
                continue;
            }
            n += 1;
            if n == 1 {
                sums.extend(vector.iter().map(|v| f64::from(*v)));
                if self.pool == Pool::Cls {
                    break;
                }
                continue;
            }
            let pairs = sums.iter_mut().zip(vector);
            match self.pool {
                Pool::Max => pairs.for_each(|(sum, v)| *sum = sum.max(f64::from(*v))),
                _ => pairs.for_each(|(sum, v)| *sum += f64::from(*v)),
            }
        }
        if n == 0 {
            return Err(nothing());
        }
        if self.pool == Pool::Mean {
            sums.iter_mut().for_each(|sum| *sum /= n as f64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::apply;
    use super::*;

    fn embed(
        pool: Pool,
        layout: VectorLayout,
        shape: &[usize],
        mask: Option<&[u8]>,
    ) -> Result<Vec<f32>, ItemError> {
        let numbers = &[3.0, 1.0, 1.0, 7.0, 2.0, 4.0][..shape.iter().product()];
        embed_of(Pooling { pool, layout, normalize: false }, shape, numbers, mask)
    }

    fn embed_of(
        pooling: Pooling,
        shape: &[usize],
        numbers: &[f32],
        mask: Option<&[u8]>,
    ) -> Result<Vec<f32>, ItemError> {
        let data = &numbers.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let mut inputs = vec![Value::Tensor(TensorView { name: "y", dtype: DType::F32, shape, data })];
        let n = mask.map_or(0, <[u8]>::len);
        let n = [n];
        inputs.extend(
            mask.map(|data| Value::Tensor(TensorView { name: "m", dtype: DType::U8, shape: &n, data })),
        );
        let mut kept = Vec::new();
        apply(&pooling, &inputs, |row| {
            row[0].with_tensor(|view| read_numbers(view, &mut kept)).unwrap();
        })?;
        Ok(kept)
    }

    #[test]
    fn vectors_are_pooled_over_tokens_or_places_and_masked_ones_do_not_count() {
        let rows = |pool, mask| embed(pool, VectorLayout::Rows, &[3, 2], mask).unwrap();
        assert_eq!(rows(Pool::Mean, None), [2.0, 4.0]);
        assert_eq!(rows(Pool::Max, None), [3.0, 7.0]);
        assert_eq!(rows(Pool::Cls, None), [3.0, 1.0]);
        assert_eq!(rows(Pool::Mean, Some(&[1, 0, 1])), [2.5, 2.5]);
        assert_eq!(rows(Pool::Max, Some(&[0, 0, 2])), [2.0, 4.0]);
        assert_eq!(
            embed(Pool::Mean, VectorLayout::Planes, &[2, 3, 1], None).unwrap(),
            [5.0 / 3.0, 13.0 / 3.0]
        );
        assert_eq!(embed(Pool::Max, VectorLayout::Planes, &[3, 1, 2], None).unwrap(), [3.0, 7.0, 4.0]);
    }

    #[test]
    fn a_vector_of_any_length_but_0_gets_unit_length() {
        let unit = |numbers: &[f32]| {
            let pooling = Pooling { pool: Pool::None, layout: VectorLayout::Rows, normalize: true };
            embed_of(pooling, &[numbers.len()], numbers, None)
        };
        let least = f32::from_bits(1);
        for scale in [f32::MAX / 8.0, 1.0, 1e-12, 1e-13, 1e-30, least] {
            let vector = unit(&[3.0 * scale, -4.0 * scale]).unwrap();
            assert!(
                (vector[0] - 0.6).abs() < 1e-6 && (vector[1] + 0.8).abs() < 1e-6,
                "{scale:e}: {vector:?}"
            );
        }
        for zeros in [&[0.0, -0.0][..], &[0.0]] {
            let error = unit(zeros).unwrap_err().error;
            assert!(error.contains("no direction") && error.contains("normalize = false"), "{error}");
        }
        let data: Vec<u8> = [1e-60_f64, 0.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let tiny = TensorView { name: "y", dtype: DType::F64, shape: &[2], data: &data };
        let pooling = Pooling { pool: Pool::None, layout: VectorLayout::Rows, normalize: true };
        let error = apply(&pooling, &[Value::Tensor(tiny)], |_| ()).unwrap_err().error;
        assert!(error.contains("too small for f32"), "{error}");
    }

    #[test]
    fn nothing_to_pool_and_a_mask_of_another_length_fail_the_item() {
        for (shape, mask) in [(&[0, 2][..], None), (&[3, 2], Some(&[0, 0, 0][..])), (&[3, 2], Some(&[1, 1]))]
        {
            let error = embed(Pool::Mean, VectorLayout::Rows, shape, mask).unwrap_err().error;
            assert!(
                error.contains("no vector to pool") || error.contains("2 numbers for 3 tokens"),
                "{error}"
            );
        }
        assert!(embed(Pool::Mean, VectorLayout::Planes, &[2, 0, 3], None).is_err());
    }
}
