//! The time of a part that is stopped while others have the machine: its own turns, without those of the others. It stops nobody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cpu_time::idle;

/// Nanoseconds of both, as little-endian `u64`.
const BYTES: usize = 16;

/// What passed while others had the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Time.
    pub time: Duration,
    /// Time that all cores together had nothing to do.
    pub idle: Duration,
}

/// Where a part is told what passed. It is only written while the part is stopped.
#[derive(Debug)]
pub struct Account(File);

impl Account {
    /// A new one: nothing has passed.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let account = Self(file);
        account.write(Elsewhere::default())?;
        Ok(account)
    }

    fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// All that has passed since the part began.
    pub fn write(&self, elsewhere: Elsewhere) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        let (time, idle) = bytes.split_at_mut(BYTES / 2);
        time.copy_from_slice(&nanoseconds(elsewhere.time).to_le_bytes());
        idle.copy_from_slice(&nanoseconds(elsewhere.idle).to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }

    fn read(&self) -> io::Result<Elsewhere> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, 0)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
        Ok(Elsewhere { time: Duration::from_nanos(number(0)), idle: Duration::from_nanos(number(BYTES / 2)) })
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that stands still while its process is stopped.
#[derive(Debug)]
pub struct OwnTime {
    began: Instant,
    /// `None`: nobody stops this process.
    account: Option<Account>,
    /// What had passed elsewhere before.
    before: Elsewhere,
}

impl OwnTime {
    /// Of a process that nobody stops.
    pub fn undivided() -> Self {
        Self { began: Instant::now(), account: None, before: Elsewhere::default() }
    }

    /// Of one that is told at `path` what passed while it was stopped.
    pub fn told_at(path: &Path) -> io::Result<Self> {
        let account = Account::open(path)?;
        loop {
            let before = account.read()?;
            let began = Instant::now();
            if account.read()? == before {
                return Ok(Self { began, account: Some(account), before });
            }
        }
    }

    /// Since it was made.
    pub fn now(&self) -> Duration {
        self.unstopped(
            || Some(self.began.elapsed()),
            |elsewhere| elsewhere.time.saturating_sub(self.before.time),
        )
        .unwrap_or_default()
    }

    /// Time in which all cores together had nothing to do, from an arbitrary start; `None` where that is not known.
    pub fn idle(&self, cores: usize) -> Option<Duration> {
        self.unstopped(|| idle(cores), |elsewhere| elsewhere.idle)
    }

    /// What `look` sees, less what passed elsewhere. It looks again where it was stopped in between.
    fn unstopped(
        &self,
        look: impl Fn() -> Option<Duration>,
        passed: impl Fn(Elsewhere) -> Duration,
    ) -> Option<Duration> {
        // The account is a few bytes of a file that was written in full before this was made.
        let read = || self.account.as_ref().and_then(|a| a.read().ok()).unwrap_or_default();
        loop {
            let before = read();
            let seen = look()?;
            if read() == before {
                return Some(seen.saturating_sub(passed(before)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> (Account, OwnTime) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("account");
        // Both keep the file open.
        (Account::create(&path).unwrap(), OwnTime::told_at(&path).unwrap())
    }

    #[test]
    fn what_passed_elsewhere_is_no_own_time() {
        let (account, own) = clock();
        let before = own.now();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        account.write(Elsewhere { time: began.elapsed(), idle: Duration::ZERO }).unwrap();
        let (now, all) = (own.now(), own.began.elapsed());
        assert!(now >= before && now + Duration::from_millis(20) <= all, "{before:?}, {now:?} of {all:?}");
        let undivided = OwnTime::undivided();
        assert!(undivided.now() <= undivided.began.elapsed());
    }

    #[test]
    fn idle_time_elsewhere_is_not_its_own() {
        let (account, own) = clock();
        let cores = std::thread::available_parallelism().unwrap().get();
        let Some(before) = own.idle(cores) else { return };
        account.write(Elsewhere { time: Duration::ZERO, idle: before }).unwrap();
        assert!(own.idle(cores).unwrap() < before);
        assert_eq!(own.idle(cores + 1), None);
    }
}
