//! Objects of a store: `s3://`, `gs://`, `az://`, `http://` and `https://`, as items and as results. The parent lists and writes them; a loader
//! process reads them, and of loaders only those of such sources get the network and the credentials. Built with the feature `cloud`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::data::ItemError;
use orchestra_core::shapes::Network;
use orchestra_core::{FailureKind, credentials};
use orchestra_plan::ObjectAccess;
use orchestra_store::{ListError, ObjectOutput, ObjectStore, StoreTrouble};

#[cfg(feature = "cloud")]
mod client;
#[cfg(feature = "cloud")]
mod fetch;
#[cfg(feature = "cloud")]
mod listing;
#[cfg(feature = "cloud")]
mod output;
#[cfg(feature = "cloud")]
mod trouble;

/// How the stores of a URL are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    #[cfg(feature = "cloud")]
    pub fn of(url: &str) -> Option<Self> {
        Self::of_scheme(url.split_once("://")?.0)
    }

    fn of_scheme(scheme: &str) -> Option<Self> {
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

/// Where names of hosts and certificates lie. `/etc` as a whole: its files are replaced by others while a run goes on, with every lease of an
/// address, and what is allowed of a single file does not hold for the one that takes its place.
const HOSTS_AND_CERTIFICATES: [&str; 10] = [
    "/etc",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/run/systemd/resolve",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/ssl",
    "/usr/local/ssl",
    "/var/lib/ca-certificates",
];
/// Links to where the servers of names are said.
const SERVERS_OF_NAMES: &str = "/etc/resolv.conf";
/// Below the home folder: what the tool of Google's cloud keeps for programs.
const KEY_OF_GOOGLE: &str = ".config/gcloud/application_default_credentials.json";

/// What sources of objects are read with.
pub const ACCESS: ObjectAccess = ObjectAccess {
    store,
    network: |schemes| {
        network(&schemes.iter().filter_map(|scheme| Protocol::of_scheme(scheme)).collect::<Vec<_>>())
    },
};

/// What a loader of objects needs.
fn network(protocols: &[Protocol]) -> Network {
    let of_stores = protocols.iter().flat_map(|protocol| protocol.variables().iter().copied());
    let network = Network { variables: of_stores.chain(CONNECTIONS).collect(), files: Vec::new() };
    let has_google = protocols.contains(&Protocol::Google);
    let key = std::env::home_dir().filter(|_| has_google).map(|home| home.join(KEY_OF_GOOGLE));
    let files = files(&network, std::env::vars_os(), key);
    Network { files, ..network }
}

/// What a loader reads that has this network: of `variables`, the files and folders that those of its stores name.
fn files(
    network: &Network,
    variables: impl Iterator<Item = (OsString, OsString)>,
    key: Option<PathBuf>,
) -> Vec<PathBuf> {
    let named = variables.flat_map(|(name, value)| {
        let name = name.to_string_lossy();
        let is_named = network.takes(&name) && (names_files(&name) || Path::new(&value).is_absolute());
        let paths: Vec<PathBuf> = match &*name {
            "SSL_CERT_DIR" => std::env::split_paths(&value).collect(),
            _ => vec![value.clone().into()],
        };
        // Loaders work in the folder of the run, as its parent does.
        let absolute =
            paths.into_iter().filter(|_| is_named).filter_map(|path| std::path::absolute(path).ok());
        absolute.flat_map(|path| and_folder(&name, path)).collect::<Vec<_>>()
    });
    let servers = Path::new(SERVERS_OF_NAMES).canonicalize().ok();
    let servers = servers.and_then(|file| file.parent().map(Path::to_owned));
    let usual = HOSTS_AND_CERTIFICATES.map(PathBuf::from);
    usual.into_iter().chain(servers).chain(key).chain(named).collect()
}

/// Whether a variable of this name has paths, which may be relative ones.
fn names_files(name: &str) -> bool {
    ["_FILE", "_DIR", "_CREDENTIALS", "_PATH", "SERVICE_ACCOUNT"].iter().any(|end| name.ends_with(end))
}

/// A file that a variable names, with the folder that it lies in where the file is another one after a while: a token, or a link, as those of
/// Kubernetes are.
fn and_folder(name: &str, file: PathBuf) -> impl Iterator<Item = PathBuf> + use<> {
    let changes = name.ends_with("TOKEN_FILE") || file.is_symlink();
    let folder = file.parent().filter(|_| changes).map(Path::to_owned);
    folder.into_iter().chain([file])
}

/// What speaks to stores.
///
/// # Errors
/// This program was built without it.
fn store() -> Result<Arc<dyn ObjectStore>, String> {
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

/// Why a store cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// A lowercase fragment, without the URL.
    pub reason: String,
    pub help: String,
    pub kind: TroubleKind,
}

/// What it means for the item, and for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "stores are read with that feature"))]
pub enum TroubleKind {
    Missing,
    /// This object cannot be read.
    Object,
    /// This was not answered, and may be another time: nothing is known of the object, nor of others.
    Question,
    /// No object of the store can be read now.
    Store,
    /// No object of the store can be read with these credentials, or there is no such bucket.
    Refused,
    /// The URL or the environment is wrong.
    Settings,
}

impl Trouble {
    /// What an item ends with that lies in this object.
    pub fn item_error(self, url: &[u8]) -> ItemError {
        let kind = match self.kind {
            TroubleKind::Store | TroubleKind::Refused => FailureKind::Unreachable,
            TroubleKind::Missing | TroubleKind::Object | TroubleKind::Question | TroubleKind::Settings => {
                FailureKind::Read
            }
        };
        ItemError { kind, error: format!("cannot read `{}`: {}", String::from_utf8_lossy(url), self.reason) }
    }

    /// Why what lies there cannot be listed.
    pub fn list_error(self, url: &str) -> ListError {
        let trouble = match self.kind {
            TroubleKind::Store | TroubleKind::Question => StoreTrouble::Passing,
            TroubleKind::Refused => StoreTrouble::ItemError,
            TroubleKind::Missing | TroubleKind::Object | TroubleKind::Settings => StoreTrouble::Mistake,
        };
        ListError::Store { url: url.to_owned(), reason: self.reason, help: self.help, trouble }
    }
}

/// Reads objects, one after the other; its connections stay open.
pub trait ReadObject: Send {
    /// How many bytes the object has, and what tells it from another one of its size under its name.
    fn head(&mut self, url: &[u8]) -> Result<(u64, u32), Trouble>;

    /// Reads the object into `buffer`, none of more than [`crate::sources::reading::limits::LARGEST_FILE_BYTES`].
    fn read(&mut self, url: &[u8], buffer: &mut Vec<u8>) -> Result<(), ItemError>;

    /// Reads `len` bytes from `at` on into `buffer`. The caller has checked `len`, which is not 0.
    fn read_part(&mut self, url: &[u8], at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), Trouble>;
}

pub fn reader() -> Box<dyn ReadObject> {
    #[cfg(feature = "cloud")]
    return Box::new(fetch::ObjectReader::default());
    #[cfg(not(feature = "cloud"))]
    Box::new(NoReader)
}

/// A loader of another build than its parent, which is refused before.
#[cfg(not(feature = "cloud"))]
struct NoReader;

#[cfg(not(feature = "cloud"))]
impl ReadObject for NoReader {
    fn head(&mut self, _: &[u8]) -> Result<(u64, u32), Trouble> {
        Err(Trouble { reason: BUILD_IT.to_owned(), help: String::new(), kind: TroubleKind::Settings })
    }

    fn read(&mut self, url: &[u8], _: &mut Vec<u8>) -> Result<(), ItemError> {
        self.head(url).map(drop).map_err(|trouble| trouble.item_error(url))
    }

    fn read_part(&mut self, url: &[u8], _: u64, _: u64, _: &mut Vec<u8>) -> Result<(), Trouble> {
        self.head(url).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_gets_the_credentials_of_its_own_stores_and_of_no_others() {
        let takes = |scheme: &str| {
            let network = (ACCESS.network)(&[scheme.to_owned()]);
            [
                "AWS_SECRET_ACCESS_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "AZURE_CLIENT_SECRET",
                "HTTPS_PROXY",
                "OTHER_TOKEN",
            ]
            .map(|variable| network.takes(variable))
        };
        assert_eq!(takes("s3"), [true, false, false, true, false]);
        assert_eq!(takes("gs"), [false, true, false, true, false]);
        assert_eq!(takes("az"), [false, false, true, true, false]);
        assert_eq!(takes("https"), [false, false, false, true, false]);
        assert_eq!(Protocol::of_scheme("ftp"), None);
    }

    #[test]
    fn a_loader_reads_certificates_and_the_keys_of_its_own_stores_and_nothing_else_of_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("linked")).unwrap();
        for name in ["linked/real", "key.json", "token"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::os::unix::fs::symlink(at("linked/real"), at("linked/link")).unwrap();
        let read = |protocols: &[Protocol], variables: &[(&str, PathBuf)]| {
            let network = network(protocols);
            let variables = variables.iter().map(|(name, value)| (OsString::from(name), value.into()));
            let mut files = files(&network, variables, None);
            assert!(files.contains(&"/etc/ssl/certs".into()), "{files:?}");
            files.retain(|file| file.starts_with(folder.path()));
            files
        };
        let aws = ("AWS_WEB_IDENTITY_TOKEN_FILE", at("token"));
        let google = ("GOOGLE_APPLICATION_CREDENTIALS", at("key.json"));
        let linked = ("SSL_CERT_FILE", at("linked/link"));
        let others = [("HOME", at("")), ("AWS_REGION", "token".into()), ("OTHER_TOKEN_FILE", at("token"))];
        assert_eq!(read(&[Protocol::S3], &others), Vec::<PathBuf>::new());
        let both = ("SSL_CERT_DIR", std::env::join_paths([at("linked"), at("none")]).unwrap().into());
        assert_eq!(read(&[Protocol::Http], &[both]), [at("linked"), at("none")]);
        let relative = |name: &str| {
            let here = network(&[Protocol::Google]);
            let files = files(&here, std::iter::once((name.into(), "key.json".into())), None);
            files.contains(&std::path::absolute("key.json").unwrap())
        };
        assert!(relative("GOOGLE_APPLICATION_CREDENTIALS") && relative("SSL_CERT_FILE"));
        assert!(!relative("GOOGLE_BUCKET") && !relative("AWS_WEB_IDENTITY_TOKEN_FILE"));
        let all = [aws, google, linked];
        assert_eq!(read(&[Protocol::Http], &all), [at("linked"), at("linked/link")]);
        assert_eq!(read(&[Protocol::Google], &all), [at("key.json"), at("linked"), at("linked/link")]);
        let of_aws = [folder.path().to_owned(), at("token"), at("linked"), at("linked/link")];
        assert_eq!(read(&[Protocol::S3], &all), of_aws);
    }
}
