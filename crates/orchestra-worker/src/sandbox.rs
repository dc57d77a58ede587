//! What a process gives up before it touches files that others made: reading and writing elsewhere, the network, other processes. For good,
//! and for all threads that it starts from then on.
//!
//! Two of the kernel's means, for which no privilege is needed: Landlock for files, sockets and signals, seccomp for system calls. It knows
//! no engine: what an engine needs, it says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use orchestra_core::{ErrorClass, SandboxMode};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use crate::load_error::LoadError;
use calls::{
    ALLOWED_TO_CLIENTS, ALLOWED_TO_DECODERS, FORBIDDEN, FORBIDDEN_FCNTLS, FORBIDDEN_REQUESTS, NEWEST,
    REQUESTS_OF_CLIENTS, REQUESTS_OF_WORKERS,
};
use drivers::DriverPlaces;

mod calls;
mod drivers;

/// What every sandbox asks of Landlock: files, TCP, signals and abstract sockets. Linux 6.12 and later have all of it.
const LANDLOCK: ABI = ABI::V6;

/// Where the dynamic linker, the C library and what measures processors read. Nothing in them is a secret of a user.
const SYSTEM: [&str; 22] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/dev/urandom",
    "/dev/random",
];

/// What a process may still do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether there is one, and what happens where the kernel lacks a part of it.
    pub mode: SandboxMode,
    /// Files and folders that it may read and map, besides those of the system. What is not there is left out.
    pub read: Vec<PathBuf>,
    /// Folders that it may write.
    pub write: Vec<PathBuf>,
    /// Whether it drives a GPU. Then it may read what drivers read, write nodes and the cache of the driver, name its
    /// threads, connect to local daemons, and bind a local socket at which nothing is accepted.
    pub gpu: bool,
    /// Whether it may connect to others over the network, if it `decodes`.
    pub network: bool,
    /// Whether it only reads and decodes, with `network` from others: then all system calls are refused but those that this takes, whatever
    /// else is allowed here.
    pub decodes: bool,
    /// Whether this process is still to become another program, which is confined alike. It may start none beside it.
    pub becomes: bool,
}

impl Sandbox {
    /// Confines the calling thread and all that it starts from now on.
    ///
    /// # Errors
    /// `Permanent`: the kernel refuses, or lacks a part and the mode is `Require`.
    pub fn enter(&self) -> Result<(), LoadError> {
        if self.mode == SandboxMode::Off {
            return Ok(());
        }
        let missing = missing();
        if self.mode == SandboxMode::Require && !missing.is_empty() {
            return Err(refused(&format!("the kernel has no {}", missing.join(" and no "))));
        }
        if self.gpu {
            self.keep_temporary_files();
            drivers::keep_threads();
        }
        forbid_privileges().map_err(|e| refused(&e))?;
        self.confine_files().map_err(|e| refused(&e.to_string()))?;
        drop_capabilities().map_err(|e| refused(&e.to_string()))?;
        if has_seccomp() {
            for filter in self.filters(landlock_version()).map_err(|e| refused(&e.to_string()))? {
                seccompiler::apply_filter(&filter).map_err(|e| refused(&e.to_string()))?;
            }
        }
        Ok(())
    }

    /// Names a folder for temporary files that stays open, unless that is so already. Libraries of CUDA make few of them, and fail without.
    fn keep_temporary_files(&self) {
        let real = |path: &PathBuf| path.canonicalize().ok();
        let now = real(&std::env::temp_dir());
        let stays =
            now.is_some_and(|now| self.write.iter().filter_map(real).any(|open| now.starts_with(open)));
        let places = DriverPlaces::of_environment();
        places.make_cache();
        if !stays {
            // SAFETY: a process is confined while it has one thread.
            unsafe { std::env::set_var("TMPDIR", places.temporary_folder()) };
        }
    }

