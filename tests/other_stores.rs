//! Stores that are not S3: `az://` over Azurite, a server of Microsoft's that speaks Azure Blob Storage, and `gs://` over fake-gcs-server, which speaks
//! Google Cloud Storage; both are written to and read back. Only what a store refuses is told by a server of the test's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{Blocks, Workplace, python_env, repository, write_pictures};
use crate::store::Store;
use orchestra_testkit::skip::{is_deep_check, skip};
use serde_json::Value;
use tempfile::{NamedTempFile, TempPath};

const ITEMS: u64 = 40;
/// Of a second start.
const MORE: u64 = 7;

struct Azurite {
    child: Child,
    /// Open, since it says more.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Azurite {
    /// One with an empty container `kept`; `None`: the test is skipped.
    #[track_caller]
    fn start() -> Option<Self> {
        if !is_deep_check("stores") {
            return None;
        }
        let script = repository().join("scripts/azurite.sh");
        let path = Command::new(script).arg("path").output().unwrap();
        if !path.status.success() {
            skip("no Azurite", "`scripts/azurite.sh` installs it with npm");
            return None;
        }
        let mut child = Command::new(String::from_utf8(path.stdout).unwrap().trim_end())
            .args(["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        let address = loop {
            said.clear();
            assert!(stdout.read_line(&mut said).unwrap() > 0, "it ended");
            if let Some((_, address)) = said.trim_end().split_once("listens on ") {
                break address.to_owned();
            }
        };
        let azurite = Self { child, _stdout: stdout, address };
        azurite.ask("PUT", "kept?restype=container");
        Some(azurite)
    }

    /// What the server answers to a request that is signed by Python alone.
    fn ask(&self, method: &str, target: &str) -> String {
        let asked =
            Command::new("python3").args(["-c", ASK, &self.address, method, target]).output().unwrap();
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8_lossy(&asked.stdout).into_owned()
    }

    fn variables(&self) -> [(&str, &str); 2] {
        [("AZURE_STORAGE_USE_EMULATOR", "true"), ("AZURITE_BLOB_STORAGE_URL", &self.address)]
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request with the shared key that every Azurite has.
const ASK: &str = "
import base64, hashlib, hmac, sys, urllib.request
from email.utils import formatdate
address, method, target = sys.argv[1:]
account, key = 'devstoreaccount1', 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='
path, _, query = target.partition('?')
headers = {'x-ms-date': formatdate(usegmt=True), 'x-ms-version': '2021-12-02'}
sent = ''.join(f'{name}:{value}\\n' for name, value in sorted(headers.items()))
parameters = ''.join(f'\\n{part.replace(\"=\", \":\", 1)}' for part in sorted(query.split('&')) if part)
text = f'{method}' + '\\n' * 12 + f'{sent}/{account}/{account}/{path}{parameters}'
signed = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
headers['Authorization'] = f'SharedKey {account}:{signed}'
request = urllib.request.Request(f'{address}/{account}/{target}', method=method, headers=headers)
sys.stdout.buffer.write(urllib.request.urlopen(request).read())
";

struct Google {
    child: Child,
    address: String,
    /// Names a file that no process has any business with but for this variable.
    key: TempPath,
}

impl Google {
    /// One with an empty bucket `kept`; `None`: the test is skipped.
    #[track_caller]
    fn start() -> Option<Self> {
        if !is_deep_check("stores") {
            return None;
        }
        let python = python_env("gcs")?;
        let mut child = Command::new(python)
            .arg(repository().join("scripts/gcs.py"))
            .arg("kept")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("http://"), "it ended");
        let mut key = NamedTempFile::new().unwrap();
        key.write_all(ACCOUNT).unwrap();
        Some(Self { child, address: said.trim_end().to_owned(), key: key.into_temp_path() })
    }

    /// The bytes of an object as text, by the JSON interface, which the command does not use.
    fn get(&self, key: &str) -> String {
        let asked = Command::new("python3").args(["-c", GET, &self.address, key]).output().unwrap();
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8_lossy(&asked.stdout).into_owned()
    }

    fn variables(&self) -> [(&str, &str); 2] {
        [("GOOGLE_BASE_URL", &self.address), ("GOOGLE_SERVICE_ACCOUNT", self.key.to_str().unwrap())]
    }
}

/// Whom the server believes without a look; who signs nothing writes nothing.
const ACCOUNT: &[u8] =
    b"{\"private_key\": \"\", \"private_key_id\": \"\", \"client_email\": \"\", \"disable_oauth\": true}";

impl Drop for Google {
    fn drop(&mut self) {
        // It ends the server once nothing can be said to it any more.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

const GET: &str = "
import sys, urllib.parse, urllib.request
address, key = sys.argv[1:]
url = f'{address}/storage/v1/b/kept/o/{urllib.parse.quote(key, safe=\"\")}?alt=media'
sys.stdout.buffer.write(urllib.request.urlopen(url).read())
";

/// Writes pictures, records and archives to an empty bucket, more of them with a second start, and reads all of them back. `get` is another client's way to
/// an object.
fn what_is_written_comes_out_again(bucket: &str, variables: &[(&str, &str)], get: impl Fn(&str) -> String) {
    let place = Workplace::new();
    let sinks = [
        ("pictures", "images", "kept"),
        ("lines", "jsonl", "read"),
        ("shards", "tar", "read"),
    ]
    .map(|(name, kind, from)| {
        format!(
            "[sinks.{name}]\nkind = \"{kind}\"\nfrom = \"{from}\"\npath = \"{bucket}/{name}/\"\nrows_per_file = 16\n"
        )
    });
    let more = format!(
        "[stages.kept]\nkind = \"select\"\nfrom = \"scans\"\ncolumns = {{ kept = \"picture\" }}\n{}",
        sinks.concat()
    );
    place
        .write_blocks(&Blocks { devices: 1, more: more.leak(), ..Blocks::default() }, "paths = [\"images\"]");
    // The second start replaces the manifests of the first one.
    for n in [ITEMS, ITEMS + MORE] {
        write_pictures(&place.images(), n);
        place.run_with(variables).must_exit(0);
        let out = place.out();
        let verified = place.start_command_with(&["verify", out.to_str().unwrap()], variables).wait();
        verified.must_exit(0).must_print(&["0 lost, 0 doubled"]);
        let manifest: Value = serde_json::from_str(&get("lines/_manifest.json")).unwrap();
        assert_eq!(manifest["rows"], n);
        let indexes: Vec<u64> = manifest["parts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| get(&format!("lines/{}", part["name"].as_str().unwrap())))
            .flat_map(|lines| lines.lines().map(index).collect::<Vec<_>>())
            .collect();
        assert_eq!(indexes.len() as u64, n);
        assert_eq!(indexes.into_iter().collect::<BTreeSet<_>>(), (0..n).collect());
    }
    let in_folder = fs::read_to_string(place.out().join("results.jsonl")).unwrap();

    // Loader processes read what the parent lists: of archives, a range of bytes for each member.
    let archives = format!(
        "version = 1\n[sources.s]\nkind = \"tar\"\npaths = [\"{bucket}/shards/*.tar\"]\ncolumns = [\"json\", \"npy\"]\n\
         [stages.all]\nkind = \"filter\"\nkeep = \"true\"\nfrom = \"s\"\n[sinks.lines]\nkind = \"jsonl\"\nfrom = \"all\"\n"
    );
    place.run_file(archives, "again", variables).must_exit(0);
    let in_bucket = fs::read_to_string(place.path("again/lines.jsonl")).unwrap();
    let of_archive = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        (index(record["result"]["json"].as_str().unwrap()), record["result"]["npy"]["data"].clone())
    };
    let of_folder = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        (index(line), record["result"]["blocks"]["data"].clone())
    };
    let found: BTreeMap<u64, Value> = in_bucket.lines().map(of_archive).collect();
    assert_eq!((found.len(), in_bucket.lines().count() as u64), ((ITEMS + MORE) as usize, ITEMS + MORE));
    assert_eq!(found, in_folder.lines().map(of_folder).collect());

    let pictures = format!("paths = [\"{bucket}/pictures/*.png\"]");
    place.write_blocks(&Blocks { devices: 1, ..Blocks::default() }, &pictures);
    let (file, again) = (place.workflow(), place.out());
    let run = ["run", file.to_str().unwrap(), "--output", again.to_str().unwrap(), "--fresh"];
    place.start_command_with(&run, variables).wait().must_exit(0);
    place.holds_exactly(ITEMS + MORE);
    place.nothing_is_left();
}

#[test]
fn results_in_azure_storage_are_whole_and_come_out_as_items_again() {
    let Some(azurite) = Azurite::start() else { return };
    what_is_written_comes_out_again("az://kept", &azurite.variables(), |key| {
        azurite.ask("GET", &format!("kept/{key}"))
    });
    let place = Workplace::new();
    place.write_blocks(&Blocks { devices: 1, ..Blocks::default() }, "paths = [\"az://none/*.png\"]");
    place.run_with(&azurite.variables()).must_exit(78).must_say(&["az://none"]);
}

#[test]
fn results_in_google_storage_are_whole_and_come_out_as_items_again() {
    let Some(google) = Google::start() else { return };
    what_is_written_comes_out_again("gs://kept", &google.variables(), |key| google.get(key));
}

fn index(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["index"].as_u64().unwrap()
}

#[test]
fn what_google_storage_refuses_is_told_with_what_to_look_at() {
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    place.write_blocks(&Blocks { devices: 1, ..Blocks::default() }, "paths = [\"gs://bucket/*.png\"]");
    let store = Store::start(&place.images());
    let address = format!("http://127.0.0.1:{}", store.port());
    let variables = [("GOOGLE_BASE_URL", &*address), ("GOOGLE_SKIP_SIGNATURE", "true")];
    place.run_with(&variables).must_exit(0);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
    store.refuse_all();
    place.start_on_file("run", &["--fresh"], &variables).wait().must_exit(78).must_say(&["403", "GOOGLE_"]);
}
