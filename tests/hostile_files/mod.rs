//! How the files are made that are meant to harm, and how each may end.

pub mod ends;
pub mod pictures;
pub mod table;
