//! What several kinds of sources read their items with: files, archives, lines, and the columns that come of them. Nothing here is a kind.

pub mod archive;
pub mod archive_links;
pub mod columns;
pub mod csv_record;
pub mod encoding;
pub mod fetch;
pub mod field_type;
pub mod file_version;
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

#[cfg(test)]
pub mod tests {
    use std::path::Path;

    use orchestra_plan::Items;
    use orchestra_store::{Found, ListError, PassedOverCounts};

    /// The name of an item, and where it lies.
    type Item = (String, Vec<u8>);

    /// Names and locators of the items of a file, and what of it is passed over.
    pub fn listed(source: &impl Items, path: &Path) -> Result<(Vec<Item>, PassedOverCounts), ListError> {
        let (mut items, mut passed_over) = (Vec::new(), PassedOverCounts::default());
        source.list(path, &mut |found| {
            match found {
                Found::Item(name, locator) => items.push((name.to_owned(), locator.to_vec())),
                Found::PassedOver(reason, n) => passed_over.add(reason, n),
                Found::Nothing | Found::Version(_) => {}
            }
            Ok(())
        })?;
        Ok((items, passed_over))
    }
}
