//! What the command's exit code says. Only `main` exits; this module maps, and decides nothing.

use std::process::ExitCode as ProcessExitCode;

/// The exit codes, after `sysexits.h` where it has one. Schedulers branch on them: 0 and 65 are final, 75 and 130 can be started
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// All done: every item has its record.
    Done = 0,
    Usage = 2,
    /// Finished, but some items failed, or the failure limit stopped the run.
    ItemsFailed = 65,
    /// A device, the runtime library or a model is not available.
    Unavailable = 69,
    Bug = 70,
    /// Stopped for a reason outside the run; it may work later or elsewhere.
    TryAgain = 75,
    BadFile = 78,
    /// Interrupted; the same command goes on where it stopped.
    Interrupted = 130,
}

impl ExitCode {
    /// All codes with their meaning, as the help lists them.
    pub const ALL: [(ExitCode, &'static str); 8] = [
        (ExitCode::Done, "all done"),
        (ExitCode::Usage, "the command line is wrong"),
        (ExitCode::ItemsFailed, "finished, some items or tasks failed (or the failure limit stopped it)"),
        (ExitCode::Unavailable, "a device, ONNX Runtime or a model is not available"),
        (ExitCode::Bug, "a bug of ours"),
        (
            ExitCode::TryAgain,
            "stopped for a reason outside, such as a full disk; start it again when that is gone",
        ),
        (ExitCode::BadFile, "the file is wrong, or something changed since the run that would go on"),
        (ExitCode::Interrupted, "interrupted; the same command goes on"),
    ];

    /// That with this number; of one that is not ours, try again.
    pub fn of(number: i32) -> Self {
        let all = Self::ALL.into_iter().map(|(code, _)| code);
        all.into_iter().find(|code| i32::from(code.number()) == number).unwrap_or(Self::TryAgain)
    }

    pub fn number(self) -> u8 {
        self as u8
    }
}

impl From<ExitCode> for ProcessExitCode {
    fn from(code: ExitCode) -> Self {
        ProcessExitCode::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_documented_ones() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|(code, _)| code.number()).collect();
        assert_eq!(numbers, [0, 2, 65, 69, 70, 75, 78, 130]);
    }
}
