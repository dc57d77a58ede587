//! Starts a worker executable as the protocol wants it and speaks to it frame by frame, for tests of one worker. Never retries.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::Context as _;
use orchestra_wire::arena::Arena;
use orchestra_wire::codec::{CodecError, FrameReader, FrameWriter};
use orchestra_wire::frames::{FromWorker, ToWorker};

/// A running worker. Dropping it kills it.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    socket: UnixStream,
    reader: FrameReader<UnixStream, FromWorker>,
    writer: FrameWriter<UnixStream, ToWorker>,
}

impl WorkerProcess {
    /// Starts `program` with `arguments` and additional environment `variables`; it shares `arena`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        arena: &Arena,
    ) -> anyhow::Result<Self> {
        let (here, there) = UnixStream::pair().context("cannot make a socket pair")?;
        let arena = arena.fd().try_clone_to_owned().context("cannot share the arena")?;
        // The shell moves its standard streams to the descriptors of the protocol, which needs no code between fork and exec.
        let child = Command::new("/bin/sh")
            .args(["-c", "exec \"$@\" 3<&0 4<&1 </dev/null >/dev/null", "sh"])
            .arg(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::from(arena))
            .spawn()
            .with_context(|| format!("cannot start `{}`", program.display()))?;
        let reader = FrameReader::new(here.try_clone().context("cannot share the socket")?);
        let socket = here.try_clone().context("cannot share the socket")?;
        Ok(Self { child, socket, reader, writer: FrameWriter::new(here) })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// `Gone` if it reads no more.
    pub fn send(&mut self, frame: &ToWorker) -> Result<(), CodecError> {
        self.writer.write(frame)
    }

    /// Asks it to end: closes this side of the socket for writing.
    ///
    /// # Errors
    /// It is gone already.
    pub fn hang_up(&self) -> std::io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Waits for its next frame that is no heartbeat; `None` when it is gone.
    ///
    /// # Errors
    /// What came is no frame, or half of one.
    pub fn answer(&mut self) -> Result<Option<FromWorker>, CodecError> {
        loop {
            match self.reader.read()? {
                Some(FromWorker::Heartbeat { .. }) => {}
                other => return Ok(other),
            }
        }
    }

    /// Waits for the next heartbeat, and leaves out what comes before it; `None` when the worker is gone.
    ///
    /// # Errors
    /// What came is no frame, or half of one.
    pub fn heartbeat(&mut self) -> Result<Option<FromWorker>, CodecError> {
        loop {
            let frame = self.reader.read()?;
            if matches!(frame, Some(FromWorker::Heartbeat { .. }) | None) {
                return Ok(frame);
            }
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The system cannot say.
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// The system cannot say.
    pub fn kill(&mut self) -> std::io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may be gone already, and a test that fails must not hide its reason behind this.
        let _ = self.kill();
    }
}