    fn confine_files(&self) -> Result<(), RulesetError> {
        let of_drivers = |paths: Vec<PathBuf>| if self.gpu { paths } else { Vec::new() };
        let read = SYSTEM.map(PathBuf::from).into_iter().chain(self.read.iter().cloned());
        let read = read.chain(of_drivers(drivers::READ.map(PathBuf::from).into()));
        let devices = Path::new(drivers::DEVICES);
        let write = self.write.iter().cloned();
        let write = write.chain(of_drivers(DriverPlaces::of_environment().written(devices)));
        let mut all = AccessFs::from_all(LANDLOCK);
        if self.decodes && has_seccomp() {
            // No decoder opens a file in a way that cuts it. Where that was asked of Landlock, too, it would walk up to the root for each file, and not
            // only to the folder that may be read: 1 % of the time of a run with small pictures.
            all.remove(AccessFs::Truncate);
        }
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .handle_access(if self.network {
                AccessNet::BindTcp.into()
            } else {
                AccessNet::from_all(LANDLOCK)
            })?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(read, AccessFs::from_read(LANDLOCK)))?
            // No socket gets a name there that others could connect to.
            .add_rules(path_beneath_rules(write, all & !AccessFs::MakeSock))?
            .add_rules(path_beneath_rules(
                of_drivers(vec![drivers::THREADS.into()]),
                all & (AccessFs::ReadDir | AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate),
            ))?
            .add_rules(path_beneath_rules(of_drivers(vec![devices.into()]), AccessFs::ReadDir))?
            .add_rules(path_beneath_rules(["/dev/null", "/dev/zero"], AccessFs::from_file(LANDLOCK) & all))?
            .restrict_self()?;
        // `missing` says the same beforehand, and whether that is enough.
        debug_assert!(status.ruleset == RulesetStatus::FullyEnforced || !missing().is_empty());
        Ok(())
    }

    /// The filters beside this version of Landlock, of which the strictest answer counts. Behind the last one a decoder takes no further filter.
    fn filters(&self, landlock: i64) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
        let arch: TargetArch = std::env::consts::ARCH.try_into()?;
        let filter = |rules, errno: i32| -> Result<BpfProgram, seccompiler::BackendError> {
            let deny = SeccompAction::Errno(errno.unsigned_abs());
            SeccompFilter::new(rules, SeccompAction::Allow, deny, arch)?.try_into()
        };
        // Its flags lie in memory, which no filter sees. The C library then takes `clone`.
        let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let calls = if self.decodes {
            let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
            SeccompFilter::new(self.allowed()?, refuse, SeccompAction::Allow, arch)?.try_into()?
        } else {
            filter(self.forbidden(landlock)?, libc::EPERM)?
        };
        Ok(vec![filter(unknown, libc::ENOSYS)?, newest(NEWEST), calls])
    }

    /// Calls that a process may make which decodes: always, or where one of their conditions holds. All others fail with "operation not
    /// permitted".
    fn allowed(&self) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            ALLOWED_TO_DECODERS.iter().map(|call| (*call, Vec::new())).collect();
        let when = |argument, operator, value| {
            SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
        };
        let one_of = |argument, values: &[u64]| {
            values.iter().map(|value| when(argument, SeccompCmpOp::Eq, *value)).collect::<Result<_, _>>()
        };
        // A thread is a clone with this flag; without it, it is a process.
        let thread = libc::CLONE_THREAD as u64;
        rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
        // Threads may be signalled, `abort` does it; and limits be looked at; those of other processes not.
        let own = u64::from(std::process::id());
        rules.insert(libc::SYS_tgkill, one_of(0, &[own])?);
        rules.insert(libc::SYS_prlimit64, one_of(0, &[0, own])?);
        rules.insert(libc::SYS_fcntl, vec![none_of(1, &FORBIDDEN_FCNTLS)?]);
        rules.insert(libc::SYS_prctl, vec![none_of(0, &[PDEATHSIG])?]);
        // To read, and nothing else: none is made, cut or written.
        let to_write = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
        let to_read = |flags| when(flags, SeccompCmpOp::MaskedEq(to_write), libc::O_RDONLY as u64);
        rules.insert(libc::SYS_openat, vec![to_read(2)?]);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, vec![to_read(1)?]);
        if self.network {
            rules.extend(ALLOWED_TO_CLIENTS.iter().map(|call| (*call, Vec::new())));
            // Of IP alone: daemons of this machine listen at local sockets.
            rules.insert(libc::SYS_socket, one_of(0, &[libc::AF_INET, libc::AF_INET6].map(|f| f as u64))?);
            rules.insert(libc::SYS_ioctl, one_of(1, &REQUESTS_OF_CLIENTS)?);
            // A runtime of tasks wakes itself through a pair. An end of one for datagrams could send to any local socket.
            let stream = when(1, SeccompCmpOp::MaskedEq(0xf), libc::SOCK_STREAM as u64)?;
            rules.insert(libc::SYS_socketpair, vec![stream]);
        }
        Ok(rules)
    }

    /// Calls of a process that runs the code of others, which may need any other: they fail with "operation not permitted", always, or where one of
    /// their conditions holds.
    fn forbidden(&self, landlock: i64) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
        if self.becomes {
            rules.remove(&libc::SYS_execve);
        }
        if landlock < CUTS_NO_FILES {
            rules.insert(libc::SYS_truncate, Vec::new());
        }
        let when = |argument, operator, value| {
            SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
        };
        // A thread is a clone with this flag; without it, it is a process.
        let no_thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64);
        rules.insert(libc::SYS_clone, vec![when(0, no_thread, 0)?]);
        // Threads may be signalled, `abort` does it; those of other processes not.
        let own = u64::from(std::process::id());
        rules.insert(libc::SYS_tgkill, vec![when(0, SeccompCmpOp::Ne, own)?]);
        // Limits of this process, by its number or by 0, are its own.
        rules.insert(libc::SYS_prlimit64, vec![none_of(0, &[0, own])?]);
        let one_of = |argument, values: &[u64]| {
            values.iter().map(|value| when(argument, SeccompCmpOp::Eq, *value)).collect::<Result<_, _>>()
        };
        rules.insert(libc::SYS_fcntl, one_of(1, &FORBIDDEN_FCNTLS)?);
        rules.insert(libc::SYS_prctl, one_of(0, &[PDEATHSIG])?);
        let requests = match self.gpu {
            true => one_of(1, &FORBIDDEN_REQUESTS)?,
            false => vec![none_of(1, &REQUESTS_OF_WORKERS)?],
        };
        rules.insert(libc::SYS_ioctl, requests);
        if self.gpu {
            rules.insert(libc::SYS_socket, vec![when(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?]);
            // Its driver listens at a socket without a file. No connection gets through: `accept` is refused.
            for call in [libc::SYS_bind, libc::SYS_listen] {
                rules.remove(&call);
            }
        } else {
            rules.extend([libc::SYS_socket, libc::SYS_connect].map(|call| (call, Vec::new())));
        }
        Ok(rules)
    }
}

