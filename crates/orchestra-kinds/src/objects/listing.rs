//! Lists what stores have, a page at a time.

use std::io::{self, Read};

use object_store::list::PaginatedListOptions;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use orchestra_store::{ListError, Object, ObjectPage, ObjectStore, Objects};

use super::client::{Client, Patience, Url, wait_for};
use super::{Protocol, Trouble, TroubleKind};
use crate::sources::reading::input::{FileLike, InputStream, open_object};

/// All stores that this program knows.
#[derive(Debug)]
pub struct Stores;

impl ObjectStore for Stores {
    fn can_list(&self, url: &str) -> bool {
        Protocol::of(url) != Some(Protocol::Http)
    }

    fn has(&self, url: &str) -> Result<bool, ListError> {
        let ask = || -> Result<bool, Trouble> {
            let parsed = Url::parse(url)?;
            let (client, path) = (Client::open(&parsed, Patience::Short)?, parsed.path()?);
            let head = async { client.objects.head(&path).await };
            let answer = wait_for(async { Ok(head.await) })?;
            let trouble = match answer {
                Ok(_) => return Ok(true),
                Err(error) => Trouble::of(parsed.protocol, &error),
            };
            match trouble.kind {
                TroubleKind::Missing => Ok(false),
                // A server that answers to no question but for the object itself; then the run finds out.
                TroubleKind::Object | TroubleKind::Question if parsed.protocol == Protocol::Http => Ok(true),
                // A user who may not read it may not know whether it is there: what lies below it says more.
                TroubleKind::Object => Ok(false),
                TroubleKind::Question | TroubleKind::Store | TroubleKind::Refused | TroubleKind::Settings => {
                    Err(trouble)
                }
            }
        };
        ask().map_err(|trouble| trouble.list_error(url))
    }

    fn objects(&self, prefix: &str) -> Result<Objects, ListError> {
        let open = || -> Result<ListingPages, Trouble> {
            let url = Url::parse(prefix)?;
            Ok(ListingPages {
                protocol: url.protocol,
                prefix: prefix.to_owned(),
                store: url.store.to_owned(),
                key: url.key.to_owned(),
                // The start of a run waits for the first page.
                first: Some(Client::open(&url, Patience::Short)?),
                client: Client::open(&url, Patience::Long)?,
                token: None,
                is_over: false,
            })
        };
        Ok(Box::new(open().map_err(|trouble| trouble.list_error(prefix))?))
    }

    fn open(&self, url: &str) -> Result<Box<dyn Read>, ListError> {
        let object = open_object(url)?;
        Ok(Box::new(ListedObject { stream: object.from(0), object, url: url.to_owned() }))
    }
}

/// An object whose errors say what its store says.
struct ListedObject {
    object: FileLike,
    stream: InputStream,
    url: String,
}

impl Read for ListedObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).map_err(|error| match self.object.trouble() {
            Some(trouble) => io::Error::other(trouble.list_error(&self.url)),
            None => error,
        })
    }
}

struct ListingPages {
    protocol: Protocol,
    prefix: String,
    store: String,
    key: String,
    first: Option<Client>,
    client: Client,
    token: Option<String>,
    is_over: bool,
}

impl ListingPages {
    fn next_page(&mut self) -> Result<ObjectPage, Trouble> {
        let client = self.first.take().unwrap_or_else(|| self.client.clone());
        let Some(pages) = &client.pages else {
            return Ok(ObjectPage { objects: Vec::new(), is_last: true });
        };
        let options = PaginatedListOptions { page_token: self.token.take(), ..Default::default() };
        let prefix = Some(&self.key[..]).filter(|key| !key.is_empty());
        let page = wait_for(async { Ok(pages.list_paginated(prefix, options).await) })?;
        let page = page.map_err(|error| match &error {
            object_store::Error::InvalidPath { source } => {
                let help = "give such objects other names, or name a prefix that has none of them".to_owned();
                Trouble {
                    reason: format!("the name of an object cannot be used: {source}"),
                    help,
                    kind: TroubleKind::Settings,
                }
            }
            error => Trouble::of(self.protocol, error),
        })?;
        self.token = page.page_token;
        let object =
            |meta: ObjectMeta| Object { url: format!("{}/{}", self.store, meta.location), bytes: meta.size };
        let objects = page.result.objects.into_iter().map(object).collect();
        Ok(ObjectPage { objects, is_last: self.token.is_none() })
    }
}

impl Iterator for ListingPages {
    type Item = Result<ObjectPage, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let page = self.next_page();
        self.is_over = page.as_ref().map_or(true, |page| page.is_last);
        Some(page.map_err(|trouble| trouble.list_error(&self.prefix)))
    }
}

#[cfg(test)]
mod tests {
    use orchestra_store::StoreTrouble;

    use super::*;

    #[test]
    fn a_list_that_is_not_answered_may_be_another_time_and_one_that_is_refused_may_not() {
        for (kind, expected) in [
            (TroubleKind::Question, StoreTrouble::Passing),
            (TroubleKind::Store, StoreTrouble::Passing),
            (TroubleKind::Refused, StoreTrouble::ItemError),
            (TroubleKind::Object, StoreTrouble::Mistake),
            (TroubleKind::Missing, StoreTrouble::Mistake),
            (TroubleKind::Settings, StoreTrouble::Mistake),
        ] {
            let trouble = Trouble { reason: String::new(), help: String::new(), kind };
            let error = trouble.list_error("s3://b/");
            assert!(matches!(error, ListError::Store { trouble, .. } if trouble == expected), "{kind:?}");
        }
    }
}
