//! What there is to see of a run, as one page without a request to anything: read from its output folder, written as HTML. It changes nothing in the
//! folder, decodes no item, and every text in the page is escaped where it stands.

pub mod human;

mod compare;
mod gather;
mod page;
mod trace;
mod words;

pub use compare::{ComparedFact, RunComparison, compare};
pub use gather::{ReadError, RunHistory, RunReport, read, read_live};
pub use page::{compared_page, list_page, live_page, page, parts};
pub use trace::trace;
pub use words::{pace_in_words, shell_word};
