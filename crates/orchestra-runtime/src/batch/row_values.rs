//! What of a batch lies in no slot: the values that its rows carry to the program or model that runs them. They go with the frame of the run.

use std::borrow::Cow;
use std::sync::Arc;

use orchestra_core::DType;
use orchestra_core::data::{ItemError, OwnedValue};
use orchestra_core::ledger::Rows;
use orchestra_core::row_bytes::{StoredValue, write};

use crate::batch::slot_pool::FilledSlot;

/// The first values that these rows carry.
pub struct RowValues {
    pub slot: Arc<FilledSlot>,
    pub rows: Rows,
    /// How many of each row.
    pub count: usize,
}

impl RowValues {
    /// The values of each row, one after the other. A place of the slot that holds no row gets the values of another row: the result of that place is not read.
    ///
    /// # Panics
    /// If a value cannot be written: the plan lets no such column come here.
    pub fn encode(&self) -> Vec<u8> {
        /// What a text or bytes take beside their own.
        const HEAD: usize = 16;
        let Rows { first, count, .. } = self.rows;
        let tokens = &self.slot.tokens[first..first + count];
        let values = tokens.iter().flatten().flat_map(|token| &token.carried()[..self.count]);
        let mut bytes = Vec::with_capacity(values.map(|value| value.bytes() + HEAD).sum());
        let any = tokens.iter().flatten().next();
        for token in tokens {
            for at in 0..self.count {
                let written = match token.as_ref().or(any) {
                    Some(token) => write_value(&token.carried()[at], &mut bytes),
                    None => write(&StoredValue::Missing(Cow::Borrowed("")), &mut bytes),
                };
                written.expect("a value that a program or a model takes can be written");
            }
        }
        bytes
    }
}

/// A picture is the tensor of its pixels, `u8 [height, width, channels]`.
fn write_value(value: &OwnedValue, out: &mut Vec<u8>) -> Result<(), ItemError> {
    let OwnedValue::Picture(picture) = value else { return write(&StoredValue::of_owned(value)?, out) };
    picture.with_pixels(&mut |pixels| {
        let shape = [pixels.height as usize, pixels.width as usize, pixels.channels];
        let data = Cow::Borrowed(pixels.bytes);
        write(&StoredValue::Tensor { name: "".into(), dtype: DType::U8, shape: shape.into(), data }, out)
    })
}
