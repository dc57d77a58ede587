//! What the tests of stages share.

use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::Emit;

/// Gives each row to a function.
pub fn each_row(row: impl FnMut(&[Value<'_>])) -> impl Emit {
    EachRow(row)
}

struct EachRow<F>(F);

impl<F: FnMut(&[Value<'_>])> Emit for EachRow<F> {
    fn parts(&mut self, _: usize) -> Result<(), Refusal> {
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), Refusal> {
        (self.0)(row);
        Ok(())
    }
}