/// The first version of Landlock that keeps a process from cutting a file by its name. Linux 6.2 has it.
const CUTS_NO_FILES: i64 = 3;

/// The signal that a process gets when the run ends, which a process could take back.
const PDEATHSIG: u64 = libc::PR_SET_PDEATHSIG as u64;

/// A rule for an argument that is none of these.
fn none_of(argument: u8, values: &[u64]) -> Result<SeccompRule, seccompiler::BackendError> {
    let not =
        |value: &u64| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *value);
    SeccompRule::new(values.iter().map(not).collect::<Result<_, _>>()?)
}

/// Says "no such call" to every number above `newest`, as a kernel does that has none. `SeccompFilter` compares calls for equality alone.
fn newest(newest: i64) -> BpfProgram {
    let step = |code, jt, k| sock_filter { code: code as u16, jt, jf: 0, k };
    // The number of the call is the first word of what a filter sees.
    vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, newest as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
    ]
}

/// The parts of a sandbox that this kernel lacks, in words that end "the kernel has no ..".
pub fn missing() -> Vec<String> {
    let landlock = match landlock_version() {
        0 => Some("Landlock: files and sockets stay open to loaders and workers".to_owned()),
        version @ 1..6 => Some(format!("Landlock of version 6 but {version}: see docs/security.md")),
        _ => None,
    };
    let seccomp = (!has_seccomp()).then(|| "seccomp: loaders and workers may start processes".to_owned());
    landlock.into_iter().chain(seccomp).collect()
}

/// The version of Landlock that the kernel speaks; 0: none, or switched off.
fn landlock_version() -> i64 {
    const VERSION: libc::c_long = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call only answers; it takes no attributes.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    version.max(0)
}

fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call only looks at the action.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

