//! What a completed batch has of the outputs of its stage, row by row. What a worker says of shapes and sizes is checked here.

use orchestra_core::data::TensorView;
use orchestra_core::{Dim, TensorSpec};

use crate::messages::CompletedBatch;

impl CompletedBatch {
    /// What this batch has of each output of the stage.
    ///
    /// # Errors
    /// It is not what the worker says, or cannot be split into rows.
    pub fn outputs<'a>(&'a self, specs: &'a [TensorSpec]) -> Result<Vec<OutputRows<'a>>, String> {
        let rows = self.rows.count;
        let output = |(i, spec): (usize, &'a TensorSpec)| {
            let dynamic = self.dynamic.iter().find(|d| d.output == i);
            let shape = match dynamic {
                // Nothing that is made of it may take its word for a size.
                Some(d) if !d.is_sound() || d.dtype != spec.dtype => {
                    Err(format!("output `{}` has not the type and size that the worker says", spec.name))
                }
                Some(d) if d.shape.first() == Some(&rows) => Ok(d.shape[1..].to_vec()),
                // The whole tensor belongs to the only item.
                Some(d) if rows == 1 => Ok(d.shape.clone()),
                Some(d) => Err(format!(
                    "output `{}` has shape {:?} for {rows} items and cannot be split; set `batch = {{ max = 1 }}`",
                    spec.name, d.shape
                )),
                None => spec
                    .row
                    .iter()
                    .map(|d| match d {
                        Dim::Fixed(n) => Ok(*n),
                        Dim::Dynamic => Err(format!("output `{}` is missing", spec.name)),
                    })
                    .collect(),
            }?;
            let row_bytes = shape.iter().product::<usize>() * spec.dtype.size_bytes();
            let data = match dynamic {
                Some(d) => Some(d.data.as_slice()),
                None => self.outputs.as_ref().and_then(|outputs| outputs.rows(i)),
            };
            match data {
                Some(data) if data.len() == rows * row_bytes => {
                    Ok(OutputRows { spec, shape, row_bytes, data })
                }
                _ => Err(format!("output `{}` has not the size that its shape says", spec.name)),
            }
        };
        specs.iter().enumerate().map(output).collect()
    }
}

pub struct OutputRows<'a> {
    spec: &'a TensorSpec,
    shape: Vec<usize>,
    row_bytes: usize,
    data: &'a [u8],
}

impl OutputRows<'_> {
    pub fn row(&self, row: usize) -> TensorView<'_> {
        let data = &self.data[row * self.row_bytes..(row + 1) * self.row_bytes];
        TensorView { name: &self.spec.name, dtype: self.spec.dtype, shape: &self.shape, data }
    }
}
