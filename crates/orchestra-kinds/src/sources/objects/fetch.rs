//! Reads objects whole. It never looks at what they hold.

use std::collections::HashMap;

use futures::StreamExt as _;
use object_store::{ObjectStoreExt as _, path::Path};
use orchestra_core::FailureKind;
use orchestra_core::data::Refusal;
use tokio::runtime::Runtime;

use super::ReadObject;
use super::client::{Client, Patience, Url, runtime};
use super::trouble::Trouble;
use crate::sources::read_file::LARGEST_FILE_BYTES;

/// Reads objects in one thread. Sockets stay open from one object to the next.
#[derive(Default)]
pub struct Reader {
    runtime: Option<Runtime>,
    /// By the beginning of their URLs; a source names few.
    clients: HashMap<String, Client>,
}

impl ReadObject for Reader {
    fn read(&mut self, url: &[u8], buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        let text = String::from_utf8_lossy(url);
        let refusal = |trouble: Trouble| Refusal {
            kind: trouble.failure(),
            error: format!("cannot read `{text}`: {}", trouble.reason),
        };
        let url = Url::parse(&text).map_err(refusal)?;
        let path = url.path().map_err(refusal)?;
        let client = match self.clients.get(url.store) {
            Some(client) => client.clone(),
            None => {
                let client = Client::open(&url, Patience::Long).map_err(refusal)?;
                self.clients.insert(url.store.to_owned(), client.clone());
                client
            }
        };
        let runtime = match &mut self.runtime {
            Some(runtime) => runtime,
            none => none.insert(runtime().map_err(|error| refusal(Trouble::of_machine(&error)))?),
        };
        let read = runtime.block_on(read(&client, &path, buffer));
        match read.map_err(|error| refusal(Trouble::of(url.protocol, &error)))? {
            bytes if bytes > LARGEST_FILE_BYTES => {
                let error =
                    format!("`{text}` has {bytes} bytes or more, more than a picture file can have (1 GiB)");
                Err(Refusal { kind: FailureKind::TooLarge, error })
            }
            _ => Ok(()),
        }
    }
}

/// Reads an object, no further than a picture can be large. Gives the bytes that it has at least.
async fn read(client: &Client, path: &Path, buffer: &mut Vec<u8>) -> object_store::Result<u64> {
    buffer.clear();
    let answer = client.objects.get(path).await?;
    let claimed = answer.meta.size;
    if claimed > LARGEST_FILE_BYTES {
        return Ok(claimed);
    }
    // What a server says of a length is believed once the bytes are there: no more than a mebibyte before.
    buffer.reserve(usize::try_from(claimed.min(1 << 20)).unwrap_or(0));
    let mut pieces = answer.into_stream();
    while let Some(piece) = pieces.next().await {
        buffer.extend_from_slice(&piece?);
        if buffer.len() as u64 > LARGEST_FILE_BYTES {
            break;
        }
    }
    Ok(buffer.len() as u64)
}
