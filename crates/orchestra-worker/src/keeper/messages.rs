//! What orchestra and a keeper say to each other: an order, then to stop it; reports, the last of which says how it ended.

use std::path::Path;
use std::{fs, io};

use crate::codec::{self, Frame};
use bincode::{Decode, Encode};
use orchestra_core::tasks::{TaskMetric, TaskMetrics};

/// The last argument of a process that shall be a keeper. Its standard input is the socket to orchestra.
pub const KEEPER: &str = "keeper";
/// What people are shown of the last words: so many lines, and bytes of each.
const SHOWN_LINES: usize = 20;
const SHOWN_BYTES: usize = 400;

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ToKeeper {
    /// Once, before all else.
    Order(Box<CommandOrder>),
    /// To end its command: the signal, the grace, the kill.
    Stop,
    /// To kill the command at once.
    Kill,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct CommandOrder {
    /// The program and its arguments.
    pub command: Vec<String>,
    pub cwd: String,
    /// In addition to the environment of the keeper.
    pub env: Vec<(String, String)>,
    /// The file of all that it writes, which is made anew.
    pub log: String,
    /// The file that says how it ended, written before anything else is told of it.
    pub end: String,
    /// A file that is locked for as long as anything of the command lives, shared with other keepers.
    pub lock: String,
    /// The number of the signal that asks it to end.
    pub stop_signal: i32,
    /// Milliseconds from then until it is killed.
    pub grace_ms: u64,
    /// Bytes of data that each of its processes may have (`RLIMIT_DATA`), or bytes of all of them where it has a group.
    pub memory: Option<u64>,
    /// The cores that it is kept on, by their places among those of the keeper; empty: any.
    pub cores: Vec<u32>,
    /// The numbers that are read from its lines.
    pub metrics: Vec<TaskMetric>,
    /// The file of their curves, which is made anew.
    pub curves: Option<String>,
    /// Milliseconds: one that has written nothing for so long is asked to end.
    pub quiet_ms: Option<u64>,
    /// Files that each of its processes may have open unless it asks for more; `None`: as many as the keeper.
    pub open_files: Option<u64>,
    /// A control group for it; then `memory` bounds all of its processes together.
    pub group: Option<CommandGroup>,
}

/// A control group (cgroup v2) that is made for a command.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct CommandGroup {
    pub folder: String,
    /// It can keep its processes on cores.
    pub bounds_cores: bool,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum KeeperReport {
    /// The command runs. The number of its process, which is that of its group.
    Started(i32),
    /// There is no such program or folder, or a limit cannot be set.
    NotStarted(String),
    /// It has ended, and nothing of it is left.
    Ended(CommandEnd),
    /// All that was read from its lines so far: some times a second at most.
    Metrics(TaskMetrics),
    /// The process of this number, the command itself, was killed and has not ended since: it hangs in the kernel. `Ended` follows, as if the kill
    /// had ended it.
    CannotBeKilled(i32),
}

#[derive(Debug, Clone, PartialEq, Default, Encode, Decode)]
pub struct CommandEnd {
    /// Its exit code, unless a signal killed it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// It was asked to end, or killed, before it did.
    pub was_stopped: bool,
    /// It was asked first of all because it had written nothing for so many milliseconds.
    pub quiet_ms: Option<u64>,
    /// Its group or the machine had no memory left, and the system has killed it.
    pub ran_out_of_memory: bool,
    /// From its start to its end.
    pub milliseconds: u64,
    /// Most bytes of memory of its group, or else of the command or of a process that it has waited for.
    pub peak_memory: u64,
    /// The last lines that it wrote: pages, in which it may have said why it failed. See [`CommandEnd::excerpt`].
    pub last_words: String,
    /// Processes that it left behind, at least so many, which were killed.
    pub left_behind: u32,
    /// Why its log or its curves are incomplete.
    pub log_error: Option<String>,
    /// What was read from its lines. Names are in it: it may be read by a start whose file asks for other metrics.
    pub metrics: TaskMetrics,
}

impl CommandEnd {
    /// The end that [`CommandEnd::write`] has noted there.
    pub fn read(file: &Path) -> Option<Self> {
        codec::decode(&fs::read(file).ok()?).ok()
    }

    /// Notes it there, whole or not at all.
    pub(crate) fn write(&self, file: &str) -> io::Result<()> {
        let (next, mut frame) = (format!("{file}.next"), Vec::new());
        codec::encode(self, &mut frame).map_err(io::Error::other)?;
        fs::write(&next, &frame[4..])?;
        fs::rename(next, file)
    }

    /// The end of the last words, for people.
    pub fn excerpt(&self) -> String {
        let lines: Vec<&str> = self.last_words.trim_end().lines().collect();
        let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        let cut = |line: &&str| line[..line.floor_char_boundary(SHOWN_BYTES)].to_owned();
        shown.iter().map(cut).collect::<Vec<_>>().join("\n")
    }
}

impl Frame for ToKeeper {
    /// The kernel takes no longer command.
    const MAX_BYTES: usize = 16 << 20;
}

impl Frame for KeeperReport {
    const MAX_BYTES: usize = 16 << 20;
}

impl Frame for CommandEnd {
    const MAX_BYTES: usize = KeeperReport::MAX_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_or_longer_than_it_says_is_refused() {
        let last_words = "words".to_owned();
        let report = KeeperReport::Ended(CommandEnd {
            code: Some(3),
            milliseconds: 300,
            last_words,
            ..CommandEnd::default()
        });
        let mut bytes = Vec::new();
        codec::encode(&report, &mut bytes).unwrap();
        assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_le_bytes());
        assert_eq!(codec::decode::<KeeperReport>(&bytes[4..]).unwrap(), report);
        assert!((4..bytes.len()).all(|end| codec::decode::<KeeperReport>(&bytes[4..end]).is_err()));
        assert!(codec::decode::<KeeperReport>(&[&bytes[4..], &[0]].concat()).is_err());
        // A text that claims to be longer than any message.
        assert!(codec::decode::<KeeperReport>(&[1, 253, 255, 255, 255, 255, 255, 255, 255, 127]).is_err());
    }

    #[test]
    fn people_are_shown_the_end_of_the_last_words() {
        let lines: Vec<String> = (0..30).map(|n| format!("{n}{}", "é".repeat(300))).collect();
        let ended = CommandEnd { last_words: lines.join("\n") + "\n\n", ..CommandEnd::default() };
        let shown = ended.excerpt();
        assert_eq!(shown.lines().count(), SHOWN_LINES);
        assert_eq!(shown.lines().next(), Some(&lines[10][..SHOWN_BYTES]));
        assert_eq!(CommandEnd::default().excerpt(), "");
    }
}
