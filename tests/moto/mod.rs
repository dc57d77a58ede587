//! A real S3 server on this machine, for tests. It judges nothing.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{python_env, repository};

/// A real S3 server with the bucket of the example.
pub struct Moto {
    child: Child,
    /// The Python that has it.
    python: String,
    /// Open, since it says more.
    _stdout: BufReader<ChildStdout>,
    variables: Vec<(String, String)>,
}

impl Moto {
    /// `None`: the test is skipped.
    #[track_caller]
    pub fn start() -> Option<Self> {
        let python = python_env("moto")?;
        let mut child = Command::new(&python)
            .arg(repository().join("examples/bucket/serve.py"))
            .arg("--odd")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut said).unwrap();
        let pairs = said.trim_end().strip_prefix("export ").unwrap().split(' ');
        let variables = pairs.map(|pair| pair.split_once('=').unwrap()).map(|(a, b)| (a.into(), b.into()));
        Some(Self { variables: variables.collect(), _stdout: stdout, child, python })
    }

    /// Runs a line of Python that may use `s3`, a client of the server.
    pub fn python(&self, line: &str) -> String {
        let client = "import boto3, os\ns3 = boto3.client('s3', endpoint_url=os.environ['AWS_ENDPOINT_URL'], region_name='us-east-1')\n";
        let done = Command::new(&self.python)
            .args(["-c", &format!("{client}{line}")])
            .envs(self.variables())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// The Python that has `boto3`.
    pub fn program(&self) -> &str {
        &self.python
    }

    pub fn variables(&self) -> Vec<(&str, &str)> {
        self.variables.iter().map(|(name, value)| (&name[..], &value[..])).collect()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
