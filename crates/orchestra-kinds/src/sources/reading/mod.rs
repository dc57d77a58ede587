//! What several kinds of sources read their items with: files, archives, lines, and the columns that come of them. Nothing here is a kind.

pub mod columns;
pub mod encoding;
pub mod field_type;
pub mod input;
pub mod limits;
pub mod lines;
pub mod locator;
pub mod npy_header;
pub mod number;
pub mod read_file;
pub mod row;
pub mod tar_members;
pub mod undecoded_picture;
pub mod zip_members;
