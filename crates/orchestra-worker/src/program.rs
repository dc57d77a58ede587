//! A worker process that becomes another program, which speaks the protocol itself. What it may do is settled before, for good; the program
//! inherits the descriptors of a worker. It speaks no protocol itself.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use bincode::{Decode, Encode};
use orchestra_core::wire::{self, EncodeError};
use orchestra_core::{Program, SandboxMode, SandboxRules};
use rustix::fs::MemfdFlags;

use crate::exit_codes::EXIT_LOAD_FAILED;
use crate::limits::no_core_file;
use crate::sandbox::Sandbox;

/// The variable that says what a worker process shall become: [`ConfinedProgram::encode`].
pub const PROGRAM: &str = "ORCHESTRA_PROGRAM";
/// The variable that tells a program the version that it answers in its `Hello`.
pub const BUILD: &str = "ORCHESTRA_BUILD";

/// The variable with [`confined_words`], where a program is confined.
pub const CONFINED: &str = "ORCHESTRA_CONFINED";

/// What stands behind the text of an error that was, by its words, a permission that the sandbox does not give. `of`: whose keys would.
pub fn confined_words(of: &str) -> String {
    format!(
        "the worker is confined to its own folders: `sandbox_read` of the {of} names others, `sandbox_write` those that it writes to; \
         other processes and the network take `sandbox = \"off\"` (see docs/security.md)"
    )
}

/// A program, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ConfinedProgram {
    pub program: Program,
    /// What it may do beyond what it needs.
    pub rules: SandboxRules,
    /// Whether it drives a GPU.
    pub gpu: bool,
}

impl ConfinedProgram {
    /// As [`PROGRAM`] holds it.
    pub fn encode(&self) -> Result<String, String> {
        as_variable(self).map_err(|error| {
            format!("a program cannot be told to a worker: {error}; its paths must be UTF-8")
        })
    }

    fn decode(text: &OsStr) -> Option<Self> {
        of_variable(text)
    }

    /// Becomes the program; comes back with the reason why not.
    fn start(&self) -> String {
        self.try_start().unwrap_or_else(|why| why)
    }

    fn try_start(&self) -> Result<String, String> {
        let Program { command, text, folder, env, read } = &self.program;
        let [program, arguments @ ..] = &command[..] else { return Err("it has no name".to_owned()) };
        no_core_file().map_err(|error| format!("its limits cannot be set: {error}"))?;
        let file = text_file(text).map_err(|error| format!("its text cannot be kept in memory: {error}"))?;
        // Where a model is confined once it has said hello, a program is before its first instruction.
        let sandbox = Sandbox {
            mode: self.rules.mode,
            read: read.iter().chain(&self.rules.read).cloned().collect(),
            write: self.rules.write.clone(),
            gpu: self.gpu,
            network: false,
            decodes: false,
            becomes: true,
        };
        let confined = (sandbox.mode != SandboxMode::Off).then(|| (CONFINED, confined_words("table")));
        if confined.is_some() {
            sandbox.enter().map_err(|error| error.error)?;
        }
        let argument = |argument: &String| match argument == Program::TEXT {
            true => file.clone(),
            false => PathBuf::from(argument),
        };
        let error = Command::new(program)
            .args(arguments.iter().map(argument))
            .env_remove(CONFINED)
            .envs(confined)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .env_remove(PROGRAM)
            .env(BUILD, crate::BUILD)
            .current_dir(folder)
            .exec();
        Ok(error.to_string())
    }
}

/// A value as a variable of the environment holds it: its bytes, of which all but printable ones are `%` and two digits. The kernel takes
/// 128 KiB of a variable, and the texts of programs are large.
pub fn as_variable(value: &impl Encode) -> Result<String, EncodeError> {
    let bytes = wire::encode(value)?;
    Ok(bytes.iter().fold(String::with_capacity(bytes.len()), |mut text, byte| {
        match byte {
            b'%' | ..b' ' | 0x7f.. => write!(text, "%{byte:02x}").expect("a string takes any text"),
            _ => text.push(char::from(*byte)),
        }
        text
    }))
}

/// The value that [`as_variable`] has made; `None` for any other text.
pub fn of_variable<T: Decode<()>>(text: &OsStr) -> Option<T> {
    let mut parts = text.to_str()?.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    wire::decode(&bytes).ok()
}

/// What this worker process shall become, if it is no worker itself.
pub fn of_environment() -> Option<OsString> {
    std::env::var_os(PROGRAM)
}

/// Becomes the program that [`PROGRAM`] holds. Comes back where there is none, with what the process shall exit with.
pub fn become_program(text: &OsStr) -> ExitCode {
    // The terminal's Ctrl-C goes to the whole process group; only the parent decides what it means for a batch that runs. This outlives exec.
    // SAFETY: no handler is installed, the signal is only ignored.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    match ConfinedProgram::decode(text) {
        Some(confined) => {
            let name = confined.program.command.first().cloned().unwrap_or_default();
            eprintln!("`{name}` cannot be started: {}", confined.start());
        }
        None => eprintln!("`{PROGRAM}` is for orchestra's own use, and what it holds is no program"),
    }
    ExitCode::from(EXIT_LOAD_FAILED as u8)
}

/// A file in memory that holds `text`, as a path that this process can open, also after it has become another program.
fn text_file(text: &str) -> io::Result<PathBuf> {
    // Without the flag for it the descriptor stays open across exec, as it must.
    let mut file = File::from(rustix::fs::memfd_create("orchestra-program", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    Ok(PathBuf::from(format!("/proc/self/fd/{}", file.into_raw_fd())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_again_and_anything_else_is_refused() {
        let program = Program {
            command: vec!["cat".into(), Program::TEXT.into()],
            text: "ä\n".into(),
            ..Program::default()
        };
        let confined = ConfinedProgram { program, rules: SandboxRules::default(), gpu: true };
        let text = confined.encode().unwrap();
        assert_eq!(ConfinedProgram::decode(OsStr::new(&text)), Some(confined));
        for cut in 0..text.len() {
            assert_eq!(ConfinedProgram::decode(OsStr::new(&text[..cut])), None, "{cut}");
        }
        for rubbish in [format!("{text}00"), format!("{text}0"), "zz".to_owned(), "+1".to_owned()] {
            assert_eq!(ConfinedProgram::decode(OsStr::new(&rubbish)), None, "{rubbish}");
        }
    }
}
