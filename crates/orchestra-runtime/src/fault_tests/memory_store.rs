//! A store of objects that lies in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use orchestra_store::{ListError, Object, ObjectOutput, ObjectPage, ObjectStore, Objects, StoredObject};

use super::panics::Throws;

#[derive(Debug, Default)]
pub struct MemoryStore {
    pub objects: Mutex<BTreeMap<String, Vec<u8>>>,
    pub throws: Throws,
}

impl ObjectStore for MemoryStore {
    fn can_list(&self, _: &str) -> bool {
        true
    }

    fn has(&self, url: &str) -> Result<bool, ListError> {
        Ok(self.objects.lock().unwrap().contains_key(url))
    }

    fn objects(&self, prefix: &str) -> Result<Objects, ListError> {
        let all = self.objects.lock().unwrap();
        let below = all.iter().filter(|(url, _)| url.starts_with(prefix));
        let objects: Vec<_> =
            below.map(|(url, bytes)| Object { url: url.clone(), bytes: bytes.len() as u64 }).collect();
        Ok(Box::new(std::iter::once(Ok(ObjectPage { objects, is_last: true }))))
    }

    fn open(&self, url: &str) -> Result<Box<dyn io::Read>, ListError> {
        let bytes = self.objects.lock().unwrap()[url].clone();
        Ok(Box::new(io::Cursor::new(bytes)))
    }
}

impl ObjectOutput for MemoryStore {
    fn read(&self, url: &str) -> Result<Option<StoredObject>, ListError> {
        let bytes = self.objects.lock().unwrap().get(url).cloned();
        Ok(bytes.map(|bytes| StoredObject { bytes, e_tag: None, version: None }))
    }

    fn create(&self, url: &str, bytes: Vec<u8>) -> Result<bool, ListError> {
        self.throws.at("uploads");
        let mut all = self.objects.lock().unwrap();
        Ok(!all.contains_key(url) && all.insert(url.to_owned(), bytes).is_none())
    }

    fn replace(&self, url: &str, bytes: Vec<u8>, before: &StoredObject) -> Result<bool, ListError> {
        let mut all = self.objects.lock().unwrap();
        let is_there = all.get(url) == Some(&before.bytes);
        Ok(is_there && all.insert(url.to_owned(), bytes).is_some())
    }
}
