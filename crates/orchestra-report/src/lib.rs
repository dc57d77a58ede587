//! What there is to see of a run, as one page without a request to anything: read from its output folder, written as HTML. It changes nothing in the
//! folder, decodes no item, and every text in the page is escaped where it stands.

pub mod human;

mod gather;
mod page;
mod words;

pub use gather::{ReadError, RunReport, read};
pub use page::page;
pub use words::{pace_in_words, shell_word};
