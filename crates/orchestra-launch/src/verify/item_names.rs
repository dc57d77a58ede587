//! The names of items by their numbers, as the lists of a run have them. It holds some blocks of names, and no list.

use std::collections::BTreeMap;
use std::path::Path;

use orchestra_store::{ListingReader, OutputFolder};

/// Names of items, as the lists of the run have them. Records come nearly in the order of a list, so blocks of it are kept.
#[derive(Default)]
pub(super) struct ItemNames(BTreeMap<String, Option<List>>);

struct List {
    reader: ListingReader,
    blocks: BTreeMap<u64, Vec<String>>,
}

/// Names of a block, and blocks that are kept.
const NAMES: u64 = 1024;
const MOST_BLOCKS: usize = 64;

impl ItemNames {
    /// `None`: there is no such list any more, or it has no such item.
    pub fn of(&mut self, folder: &Path, source: &str, index: u64) -> Option<&str> {
        if !self.0.contains_key(source) {
            let list = folder.join(OutputFolder::private_file(&format!("items-{source}")));
            let list = ListingReader::open(&list).ok();
            let list = list.map(|reader| List { reader, blocks: BTreeMap::new() });
            self.0.insert(source.to_owned(), list);
        }
        let List { reader, blocks } = self.0.get_mut(source)?.as_mut()?;
        let block = index / NAMES;
        if !blocks.contains_key(&block) {
            reader.skip_to(block * NAMES).ok()?;
            let mut names = Vec::new();
            while names.len() < NAMES as usize
                && let Some((name, _)) = reader.read().ok()?
            {
                names.push(name.to_owned());
            }
            if blocks.len() == MOST_BLOCKS {
                blocks.pop_first();
            }
            blocks.insert(block, names);
        }
        blocks.get(&block)?.get((index % NAMES) as usize).map(String::as_str)
    }
}
