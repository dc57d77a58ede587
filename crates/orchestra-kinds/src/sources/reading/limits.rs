//! How much one item may take, and how many a source may have: what files claim is checked against these before memory is taken.

/// No picture file is larger; it bounds what one item may take of our memory before it is decoded.
pub const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// No tensor of an item is larger, in bytes.
pub const LARGEST_TENSOR: usize = 1 << 30;

/// No text of an item is longer, in bytes: it travels in a message.
pub const LARGEST_TEXT: u64 = 16 << 20;

/// Items of a source that reads no file: their list takes some 20 bytes of disk each.
pub const MOST_ITEMS: u64 = 10_000_000_000;

/// Refuses a file that claims more items than a source may have: nothing of it is listed then.
pub fn check_items(items: u64, max_items: u64) -> Result<u64, String> {
    if items <= max_items {
        return Ok(items);
    }
    Err(format!(
        "it claims {items} items, and at most `limits.max_items = {max_items}` are allowed; raise the limit if the file is genuine"
    ))
}

/// Columns that a source may have.
pub const MOST_COLUMNS: usize = 4096;
