//! Inputs of a model that are the same for all items. It describes; it runs nothing.

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::tensor::DType;

/// What an input of a model always is.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct InputConstant {
    /// The input's name in the model.
    pub input: String,
    pub elements: ConstantElements,
    /// The dimensions that the elements are written with, and are broadcast from.
    pub dims: Vec<usize>,
    /// The dimensions of the input; `None` stands for as many as a batch has items.
    pub shape: Vec<Option<usize>>,
    /// The input that says how many items a batch has, and the axis along which they lie there.
    pub counted: Option<(String, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub enum ConstantElements {
    /// In native byte order.
    Numbers(DType, Vec<u8>),
    Texts(Vec<String>),
}

impl InputConstant {
    /// The most bytes that all constants of a stage may have together: they travel in a variable of the environment, too.
    pub const MOST_BYTES: usize = 16 << 10;

    pub fn bytes(&self) -> usize {
        match &self.elements {
            ConstantElements::Numbers(_, bytes) => bytes.len(),
            ConstantElements::Texts(texts) => texts.iter().map(|text| text.len() + size_of::<u64>()).sum(),
        }
    }
}
