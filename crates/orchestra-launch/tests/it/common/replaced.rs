//! A kind of stage that `Invert` replaces, as a host replaces a builtin one: it has the same name, is registered earlier, and can do nothing.

use orchestra_launch::kind::{Draft, Fields, StageKind};

pub struct Replaced;

impl StageKind for Replaced {
    fn name(&self) -> &'static str {
        "invert"
    }

    fn about(&self) -> &'static str {
        "A stage of a test, which another one replaces."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        None
    }
}
