//! What the tests of stages share.

use std::sync::Arc;

use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::{Emit, Map, RowWork, map_of};
use orchestra_plan::{StageKind, Typed, TypedStage};

/// Does the work to a row, and gives what it makes to a function.
pub fn apply(
    work: &impl RowWork,
    row: &[Value<'_>],
    each: impl FnMut(&[Value<'_>]),
) -> Result<(), ItemError> {
    work.apply(&mut Default::default(), row, &mut each_row(each))
}

/// The map of a kind, as a loader process makes it again.
pub fn over_wire<K: TypedStage>(work: K::Work) -> Arc<dyn Map> {
    let settings = map_of(K::NAME, work, None).to_wire().expect("the kind works in loaders");
    Typed::<K>::kind().map_from_wire(&settings).expect("these are its settings")
}

/// Gives each row to a function.
pub fn each_row(row: impl FnMut(&[Value<'_>])) -> impl Emit {
    EachRow(row)
}

struct EachRow<F>(F);

impl<F: FnMut(&[Value<'_>])> Emit for EachRow<F> {
    fn parts(&mut self, _: usize) -> Result<(), ItemError> {
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError> {
        (self.0)(row);
        Ok(())
    }
}
