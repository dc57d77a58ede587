//! CPU time that threads and processes used, as the kernel counts it. It knows nothing of what they did.

use std::time::Duration;

/// Whose time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The calling thread.
    Thread,
    /// All threads of this process, those that ended included.
    Process,
    /// Child processes that ended and were waited for, with theirs.
    Children,
}

/// User and system time up to now.
pub fn used(whose: Whose) -> Duration {
    let who = match whose {
        Whose::Thread => libc::RUSAGE_THREAD,
        Whose::Process => libc::RUSAGE_SELF,
        Whose::Children => libc::RUSAGE_CHILDREN,
    };
    // SAFETY: all zeros are a valid `rusage`, and the call writes nothing but it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        // It fails only for a bad pointer or an unknown `who`.
        libc::getrusage(who, &raw mut usage);
        usage
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// User and system time of a process that lives, in steps of the kernel's tick (usually 10 ms); `None` if it is gone.
pub fn of_process(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // SAFETY: a plain call without memory.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks = ticks_in(&stat)?;
    (ticks_per_second > 0).then(|| Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// Time that all cores together had nothing to do since the machine was started. `None` where the kernel does not say, or where this
/// process may not use all cores of the machine.
pub fn idle(cores: usize) -> Option<Duration> {
    let ticks = idle_ticks_in(&std::fs::read_to_string("/proc/stat").ok()?, cores)?;
    // SAFETY: a plain call without memory.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (ticks_per_second > 0).then(|| Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// Fields 4 and 5 of the line of all cores: idle, and idle while a disk worked.
fn idle_ticks_in(stat: &str, cores: usize) -> Option<u64> {
    let n_cores = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count();
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let (idle, waiting): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (n_cores == cores).then_some(idle.checked_add(waiting)?)
}

/// Fields 14 and 15. The name in field 2 may hold anything, spaces and brackets included, so counting starts behind it.
fn ticks_in(stat: &str) -> Option<u64> {
    let behind_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    user.checked_add(system)
}

fn of(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read_right() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 31 11 5 6 20 0 1 0 9 1 1";
        assert_eq!(ticks_in(stat), Some(42));
        assert_eq!(ticks_in("7 (x) S 1"), None);
        assert_eq!(ticks_in(""), None);
    }

    #[test]
    fn idle_time_is_that_of_all_cores_or_unknown() {
        let stat = "cpu  10 20 30 400 5 0 0 7 0 0\ncpu0 5 10 15 200 2 0 0 0 0 0\ncpu1 5 10 15 200 3 0 0 0 0 0\nintr 1\n";
        assert_eq!(idle_ticks_in(stat, 2), Some(405));
        assert_eq!(idle_ticks_in(stat, 1), None, "we may use one of two");
        assert_eq!(idle_ticks_in("", 1), None);
    }

    #[test]
    fn time_is_counted_for_those_who_live_and_never_runs_backwards() {
        let before = (used(Whose::Thread), used(Whose::Process));
        let mut x = 1u64;
        // Both move on, each when the kernel has counted.
        while used(Whose::Thread) <= before.0 || used(Whose::Process) <= before.1 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX), None);
        let _ = used(Whose::Children);
    }
}
