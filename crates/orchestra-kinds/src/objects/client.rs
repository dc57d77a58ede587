//! A connection to a store: a bucket, a container or a web server. What it needs to know besides comes from the environment.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Handle, Runtime};

use super::{Protocol, Trouble};

/// How long a store is asked again that does not answer, or that says it is busy.
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    /// A user waits for the answer.
    Short,
    /// A run goes on behind it.
    Long,
    /// An object of any size is read whole.
    Whole,
    /// So many bytes are written at once.
    Write(usize),
}

impl Patience {
    fn retry(self) -> RetryConfig {
        let (max_retries, retry_timeout) = match self {
            Patience::Short => (3, Duration::from_secs(5)),
            // Less than the `limits.item_timeout` that is usual, so that the item fails for what the store says.
            Patience::Long => (10, Duration::from_secs(20)),
            Patience::Whole => (3, Duration::from_secs(20)),
            Patience::Write(_) => (10, Duration::from_secs(60)),
        };
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        };
        RetryConfig { backoff, max_retries, retry_timeout }
    }
}

/// The slowest store that parts are written to, in bytes a second.
const SLOWEST: u64 = 256 << 10;

impl Patience {
    /// Of a request, and between two pieces of its answer, where those that are usual do not fit.
    fn timeouts(self) -> Option<[(ClientConfigKey, Duration); 2]> {
        let of =
            |whole, piece| Some([(ClientConfigKey::Timeout, whole), (ClientConfigKey::ReadTimeout, piece)]);
        match self {
            Patience::Short | Patience::Long => None,
            Patience::Whole => of(Duration::from_secs(4 << 10), Duration::from_secs(30)),
            Patience::Write(bytes) => {
                let all = Duration::from_secs(30 + bytes as u64 / SLOWEST);
                of(all, all)
            }
        }
    }
}

/// A URL, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Url<'a> {
    pub protocol: Protocol,
    /// Its beginning, up to the bucket or host: `s3://bucket`.
    pub store: &'a str,
    /// What stands behind the slash.
    pub key: &'a str,
}

impl<'a> Url<'a> {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// It is none that can be read, or must not be: what stands in it would be written into records and logs.
    pub fn parse(url: &'a str) -> Result<Self, Trouble> {
        let bad = |why: String| Trouble::of_url(why);
        let Some(protocol) = Protocol::of(url) else {
            let known: Vec<_> = Protocol::ALL.iter().map(|(name, _)| format!("{name}://")).collect();
            return Err(bad(format!("no such store is known; {} are", known.join(", "))));
        };
        let start = url.find("://").map_or(0, |at| at + 3);
        let end = url[start..].find('/').map_or(url.len(), |at| start + at);
        let (store, key) = (&url[..end], url.get(end + 1..).unwrap_or_default());
        if url[start..end].contains('@') && protocol != Protocol::Azure {
            return Err(bad("a name or password in a URL would be written into records and logs".to_owned()));
        }
        if protocol == Protocol::Http && key.contains(['?', '#']) {
            return Err(bad("a web address with `?` or `#` is not read: what stands behind it, as a signature, would be written into records and logs".to_owned()));
        }
        Ok(Self { protocol, store, key })
    }

    /// The name of the object in its store.
    pub fn path(&self) -> Result<Path, Trouble> {
        let wrong = |why: &str| Trouble::of_url(format!("`{}` cannot be asked for: {why}", self.key));
        if self.protocol == Protocol::Http {
            if self.key.to_ascii_lowercase().contains("%2f") {
                return Err(wrong("a slash that is written as `%2F` would become another address"));
            }
            return Path::from_url_path(self.key).map_err(|error| wrong(&error.to_string()));
        }
        let path = Path::parse(self.key).map_err(|error| wrong(&error.to_string()))?;
        match path.as_ref() == self.key {
            true => Ok(path),
            false => Err(wrong("it begins or ends with a slash")),
        }
    }
}

