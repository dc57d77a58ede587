//! Fetches that read each item into one value, which shows it. Reads nothing itself.

use orchestra_core::LeftOut;
use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::FetchRun;

/// What an item was read into.
pub trait ShownItem: Send {
    fn show(&self, show: &mut dyn FnMut(&[Value<'_>]));

    /// What the item holds beside that.
    fn left_out(&self) -> Vec<(LeftOut, u64)>;
}

pub fn fetch_into<T, F>(value: T, fetch: F) -> Box<dyn FetchRun>
where
    T: ShownItem + 'static,
    F: FnMut(&mut T, &[u8]) -> Result<u64, ItemError> + Send + 'static,
{
    Box::new(FetchInto { value, fetch })
}

struct FetchInto<T, F> {
    value: T,
    fetch: F,
}

impl<T: ShownItem, F: FnMut(&mut T, &[u8]) -> Result<u64, ItemError> + Send> FetchRun for FetchInto<T, F> {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        (self.fetch)(&mut self.value, locator)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        self.value.show(show);
    }

    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        self.value.left_out()
    }
}
