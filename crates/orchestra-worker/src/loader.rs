//! A loader process: it reads and decodes the items of one source, one after the other, and takes their rows through the maps that stand
//! before the first batch. What these make lies in a region of shared memory that belongs to this process alone; the parent only reads it.
//!
//! ```text
//! loader                      parent
//!   Hello            ->
//!                    <-       Load
//!   Ready|Refused    ->
//!                    <-       Items      (locators of items, in order, and how many frames of answers are done with)
//!   Answers          ->                  (what became of some items, in their order; an item is whole in one frame)
//!                    <-       end of file: the loader ends
//! ```
//!
//! Or it looks into files, so that the parent reads none: `Look` comes in place of `Load`, then `List` for each file, which is answered with
//! `Found` blocks and `Listed`, or `Describe`, answered with `Described`.
//!
//! The process knows kinds only through the registry that its program hands over. It decides nothing: which item is to
//! blame for its death, its parent finds out.

pub mod events;
mod item;
mod look;
mod parent;
mod region;
mod serve;

pub use region::LoaderRegion;
pub use serve::{LoaderKinds, run_loader};
