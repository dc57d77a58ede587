//! Items that are objects of a store: `s3://`, `gs://`, `az://`, `http://` and `https://`. The parent lists them; a loader process reads them,
//! and it alone gets the network and the credentials for that. Built with the feature `cloud`.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::credentials;
use orchestra_core::data::Refusal;
use orchestra_core::shapes::Network;
use orchestra_plan::ReadSeek;
use orchestra_store::{ListError, ObjectOutput, ObjectStore};

#[cfg(feature = "cloud")]
mod client;
#[cfg(feature = "cloud")]
mod fetch;
#[cfg(feature = "cloud")]
mod listing;
#[cfg(feature = "cloud")]
mod output;
#[cfg(feature = "cloud")]
mod pieces;
#[cfg(feature = "cloud")]
mod trouble;

/// How the stores of a URL are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Protocol {
    S3,
    Google,
    Azure,
    Http,
}

impl Protocol {
    const ALL: [(&str, Protocol); 5] = [
        ("s3", Protocol::S3),
        ("gs", Protocol::Google),
        ("az", Protocol::Azure),
        ("http", Protocol::Http),
        ("https", Protocol::Http),
    ];

    pub fn of(url: &str) -> Option<Self> {
        let (scheme, _) = url.split_once("://")?;
        Self::ALL.iter().find(|(name, _)| *name == scheme).map(|(_, protocol)| *protocol)
    }

    /// Where its credentials and settings come from.
    fn variables(self) -> &'static [&'static str] {
        match self {
            Protocol::S3 => credentials::S3,
            Protocol::Google => credentials::GOOGLE,
            Protocol::Azure => credentials::AZURE,
            Protocol::Http => &[],
        }
    }
}

/// Proxies and certificates, for all of them.
const CONNECTIONS: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// What a loader of these URLs needs; `None` where there are none.
pub fn network(protocols: &[Protocol]) -> Option<Network> {
    let of_stores = protocols.iter().flat_map(|protocol| protocol.variables().iter().copied());
    (!protocols.is_empty()).then(|| Network { variables: of_stores.chain(CONNECTIONS).collect() })
}

/// The protocols of these URLs, each once.
pub fn protocols(urls: &[String]) -> Vec<Protocol> {
    let mut all = Vec::new();
    for protocol in urls.iter().filter_map(|url| Protocol::of(url)) {
        if !all.contains(&protocol) {
            all.push(protocol);
        }
    }
    all
}

/// What speaks to stores.
///
/// # Errors
/// This program was built without it.
pub fn store() -> Result<Arc<dyn ObjectStore>, String> {
    #[cfg(feature = "cloud")]
    return Ok(Arc::new(listing::Stores));
    #[cfg(not(feature = "cloud"))]
    Err(BUILD_IT.to_owned())
}

/// What writes to stores.
pub fn output() -> Result<Arc<dyn ObjectOutput>, String> {
    #[cfg(feature = "cloud")]
    return Ok(Arc::new(listing::Stores));
    #[cfg(not(feature = "cloud"))]
    Err(BUILD_IT.to_owned())
}

#[cfg(not(feature = "cloud"))]
const BUILD_IT: &str = "this program was built without object storage; build it with the feature: cargo build --release --features cloud";

/// Reads pieces of the object: each beginning by a request of its own, unless it lies close behind the one before it. Where the store cannot be asked,
/// that is the error, whatever `read` makes of it.
///
/// # Errors
/// The store, or those of `read`.
pub fn read_pieces<T>(
    url: &str,
    read: impl FnOnce(&mut dyn ReadSeek) -> Result<T, ListError>,
) -> Result<T, ListError> {
    #[cfg(feature = "cloud")]
    {
        let mut pieces = pieces::Pieces::open(url).map_err(|trouble| listing::list_error(url, trouble))?;
        let read = read(&mut pieces);
        match pieces.trouble() {
            Some(trouble) => Err(listing::list_error(url, trouble)),
            None => read,
        }
    }
    #[cfg(not(feature = "cloud"))]
    {
        drop(read);
        Err(ListError::bad_file(url.as_ref(), NOT_BUILT_IN))
    }
}

/// Reads objects, one after the other; its connections stay open.
pub trait ReadObject: Send {
    /// How many bytes the object has.
    fn len(&mut self, url: &[u8]) -> Result<u64, Refusal>;

    /// Reads the object into `buffer`, none of more than [`super::read_file::LARGEST_FILE_BYTES`].
    ///
    /// # Errors
    /// The kind of the failure that the item ends with, and why, with the URL.
    fn read(&mut self, url: &[u8], buffer: &mut Vec<u8>) -> Result<(), Refusal>;

    /// Reads `len` bytes from `at` on into `buffer`. The caller has checked `len`, which is not 0.
    ///
    /// # Errors
    /// As [`ReadObject::read`]; or the object is shorter.
    fn read_part(&mut self, url: &[u8], at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal>;
}

pub fn reader() -> Box<dyn ReadObject> {
    #[cfg(feature = "cloud")]
    return Box::new(fetch::Reader::default());
    #[cfg(not(feature = "cloud"))]
    Box::new(NoReader)
}

#[cfg(not(feature = "cloud"))]
const NOT_BUILT_IN: &str = "this program was built without object storage";

/// A loader of another build than its parent, which is refused before.
#[cfg(not(feature = "cloud"))]
struct NoReader;

#[cfg(not(feature = "cloud"))]
impl ReadObject for NoReader {
    fn len(&mut self, _: &[u8]) -> Result<u64, Refusal> {
        Err(Refusal { kind: orchestra_core::FailureKind::Read, error: NOT_BUILT_IN.to_owned() })
    }

    fn read(&mut self, url: &[u8], _: &mut Vec<u8>) -> Result<(), Refusal> {
        self.len(url).map(drop)
    }

    fn read_part(&mut self, url: &[u8], _: u64, _: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        self.read(url, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_gets_the_credentials_of_its_own_stores_and_of_no_others() {
        let of = |urls: &[&str]| {
            network(&protocols(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(of(&[]), None);
        let takes = |url: &str| {
            let network = of(&[url, url]).unwrap();
            [
                "AWS_SECRET_ACCESS_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "AZURE_CLIENT_SECRET",
                "HTTPS_PROXY",
                "OTHER_TOKEN",
            ]
            .map(|variable| network.takes(variable))
        };
        assert_eq!(takes("s3://b/*"), [true, false, false, true, false]);
        assert_eq!(takes("gs://b/*"), [false, true, false, true, false]);
        assert_eq!(takes("az://b/*"), [false, false, true, true, false]);
        assert_eq!(takes("https://h/x"), [false, false, false, true, false]);
        assert_eq!(Protocol::of("ftp://h/x"), None);
    }
}
