//! Reads objects, whole or in part. It never looks at what they hold.

use std::collections::HashMap;

use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt as _};
use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use tokio::runtime::Runtime;

use super::client::{Client, Patience, Url, apart, runtime};
use super::{ReadObject, Trouble, TroubleKind};
use crate::sources::reading::limits::LARGEST_FILE_BYTES;

/// Reads objects in one thread. Sockets stay open from one object to the next.
#[derive(Default)]
pub struct ObjectReader {
    runtime: Option<Runtime>,
    /// By the beginning of their URLs; a source names few.
    clients: HashMap<String, Client>,
}

impl Drop for ObjectReader {
    fn drop(&mut self) {
        // It may be dropped in a runtime, where none may wait.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl ReadObject for ObjectReader {
    fn head(&mut self, url: &[u8]) -> Result<(u64, u32), Trouble> {
        let head = |runtime: &Runtime, client: &Client, path: &Path| {
            runtime.block_on(client.objects.head(path)).map(|meta| (meta.size, tag_of(&meta)))
        };
        self.ask(url, head)
    }

    fn read(&mut self, url: &[u8], buffer: &mut Vec<u8>) -> Result<(), ItemError> {
        let read = self.get(url, GetOptions::default(), LARGEST_FILE_BYTES, buffer);
        match read.map_err(|trouble| trouble.item_error(url))? {
            bytes if bytes > LARGEST_FILE_BYTES => {
                let text = String::from_utf8_lossy(url);
                let error = format!("`{text}` has {bytes} bytes or more, more than is read of one (1 GiB)");
                Err(ItemError { kind: FailureKind::TooLarge, error })
            }
            _ => Ok(()),
        }
    }

    fn read_part(&mut self, url: &[u8], at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), Trouble> {
        let range = Some(GetRange::Bounded(at..at.saturating_add(len)));
        let asked = GetOptions { range, ..GetOptions::default() };
        if self.get(url, asked, len, buffer)? == len {
            return Ok(());
        }
        let reason = format!("of {len} bytes at byte {at} it has others; was it replaced?");
        Err(Trouble { kind: TroubleKind::Object, ..Trouble::of_url(reason) })
    }
}

impl ObjectReader {
    /// Reads what is asked for, no further than `most` bytes. Gives the bytes that there are at least.
    fn get(
        &mut self,
        url: &[u8],
        asked: GetOptions,
        most: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<u64, Trouble> {
        self.ask(url, |runtime, client, path| runtime.block_on(read(client, path, asked, most, buffer)))
    }

    fn ask<T: Send>(
        &mut self,
        url: &[u8],
        ask: impl FnOnce(&Runtime, &Client, &Path) -> object_store::Result<T> + Send,
    ) -> Result<T, Trouble> {
        let text = String::from_utf8_lossy(url);
        let url = Url::parse(&text)?;
        let path = url.path()?;
        let client = match self.clients.get(url.store) {
            Some(client) => client.clone(),
            None => {
                let client = Client::open(&url, Patience::Long)?;
                self.clients.insert(url.store.to_owned(), client.clone());
                client
            }
        };
        let runtime = match &mut self.runtime {
            Some(runtime) => runtime,
            none => none.insert(runtime().map_err(|error| Trouble::of_machine(&error))?),
        };
        apart(|| ask(runtime, &client, &path).map_err(|error| Trouble::of(url.protocol, &error)))
    }
}

/// What tells the object from another one of its size under its name.
fn tag_of(meta: &ObjectMeta) -> u32 {
    let changed_at = || meta.last_modified.timestamp_micros().to_string();
    crc32fast::hash(meta.e_tag.clone().unwrap_or_else(changed_at).as_bytes())
}

/// Reads what is asked for of an object, no further than `most` bytes. Gives the bytes that it has at least.
async fn read(
    client: &Client,
    path: &Path,
    asked: GetOptions,
    most: u64,
    buffer: &mut Vec<u8>,
) -> object_store::Result<u64> {
    buffer.clear();
    let answer = client.objects.get_opts(path, asked).await?;
    let claimed = answer.range.end.saturating_sub(answer.range.start);
    if claimed > most {
        return Ok(claimed);
    }
    // What a server says of a length is believed once the bytes are there: no more than a mebibyte before.
    buffer.reserve(usize::try_from(claimed.min(1 << 20)).unwrap_or(0));
    let mut pieces = answer.into_stream();
    while let Some(piece) = pieces.next().await {
        buffer.extend_from_slice(&piece?);
        if buffer.len() as u64 > most {
            break;
        }
    }
    Ok(buffer.len() as u64)
}
