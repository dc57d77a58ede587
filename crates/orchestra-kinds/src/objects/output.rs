//! Writes objects, each whole.

use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use orchestra_store::{ListError, ObjectOutput, StoredObject};

use super::client::{Client, Patience, Url, wait_for};
use super::listing::Stores;
use super::{Trouble, TroubleKind};

/// A part file has no more: 1 GiB of records, those of one commit, and what stands around them.
const LARGEST: u64 = 4 << 30;

impl ObjectOutput for Stores {
    fn read(&self, url: &str) -> Result<Option<StoredObject>, ListError> {
        let read = || -> Result<Option<StoredObject>, Trouble> {
            let parsed = Url::parse(url)?;
            let (client, path) = (Client::open(&parsed, Patience::Whole)?, parsed.path()?);
            wait_for(async {
                let answer = match client.objects.get(&path).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        let trouble = Trouble::of(parsed.protocol, &error);
                        return if trouble.kind == TroubleKind::Missing { Ok(None) } else { Err(trouble) };
                    }
                };
                let meta = answer.meta.clone();
                if meta.size > LARGEST {
                    return Err(Trouble::of_url(format!("it has {} bytes, more than a part has", meta.size)));
                }
                let bytes = answer.bytes().await.map_err(|error| Trouble::of(parsed.protocol, &error))?;
                Ok(Some(StoredObject { bytes: bytes.into(), e_tag: meta.e_tag, version: meta.version }))
            })
        };
        read().map_err(|trouble| trouble.list_error(url))
    }

    fn create(&self, url: &str, bytes: Vec<u8>) -> Result<bool, ListError> {
        put(url, bytes, PutMode::Create)
    }

    fn replace(&self, url: &str, bytes: Vec<u8>, before: &StoredObject) -> Result<bool, ListError> {
        let before = UpdateVersion { e_tag: before.e_tag.clone(), version: before.version.clone() };
        put(url, bytes, PutMode::Update(before))
    }
}

fn put(url: &str, bytes: Vec<u8>, mode: PutMode) -> Result<bool, ListError> {
    let put = || -> Result<bool, Trouble> {
        let parsed = Url::parse(url)?;
        let (client, path) = (Client::open(&parsed, Patience::Write(bytes.len()))?, parsed.path()?);
        let options = PutOptions { mode, ..PutOptions::default() };
        wait_for(async {
            match client.objects.put_opts(&path, bytes.into(), options).await {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(Trouble::of(parsed.protocol, &error)),
            }
        })
    };
    put().map_err(|trouble| trouble.list_error(url))
}
