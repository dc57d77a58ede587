//! Code of the user that runs batches: a program, or a CUDA kernel in source and how it is launched over the rows. Plain data: it is compiled in workers.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::choices;
use crate::program::Program;
use crate::tensor::{DType, TensorSpec};

/// What runs the batches of a stage where that is code of the user, and no model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// Processes that speak the worker protocol themselves.
    Program(Program),
    /// Workers that compile it. It runs on GPUs alone.
    Kernel(Kernel),
}

/// A function of a source in CUDA C++. It is called with a pointer to the rows of each input, one to those of each output, the number of
/// rows, and its scalars.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Kernel {
    /// The source as messages of the compiler call it.
    pub file: String,
    #[serde(skip)]
    pub source: String,
    /// The texts of what it includes from its own folder, by the names that it uses.
    #[serde(skip)]
    pub headers: Vec<(String, String)>,
    /// The function, as an expression of C++: `vadd`, `scale<float>`.
    pub function: String,
    /// What it is told besides the rows.
    pub scalars: Vec<Scalar>,
    pub block: u32,
    /// How many blocks there are.
    pub grid: Grid,
    /// For the compiler, as written.
    pub options: Vec<String>,
    /// What can compile it on this machine; or why nothing can, and what to do.
    #[serde(skip)]
    pub compilers: Result<Vec<Compiler>, String>,
}

/// A library of NVRTC, CUDA's compiler.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Compiler {
    pub release: u32,
    /// The library, absolute.
    pub path: PathBuf,
}

/// An argument that is the same in all launches.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Scalar {
    /// For messages.
    pub name: String,
    pub dtype: DType,
    /// Its value, in native byte order.
    pub bytes: Vec<u8>,
}

choices! {
    /// What a thread, or a block, is launched for.
    #[derive(Default, Encode, Decode, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Grid {
        /// one for each element of the first output
        #[default]
        Elements = "elements",
        /// one for each row
        Rows = "rows",
        /// a block of them for each row
        Blocks = "blocks",
    }
}

impl Grid {
    /// Blocks of `block` threads for `rows` rows, where a row of the first output is `first`. `None`: more than CUDA launches at once.
    pub fn blocks(self, rows: usize, first: &TensorSpec, block: u32) -> Option<u32> {
        let per_block = (block as usize).max(1);
        let blocks = match self {
            Grid::Blocks => rows,
            Grid::Rows => rows.div_ceil(per_block),
            Grid::Elements => rows.checked_mul(first.row_len()?)?.div_ceil(per_block),
        };
        // Where a row has no element there is nothing to do, and CUDA launches no empty grid.
        i32::try_from(blocks.max(1)).ok().map(i32::cast_unsigned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dim;

    #[test]
    fn blocks_cover_all_there_is_to_do_and_a_grid_that_cuda_cannot_launch_is_none() {
        let row = |n| TensorSpec {
            name: "y".into(),
            dtype: DType::F32,
            row: vec![Dim::Fixed(n)],
            batch: Dim::Dynamic,
        };
        assert_eq!(Grid::Elements.blocks(3, &row(100), 256), Some(2));
        assert_eq!(Grid::Elements.blocks(1, &row(256), 256), Some(1));
        assert_eq!(Grid::Elements.blocks(1, &row(0), 256), Some(1));
        assert_eq!(Grid::Rows.blocks(257, &row(100), 256), Some(2));
        assert_eq!(Grid::Blocks.blocks(257, &row(100), 256), Some(257));
        assert_eq!(Grid::Blocks.blocks(1 << 31, &row(1), 1), None);
        assert_eq!(Grid::Elements.blocks(usize::MAX, &row(2), 256), None);
    }
}
