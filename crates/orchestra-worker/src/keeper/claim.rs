//! The lock that holds the next start off a command for as long as anything of it lives.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use orchestra_machine::processes::process;
use rustix::process::Pid;

use crate::keeper::messages::{CommandOrder, KEEPER};

/// Takes the lock of an order, until what is returned is dropped. The next start waits for it, so no command runs twice at once.
pub(crate) fn claim(order: &CommandOrder) -> io::Result<File> {
    let lock = OpenOptions::new().create(true).append(true).open(&order.lock)?;
    lock.lock_shared()?;
    Ok(lock)
}

/// The keepers that hold a lock, as far as they can be seen.
pub fn holders(lock: &File) -> Vec<Pid> {
    let Ok(inode) = lock.metadata().map(|meta| meta.ino()) else { return Vec::new() };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // `1: FLOCK  ADVISORY  READ 4711 08:01:1234567 0 EOF`; devices may be called otherwise than by `stat`.
    let holder = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1).filter(|field| *field != "->");
        let (kind, pid) = (fields.next()?, fields.nth(2)?.parse().ok()?);
        let of_file = fields.next()?.rsplit(':').next()?.parse() == Ok(inode);
        Pid::from_raw(pid).filter(|_| kind == "FLOCK" && of_file)
    };
    let is_keeper = |pid: &Pid| {
        let process = process(pid.as_raw_nonzero().get().cast_unsigned());
        process.is_some_and(|process| process.arguments().last().is_some_and(|last| last == KEEPER))
    };
    locks.lines().filter_map(holder).filter(is_keeper).collect()
}
