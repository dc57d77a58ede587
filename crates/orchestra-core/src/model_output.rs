//! Where the items of a batch lie in an output of a model, and which outputs a stage reads. It describes; it runs nothing.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::tensor::{DType, Dim, TensorSpec};

/// Where the items of a batch lie in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchAxis {
    /// One after the other along this axis, `per_item` entries of each: it is as long as the batch, times `per_item`.
    Axis { axis: usize, per_item: usize },
    /// Nowhere: all of it belongs to the one item of a batch.
    None,
}

impl BatchAxis {
    /// A row for each item, one behind the other.
    pub const FIRST: BatchAxis = BatchAxis::Axis { axis: 0, per_item: 1 };

    /// One entry of each item along this axis.
    pub fn along(axis: usize) -> BatchAxis {
        BatchAxis::Axis { axis, per_item: 1 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct ReadOutput {
    /// Its name in the model, and what an item has of it. Texts have bytes here.
    pub tensor: TensorSpec,
    pub batch: BatchAxis,
    /// Dimensions of what the model gives, where that is known.
    pub rank: Option<usize>,
    /// The shape of the texts that it has of each item, empty where that is one; `None`: its elements are no texts.
    pub texts: Option<Vec<usize>>,
    /// It is an input of the model, too, or a constant: nothing computes it.
    pub is_copied: bool,
}

impl ReadOutput {
    /// An output with a row for each item, as most have.
    pub fn rows(tensor: TensorSpec) -> Self {
        let rank = Some(1 + tensor.row.len());
        Self { tensor, batch: BatchAxis::FIRST, rank, texts: None, is_copied: false }
    }

    /// A text or a list for each item, as bytes.
    pub fn packed(name: &str) -> Self {
        let tensor = TensorSpec {
            name: name.to_owned(),
            dtype: DType::U8,
            row: vec![Dim::Dynamic],
            batch: Dim::Dynamic,
        };
        Self { rank: None, texts: Some(Vec::new()), ..Self::rows(tensor) }
    }

    /// Whether nodes behind the model have to make rows of it, one behind the other, in memory of its own.
    pub fn needs_nodes(&self) -> bool {
        self.is_copied || self.batch != BatchAxis::FIRST
    }
}

/// What a probe has found out about a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedModel {
    pub outputs: Vec<ProbedOutput>,
    /// It does not run batches of any size, although its file says so. `outputs` are then those of batches of the size that it runs.
    pub size_limit: Option<SizeLimit>,
}

/// Two sizes of a batch of equal items, of which the model runs one and fails with the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeLimit {
    pub runs: usize,
    pub fails: usize,
    pub error: String,
}

/// What a probe has found out about an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedOutput {
    pub name: String,
    pub batch: BatchAxis,
    /// Its shape, for each size of a batch that was tried.
    pub shapes: Vec<Vec<usize>>,
    /// Its dimensions without the batch, or all of them where there is none; `None` where one depends on the values.
    pub row: Vec<Option<usize>>,
    pub mixing: Mixing,
    /// What it is for an item that is alone in its batch, where that was tried.
    pub alone: Option<ProbedAlone>,
}

/// An output of a batch of one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedAlone {
    /// All of its dimensions; `None` where one depends on the values.
    pub shape: Vec<Option<usize>>,
    /// Two runs of the same item give the same.
    pub is_steady: bool,
}

/// What the values of one item change of other items in its batch, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixing {
    /// Nothing, as far as is known.
    Apart,
    /// The output is another one at each run of the same batch, so nothing can be told.
    Unsteady,
    /// Nothing, but an item has other values at another place of its batch, or in a batch of another size.
    Placed,
    /// So much that no item has a row of its own, unless it is alone in its batch.
    Mixed,
}

/// Texts of rows as they travel: the bytes of each behind their number, in four bytes.
pub mod texts {
    use crate::wire;

    /// Puts texts together.
    pub fn pack<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<u8> {
        let mut packed = Vec::new();
        for text in texts {
            // A frame holds fewer bytes than that.
            packed.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            packed.extend_from_slice(text.as_bytes());
        }
        packed
    }

    /// As [`pack`], where each row has `n` texts: unless it is one, they are a list of a column of texts.
    pub fn pack_rows(texts: &[&str], n: usize) -> Vec<u8> {
        if n == 1 {
            return pack(texts.iter().copied());
        }
        let mut packed = Vec::new();
        for row in texts.chunks(n.max(1)) {
            let list = wire::encode(&row.to_vec()).expect("texts can be written to memory");
            packed.extend_from_slice(&u32::try_from(list.len()).unwrap_or(u32::MAX).to_le_bytes());
            packed.extend_from_slice(&list);
        }
        packed
    }

    /// The texts; `None` where that is not what these bytes are.
    pub fn unpack(packed: &[u8]) -> Option<Vec<&str>> {
        unpack_bytes(packed)?.into_iter().map(|text| std::str::from_utf8(text).ok()).collect()
    }

    /// The same, of whatever bytes.
    pub fn unpack_bytes(mut packed: &[u8]) -> Option<Vec<&[u8]>> {
        let mut all = Vec::new();
        while let Some((length, rest)) = packed.split_first_chunk() {
            let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            all.push(bytes);
            packed = rest;
        }
        packed.is_empty().then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::texts;

    #[test]
    fn texts_are_what_they_were_and_anything_else_is_none() {
        for texts in [&[][..], &[""], &["a", "", "Grüße, \0\n"]] {
            let packed = texts::pack(texts.iter().copied());
            assert_eq!(texts::unpack(&packed).as_deref(), Some(texts));
        }
        let packed = texts::pack(["abc", "ä"].into_iter());
        let ends = [0, 7, packed.len()];
        assert!((0..=packed.len()).all(|end| texts::unpack(&packed[..end]).is_some() == ends.contains(&end)));
        assert_eq!(texts::unpack(&[1, 0, 0, 0, 0xff]), None, "no UTF-8");
    }
}