/// No program that this process may start can give it more than it has; without that the kernel takes no filter.
fn forbid_privileges() -> Result<(), String> {
    // SAFETY: it changes a flag of the calling thread.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// Of what root may do, a process keeps reading files of other users. With more, the kernel asks neither Landlock nor the owner before it
/// shows the environment of another process.
fn drop_capabilities() -> rustix::io::Result<()> {
    let kept = rustix::thread::capabilities(None)?.permitted & CapabilitySet::DAC_READ_SEARCH;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

fn refused(why: &str) -> LoadError {
    LoadError {
        class: ErrorClass::Permanent,
        error: format!(
            "it cannot be confined: {why}; `orchestra doctor` says what this machine offers, and `sandbox = \"off\"` does \
             without (see docs/security.md)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use orchestra_testkit::skip::skip;

    use std::ffi::CString;
    use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    /// What a confined thread can do.
    fn can(network: bool) -> Vec<&'static str> {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = server.local_addr().expect("it is bound");
        let work = move || {
            // A process with the network is a loader of objects: it reads and decodes them.
            let sandbox = Sandbox { read: vec!["/".into()], network, decodes: network, ..Sandbox::default() };
            sandbox.enter().unwrap_or_else(|e| panic!("{}", e.error));
            let does = [
                ("connect", TcpStream::connect(address).is_ok()),
                ("look up", ("localhost", 1).to_socket_addrs().is_ok()),
                ("make a pair", UnixStream::pair().is_ok()),
                ("listen", TcpListener::bind("127.0.0.1:0").is_ok()),
                // Outside of a sandbox there is none there.
                ("reach a local socket", refused_otherwise(UnixStream::connect("/nowhere/socket"))),
                ("start a program", refused_otherwise(Command::new("/nowhere/program").spawn())),
            ];
            does.into_iter().filter(|(_, does)| *does).map(|(what, _)| what).collect()
        };
        // It confines the thread, and this process has others.
        std::thread::spawn(work).join().expect("it does not panic")
    }

    fn refused_otherwise<T>(result: std::io::Result<T>) -> bool {
        result.err().is_none_or(|error| error.kind() != std::io::ErrorKind::PermissionDenied)
    }

    #[test]
    fn a_worker_of_a_gpu_writes_shared_memory_and_neither_other_devices_nor_temporary_files_of_others() {
        if landlock_version() == 0 {
            return skip("no Landlock", "run it under a kernel that has it");
        }
        let work = || {
            let sandbox = Sandbox { gpu: true, ..Sandbox::default() };
            // Files alone: the rest of `enter` changes the environment, and this process has other threads.
            sandbox.confine_files().unwrap_or_else(|e| panic!("{e}"));
            let name = format!("orchestra-test-{}", std::process::id());
            let can_make = |folder: &str| {
                let file = Path::new(folder).join(&name);
                std::fs::write(&file, "x").and_then(|()| std::fs::remove_file(file)).is_ok()
            };
            let can_write = |node: &str| std::fs::File::options().write(true).open(node).is_ok();
            assert!(can_write("/dev/null") && can_make("/dev/shm") && std::fs::read_dir("/dev").is_ok());
            assert!(!can_make("/dev") && !can_make("/tmp") && !can_make("/var/tmp"));
            // Of a device that is no GPU's, which any user may write to and read.
            assert!(!can_write("/dev/full") && std::fs::File::open("/dev/full").is_err());
        };
        assert!(std::fs::File::options().write(true).open("/dev/full").is_ok(), "it is there");
        std::thread::spawn(work).join().expect("it does not panic");
    }

    #[test]
    fn the_driver_of_a_gpu_names_its_threads_and_listens_where_nobody_gets_through() {
        if landlock_version() == 0 || !has_seccomp() {
            return skip("no Landlock or no seccomp", "run it under a kernel that has both");
        }
        let mut other = Command::new("sleep").arg("1000").spawn().expect("it is there");
        let of_another = format!("/proc/{0}/task/{0}/comm", other.id());
        let work = move || {
            let sandbox = Sandbox { gpu: true, ..Sandbox::default() };
            forbid_privileges().unwrap();
            sandbox.confine_files().unwrap_or_else(|e| panic!("{e}"));
            for filter in sandbox.filters(1).unwrap() {
                seccompiler::apply_filter(&filter).unwrap();
            }
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).expect("it is waited for");
                ended.recv().unwrap_or_default();
            });
            let other_id = told.recv().expect("it says its number").as_raw_pid();
            let renamed = std::fs::write(format!("/proc/self/task/{other_id}/comm"), "cuda-EvtHandlr");
            drop(end);
            other.join().expect("it does not panic");
            renamed.expect("the driver does not start where it may not");
            assert!(std::fs::write(of_another, "x").is_err(), "that is no thread of its own");

            let name = format!("orchestra-test-{}", std::process::id());
            let abstract_name = SocketAddr::from_abstract_name(&name).expect("it is short");
            let listener = UnixListener::bind_addr(&abstract_name).expect("nor where it may not listen");
            listener.set_nonblocking(true).unwrap();
            let accepted = listener.accept().map(drop).unwrap_err();
            assert_eq!(accepted.kind(), std::io::ErrorKind::PermissionDenied);
            let in_a_file = UnixListener::bind(Path::new("/dev/shm").join(&name)).map(drop).unwrap_err();
            assert_eq!(in_a_file.kind(), std::io::ErrorKind::PermissionDenied);
        };
        let ended = std::thread::spawn(work).join();
        other.kill().and_then(|()| other.wait()).expect("it sleeps");
        ended.expect("it does not panic");

        let without = || {
            Sandbox { read: vec!["/".into()], ..Sandbox::default() }
                .enter()
                .unwrap_or_else(|e| panic!("{}", e.error));
            let own = format!("/proc/self/task/{}/comm", rustix::thread::gettid().as_raw_pid());
            assert!(std::fs::write(own, "x").is_err(), "only drivers write names");
        };
        std::thread::spawn(without).join().expect("it does not panic");
    }

    #[test]
    fn a_decoder_reads_takes_memory_and_starts_threads_and_makes_no_call_that_it_does_not_need() {
        if !has_seccomp() {
            return skip("no seccomp", "run it under a kernel that has it");
        }
        let work = |network| {
            let sandbox = Sandbox { read: vec!["/".into()], network, decodes: true, ..Sandbox::default() };
            sandbox.enter().unwrap_or_else(|e| panic!("{}", e.error));
            let file = std::fs::read("/proc/self/maps").is_ok();
            let memory = vec![1_u8; 64 << 20].iter().all(|byte| *byte == 1);
            let thread = std::thread::Builder::new().spawn(|| 7).is_ok_and(|t| t.join().is_ok());
            assert!(file && memory && thread, "{file} {memory} {thread}");
            for (call, first, second) in [
                (libc::SYS_inotify_init1, 0, 0),
                (libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0),
                (libc::SYS_getpriority, 0, 0),
                (libc::SYS_ioctl, 0, 0x5412), // It types for the user of a terminal: TIOCSTI.
                (libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW),
            ] {
                // SAFETY: none of the calls touches memory, whether it is made or refused.
                let result = unsafe { libc::syscall(call, first, second, 0) };
                let why = std::io::Error::last_os_error().raw_os_error();
                assert!(result < 0 && why == Some(libc::EPERM), "network: {network}: call {call}: {why:?}");
            }
        };
        for network in [false, true] {
            std::thread::spawn(move || work(network)).join().expect("it does not panic");
        }
    }

    #[test]
    fn a_decoder_opens_no_file_to_write_to_make_or_to_cut_it() {
        if landlock_version() == 0 || !has_seccomp() {
            return skip("no Landlock or no seccomp", "run it under a kernel that has both");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("item");
        std::fs::write(&file, "all of it").unwrap();
        let (folder, path) = (dir.path().to_owned(), file.clone());
        let work = move || {
            let sandbox = Sandbox { read: vec![folder.clone()], decodes: true, ..Sandbox::default() };
            sandbox.enter().unwrap_or_else(|e| panic!("{}", e.error));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "all of it");
            let [there, new] =
                [path.clone(), folder.join("new")].map(|p| CString::new(p.as_os_str().as_bytes()).unwrap());
            for (file, flags) in [
                (&there, libc::O_WRONLY),
                (&there, libc::O_RDWR),
                (&there, libc::O_RDONLY | libc::O_TRUNC),
                (&new, libc::O_RDONLY | libc::O_CREAT),
            ] {
                // SAFETY: the path ends with a zero.
                let opened = unsafe { libc::open(file.as_ptr(), flags, 0o600) };
                let why = std::io::Error::last_os_error().raw_os_error();
                assert!(opened < 0 && why == Some(libc::EPERM), "{file:?} {flags:#o}: {opened} {why:?}");
            }
            let flags: [u64; 3] = [(libc::O_RDONLY | libc::O_TRUNC) as u64, 0, 0];
            // SAFETY: the path ends with a zero, and the structure has its size.
            let opened = unsafe {
                libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, there.as_ptr(), &raw const flags, 24)
            };
            // SAFETY: the path ends with a zero.
            let cut = unsafe { libc::truncate(there.as_ptr(), 0) };
            assert!(opened < 0 && cut < 0 && std::fs::remove_file(&path).is_err());
        };
        std::thread::spawn(work).join().expect("it does not panic");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "all of it");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// What a call with these arguments ends with.
    fn call(number: i64, arguments: [u64; 3]) -> Result<i64, i32> {
        let [first, second, third] = arguments;
        // SAFETY: the tests make calls that touch no memory where they are refused, and none but their own where they are not.
        let result = unsafe { libc::syscall(number, first, second, third, 0, 0, 0) };
        if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
    }

    #[test]
    fn no_process_cuts_files_or_changes_their_attributes_sends_signals_for_descriptors_or_outlives_its_run() {
        if !has_seccomp() {
            return skip("no seccomp", "run it under a kernel that has it");
        }
        let file = tempfile::tempfile().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
        let parent = u64::from(std::os::unix::process::parent_id());
        let work = move |sandbox: Sandbox| {
            forbid_privileges().unwrap();
            for filter in sandbox.filters(1).unwrap() {
                seccompiler::apply_filter(&filter).unwrap();
            }
            let refused = [
                (463, [0, 0, 0]),                        // setxattrat
                (466, [0, 0, 0]),                        // removexattrat
                (467, [0, 0, 0]),                        // open_tree_attr
                (469, [0, 0, 0]),                        // file_setattr
                (libc::SYS_ioctl, [fd, 0x4008_6602, 0]), // FS_IOC_SETFLAGS
                (libc::SYS_ioctl, [fd, 0x401c_5820, 0]), // FS_IOC_FSSETXATTR
                (libc::SYS_ioctl, [fd, 0x5412, 0]),      // TIOCSTI
                (libc::SYS_fcntl, [fd, libc::F_SETOWN as u64, parent]),
                (libc::SYS_fcntl, [fd, 15, 0]), // F_SETOWN_EX
                (libc::SYS_fcntl, [fd, 10, libc::SIGKILL as u64]),
                (libc::SYS_fcntl, [fd, libc::F_SETLEASE as u64, libc::F_RDLCK as u64]),
                (libc::SYS_fcntl, [fd, libc::F_NOTIFY as u64, 1]),
                (libc::SYS_prctl, [PDEATHSIG, 0, 0]),
                (libc::SYS_truncate, [0, 0, 0]),
            ];
            for (number, arguments) in refused {
                assert_eq!(call(number, arguments), Err(libc::EPERM), "{sandbox:?} {number} {arguments:x?}");
            }
            assert!(call(libc::SYS_fcntl, [fd, libc::F_GETFD as u64, 0]).is_ok());
        };
        let decoder = Sandbox { decodes: true, ..Sandbox::default() };
        let gpu = Sandbox { gpu: true, ..Sandbox::default() };
        for sandbox in [Sandbox::default(), gpu, decoder] {
            std::thread::spawn(move || work(sandbox)).join().expect("it does not panic");
        }
        // What Python and its libraries ask a descriptor.
        let asked = move || {
            forbid_privileges().unwrap();
            for filter in Sandbox::default().filters(1).unwrap() {
                seccompiler::apply_filter(&filter).unwrap();
            }
            assert_eq!(call(libc::SYS_ioctl, [fd, libc::TCGETS, 0]), Err(libc::ENOTTY));
            assert!(call(libc::SYS_ioctl, [fd, libc::FIOCLEX, 0]).is_ok());
        };
        std::thread::spawn(asked).join().expect("it does not panic");
    }

    #[test]
    fn a_call_that_is_newer_than_the_lists_is_refused_as_unknown() {
        if !has_seccomp() {
            return skip("no seccomp", "run it under a kernel that has it");
        }
        let work = || {
            forbid_privileges().unwrap();
            assert_ne!(call(libc::SYS_faccessat2, [0, 0, 0]), Err(libc::ENOSYS), "this kernel has it");
            seccompiler::apply_filter(&newest(libc::SYS_faccessat2 - 1)).unwrap();
            assert_eq!(call(libc::SYS_faccessat2, [0, 0, 0]), Err(libc::ENOSYS));
            assert!(call(libc::SYS_getpid, [0, 0, 0]).is_ok());
        };
        std::thread::spawn(work).join().expect("it does not panic");
    }

    #[test]
    fn with_the_network_a_process_connects_and_still_reaches_nothing_else_of_the_machine() {
        if !has_seccomp() {
            return skip("no seccomp", "run it under a kernel that has it");
        }
        assert_eq!(can(true), ["connect", "look up", "make a pair"]);
        let without = can(false);
        assert!(without.is_empty() || without == ["look up"], "a file may know the name: {without:?}");
    }
}
