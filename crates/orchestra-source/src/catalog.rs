//! Catalog: the items of a source by their numbers, readable from the first one on while the others are being listed. It opens no item, and
//! knows nothing of who reads it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::growth::Growth;
use crate::listing_file::ListingWriter;
use crate::write::list;
use crate::{Expand, ListError, ListingReader, ListingSpec};

/// The items of a source on disk. Dropping it ends their listing.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    growth: Arc<Growth>,
}

impl Catalog {
    /// Opens a complete list.
    ///
    /// # Errors
    /// A list that cannot be read, or is damaged.
    pub fn open(path: &Path) -> Result<Self, ListError> {
        let growth = Arc::clone(ListingReader::open(path)?.growth());
        Ok(Self { path: path.into(), growth })
    }

    /// Lists a source into the file `path`, in a thread of its own, and returns as soon as there are items to read: with the whole list,
    /// where it is short. The list appears with its first items, and an error before them leaves none; one that comes later is told by
    /// [`Growth::failure`].
    ///
    /// # Errors
    /// As [`crate::write_items`].
    pub fn list(spec: &ListingSpec, expand: Option<Arc<dyn Expand>>, path: &Path) -> Result<Self, ListError> {
        let catalog = Self { path: path.into(), growth: Arc::default() };
        let growth = Arc::clone(&catalog.growth);
        let writer = ListingWriter::create(path, Some(Arc::clone(&growth)))?;
        let spec = spec.clone();
        let work = move || {
            let listed = || list(&spec, expand.as_deref(), writer, &|| !growth.is_stopped());
            let listed = catch_unwind(AssertUnwindSafe(listed)).unwrap_or(Err(ListError::Panicked));
            if let Err(error) = listed {
                growth.fail(error);
            }
        };
        let started = thread::Builder::new().name("lister".into()).spawn(work);
        started.map_err(|error| ListError::ListFile { path: path.into(), doing: "write", error })?;
        catalog.growth.begun()?;
        Ok(catalog)
    }

    /// Reads the list from its first item on, as far as it has grown and will grow.
    ///
    /// # Errors
    /// A list that cannot be opened.
    pub fn reader(&self) -> Result<ListingReader, ListError> {
        ListingReader::follow(&self.path, Arc::clone(&self.growth))
    }

    /// How far the list has grown. Keeps nothing else alive.
    #[must_use]
    pub fn growth(&self) -> &Arc<Growth> {
        &self.growth
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.growth.stop();
    }
}
