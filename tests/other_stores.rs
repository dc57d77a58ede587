//! Stores that are not S3: `az://` over Azurite, a server of Microsoft's that speaks Azure Blob Storage, written to and read back; `gs://` over a server of the
//! test's, since no emulator lists as Google's XML interface does.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;
mod store;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Blocks, Workplace, has_feature, repository, write_pictures};
use orchestra_testkit::skip::skip;
use serde_json::Value;
use store::Store;

const ITEMS: u64 = 40;

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

#[test]
fn results_in_azure_storage_are_whole_and_come_out_as_items_again() {
    if !has_feature("cloud") {
        return;
    }
    let Some(azurite) = Azurite::start() else { return };
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    let sinks = "[stages.kept]\nkind = \"select\"\nfrom = \"scans\"\ncolumns = { kept = \"picture\" }\n\
                 [sinks.pictures]\nkind = \"images\"\nfrom = \"kept\"\npath = \"az://kept/pictures/\"\nrows_per_file = 16\n\
                 [sinks.lines]\nkind = \"jsonl\"\nfrom = \"read\"\npath = \"az://kept/lines/\"\nrows_per_file = 16";
    place.write_blocks(&Blocks { devices: 1, more: sinks, ..Blocks::default() }, "paths = [\"images\"]");
    place.run_with(&azurite.variables()).must_exit(0);
    let out = place.out();
    let verified = place.start_command_with(&["verify", out.to_str().unwrap()], &azurite.variables()).wait();
    assert!(verified.must_exit(0).stdout.contains("0 lost, 0 doubled"), "{}", verified.stdout);

    // Another client sees what was written.
    let manifest: Value = serde_json::from_str(&azurite.ask("GET", "kept/lines/_manifest.json")).unwrap();
    assert_eq!(manifest["rows"], ITEMS);
    let indexes: Vec<u64> = manifest["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| azurite.ask("GET", &format!("kept/lines/{}", part["name"].as_str().unwrap())))
        .flat_map(|lines| lines.lines().map(index).collect::<Vec<_>>())
        .collect();
    assert_eq!(indexes.len() as u64, ITEMS);
    assert_eq!(indexes.into_iter().collect::<BTreeSet<_>>(), (0..ITEMS).collect());

    // Loader processes read what the parent lists.
    place.write_blocks(&Blocks { devices: 1, ..Blocks::default() }, "paths = [\"az://kept/pictures/*.png\"]");
    let (file, again) = (place.workflow(), place.out());
    let run = ["run", file.to_str().unwrap(), "--output", again.to_str().unwrap(), "--fresh"];
    place.start_command_with(&run, &azurite.variables()).wait().must_exit(0);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
    place.edit("az://kept", "az://none");
    place.start_command_with(&run, &azurite.variables()).wait().must_exit(78).must_say(&["az://none"]);
}

fn index(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["index"].as_u64().unwrap()
}

#[test]
fn objects_of_google_storage_are_listed_by_the_run_and_read_by_its_loaders() {
    if !has_feature("cloud") {
        return;
    }
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
    let workflow = place.workflow();
    let run = ["run", workflow.to_str().unwrap(), "--fresh"];
    place.start_command_with(&run, &variables).wait().must_exit(78).must_say(&["403", "GOOGLE_"]);
}