/// A store as object of which pages can be listed.
type PagedLister = Option<Arc<dyn PaginatedListStore>>;

/// A connection to a store.
#[derive(Clone)]
pub struct Client {
    pub objects: Arc<dyn ObjectStore>,
    /// `None`: it cannot be listed.
    pub pages: PagedLister,
}

impl Client {
    /// Makes a connection, which connects once it is used.
    pub fn open(url: &Url<'_>, patience: Patience) -> Result<Self, Trouble> {
        // An error means that the program has chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = patience.retry();
        let wrong = |error: object_store::Error| Trouble::of_setup(url.protocol, &error);
        let timeouts = patience.timeouts();
        fn both<S: ObjectStore + PaginatedListStore>(store: S) -> Client {
            let store = Arc::new(store);
            Client { objects: Arc::clone(&store) as Arc<dyn ObjectStore>, pages: Some(store) }
        }
        macro_rules! bucket {
            ($builder:ident, $key:ident) => {{
                let store = $builder::from_env().with_url(url.store).with_retry(retry);
                let with = |store: $builder, (key, timeout): (_, Duration)| {
                    store.with_config($key::Client(key), format!("{} seconds", timeout.as_secs()))
                };
                timeouts.into_iter().flatten().fold(store, with).build().map(both).map_err(wrong)
            }};
        }
        match url.protocol {
            Protocol::S3 => bucket!(AmazonS3Builder, AmazonS3ConfigKey),
            Protocol::Google => bucket!(GoogleCloudStorageBuilder, GoogleConfigKey),
            Protocol::Azure => bucket!(MicrosoftAzureBuilder, AzureConfigKey),
            Protocol::Http => {
                let options = ClientOptions::new().with_allow_http(true);
                let store =
                    HttpBuilder::new().with_url(url.store).with_retry(retry).with_client_options(options);
                let objects = store.build().map_err(wrong)?;
                Ok(Self { objects: Arc::new(objects), pages: None })
            }
        }
    }
}

/// What waits for answers, in one thread: timers and sockets, no signals.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// Waits for `work`, as [`apart`].
pub fn wait_for<T: Send>(work: impl Future<Output = Result<T, Trouble>> + Send) -> Result<T, Trouble> {
    apart(|| runtime().map_err(|error| Trouble::of_machine(&error))?.block_on(work))
}

/// Waits; in a thread of its own where the caller is in a runtime, in which none may wait.
pub fn apart<T: Send>(wait: impl FnOnce() -> Result<T, Trouble> + Send) -> Result<T, Trouble> {
    if Handle::try_current().is_err() {
        return wait();
    }
    let failed = |error: io::Error| Trouble::of_machine(&error);
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("store".into()).spawn_scoped(scope, wait).map_err(failed)?;
        thread.join().unwrap_or_else(|_| Err(failed(io::Error::other("a thread panicked; this is a bug"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_as_it_is_and_what_may_hold_a_secret_is_refused() {
        for key in ["a b+c%20.png", "ü/100%.png", "p/[1].png", "a?b#c.png"] {
            let url = format!("s3://bucket/{key}");
            assert_eq!(Url::parse(&url).unwrap().path().unwrap().as_ref(), key);
        }
        let url = Url::parse("http://host:80/a%20b/%C3%BC.png").unwrap();
        assert_eq!((url.store, url.path().unwrap().as_ref()), ("http://host:80", "a b/ü.png"));
        for url in ["ftp://h/x", "https://h/x?sig=secret", "https://me:secret@h/x", "s3://me@b/x"] {
            assert!(!Url::parse(url).unwrap_err().reason.contains("secret"), "{url}");
        }
        for url in ["s3://b//x", "s3://b/x//y", "s3://b/../x", "http://h/a%2Fb", "http://h/%ff", "s3://b/x/"]
        {
            assert!(Url::parse(url).unwrap().path().is_err(), "{url}");
        }
    }
}
