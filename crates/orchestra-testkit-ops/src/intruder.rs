//! What a hostile operator tries. Each attempt tells whether it got through; none of them does harm where it does.

use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr;

/// A folder that the sandbox does not allow, with a file [`SECRET`] in it, named by this variable.
pub const INTRUDE: &str = "ORCHESTRA_TEST_INTRUDE";
/// The folder of the model, named by this variable.
pub const MODEL_FOLDER: &str = "ORCHESTRA_TEST_MODEL_FOLDER";
/// The file of the folder [`INTRUDE`].
pub const SECRET: &str = "secret.txt";
/// A descriptor that the parent's own parent left open in it.
pub const INHERITED_FD: i32 = 77;
/// How the operator begins its report; the names of what got through follow.
pub const GOT_THROUGH: &str = "the intruder got through with:";

/// The names of the attempts that got through.
#[must_use]
pub fn attempts() -> Vec<&'static str> {
    let folder = std::env::var_os(INTRUDE).unwrap_or_default();
    let folder = Path::new(&folder);
    let attempts: [(&str, Option<()>); 29] = [
        ("reading /etc/passwd", fs::read("/etc/passwd").ok().map(drop)),
        ("reading a secret", fs::read(folder.join(SECRET)).ok().map(drop)),
        ("listing a folder", fs::read_dir(folder).ok().map(drop)),
        ("listing /", fs::read_dir("/").ok().map(drop)),
        ("writing a file", File::create(folder.join("written")).ok().map(drop)),
        ("overwriting a secret", File::options().append(true).open(folder.join(SECRET)).ok().map(drop)),
        ("opening a secret to all", done(chmod(&folder.join(SECRET)))),
        ("the parent's priority", done(lower_parent())),
        ("messages of other programs", message_queue()),
        ("removing a file", fs::remove_file(folder.join("removable")).ok()),
        ("writing for all", write_and_remove(Path::new("/tmp")).ok()),
        ("writing beside its library", own_folder().and_then(|folder| write_and_remove(&folder).ok())),
        ("writing beside its model", model_folder().and_then(|folder| write_and_remove(&folder).ok())),
        ("the parent's environment", fs::read(format!("/proc/{}/environ", parent())).ok().map(drop)),
        ("the parent's memory", File::open(format!("/proc/{}/mem", parent())).ok().map(drop)),
        ("an address of TCP", passed_the_sandbox(TcpStream::connect("127.0.0.1:1").map(drop))),
        ("an address of UDP", UdpSocket::bind("127.0.0.1:0").ok().map(drop)),
        ("a local socket", passed_the_sandbox(UnixStream::connect("/nowhere/socket").map(drop))),
        ("a datagram", UnixDatagram::unbound().ok().map(drop)),
        ("a secret variable", std::env::var("AWS_SECRET_ACCESS_KEY").ok().map(drop)),
        // SAFETY: the call only looks at the number.
        ("an inherited descriptor", done(unsafe { libc::fcntl(INHERITED_FD, libc::F_GETFD) })),
        ("another process", done(fork())),
        ("a signal to the parent", done(signal_parent())),
        ("another program", run_a_program()),
        ("listing the home folder", list_home()),
        ("tracing a sibling", trace_a_sibling()),
        ("memory of another process", read_memory_of_parent()),
        ("changing the mapping of inputs", make_inputs_writable()),
        ("another mapping of inputs", map_inputs_again()),
    ];
    attempts.into_iter().filter_map(|(name, through)| through.map(|()| name)).collect()
}

/// Writes over all memory that this process shares with its parent and may write to, again and again.
pub(crate) fn scribble() -> ! {
    let pieces = shared_memory("rw-s");
    loop {
        for byte in 1..=u8::MAX {
            for at in pieces.iter().cloned().flatten() {
                // SAFETY: there is none but that the memory is mapped; the damage is the purpose.
                unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(byte) };
            }
        }
    }
}

/// The memory that this process shares with its parent, as far as it is mapped with these permissions.
fn shared_memory(permissions: &str) -> Vec<Range<usize>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let piece = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, mapped_as) = (words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let is_meant = mapped_as == permissions && line.contains("/memfd:");
        let address = |text| usize::from_str_radix(text, 16).ok();
        is_meant.then_some(address(start)?..address(end)?)
    };
    maps.lines().filter_map(piece).collect()
}

fn make_inputs_writable() -> Option<()> {
    let changed = |piece: &Range<usize>| {
        let start = ptr::with_exposed_provenance_mut::<c_void>(piece.start);
        // SAFETY: where it works, nothing is written.
        unsafe { libc::mprotect(start, piece.len(), libc::PROT_READ | libc::PROT_WRITE) == 0 }
    };
    shared_memory("r--s").iter().any(changed).then_some(())
}

/// By the mapping that there is, or by a descriptor that was left open.
fn map_inputs_again() -> Option<()> {
    let mapped = shared_memory("r--s");
    let by_mapping =
        mapped.iter().map(|piece| format!("/proc/self/map_files/{:x}-{:x}", piece.start, piece.end).into());
    let descriptors = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().map(|entry| entry.path());
    let left_open = descriptors
        .filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")));
    let can_be_mapped = |path: PathBuf| {
        let Ok(file) = File::options().read(true).write(true).open(path) else { return false };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, to which nothing is written.
        let start = unsafe { libc::mmap(ptr::null_mut(), 1, both, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        start != libc::MAP_FAILED
    };
    by_mapping.chain(left_open).any(can_be_mapped).then_some(())
}

fn write_and_remove(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!("orchestra-intruder-{}", std::process::id()));
    File::create(&file)?;
    fs::remove_file(file)
}

/// Where this library lies, as the kernel says.
fn own_folder() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.contains("orchestra_testkit_ops"))?;
    Path::new(&line[line.find('/')?..]).parent().map(Path::to_owned)
}

fn model_folder() -> Option<PathBuf> {
    std::env::var_os(MODEL_FOLDER).map(PathBuf::from)
}

fn chmod(file: &Path) -> i32 {
    let Ok(name) = CString::new(file.as_os_str().as_encoded_bytes()) else { return -1 };
    // SAFETY: the text lives until the call returns.
    unsafe { libc::chmod(name.as_ptr(), 0o666) }
}

fn lower_parent() -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, parent(), 1) }
}

/// Asks for a message of a queue that is not there. Outside of a sandbox the error is that there is none.
fn message_queue() -> Option<()> {
    let mut message = [0_u8; 64];
    // SAFETY: the memory lives until the call returns, and is larger than what is asked for.
    unsafe { libc::msgrcv(i32::MAX, message.as_mut_ptr().cast(), 8, 0, libc::IPC_NOWAIT) };
    passed_the_sandbox(Err(io::Error::last_os_error()))
}

fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

/// What is refused for another reason than the sandbox has got past it.
fn passed_the_sandbox(result: io::Result<()>) -> Option<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        _ => Some(()),
    }
}

fn done(result: i32) -> Option<()> {
    (result >= 0).then_some(())
}

fn fork() -> i32 {
    // SAFETY: the child makes one call, which is allowed after a fork of a process with threads.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            pid => pid,
        }
    }
}

/// Signal 0 is not delivered: the call only checks the permission.
fn signal_parent() -> i32 {
    // SAFETY: no process is touched.
    unsafe { libc::kill(parent().cast_signed(), 0) }
}

/// As a program does that looks for keys.
fn list_home() -> Option<()> {
    fs::read_dir(std::env::var_os("HOME")?).ok().map(drop)
}

/// Siblings were started shortly before and after this process.
fn trace_a_sibling() -> Option<()> {
    let own = std::process::id().cast_signed();
    (own - 8..own + 8).filter(|pid| *pid != own).find_map(trace)
}

/// Attaches to a process, and leaves it again.
fn trace(pid: i32) -> Option<()> {
    let nothing = ptr::null_mut::<c_void>();
    // SAFETY: none of the requests touches memory of this process; the traced one goes on as it was.
    unsafe {
        if libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) < 0 {
            return None;
        }
        libc::ptrace(libc::PTRACE_INTERRUPT, pid, nothing, nothing);
        libc::waitpid(pid, ptr::null_mut(), libc::__WALL);
        libc::ptrace(libc::PTRACE_DETACH, pid, nothing, nothing);
    }
    Some(())
}

/// Asks for a byte where there is none.
fn read_memory_of_parent() -> Option<()> {
    let mut byte = 0_u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: ptr::without_provenance_mut(1), iov_len: 1 };
    // SAFETY: the byte is written to at most.
    unsafe { libc::process_vm_readv(parent().cast_signed(), &raw const to, 1, &raw const from, 1, 0) };
    passed_the_sandbox(Err(io::Error::last_os_error()))
}

/// Asks for a program that is not there. Outside of a sandbox the error is that there is none.
fn run_a_program() -> Option<()> {
    let program = CString::new("/nowhere/program").ok()?;
    let none: *const libc::c_char = std::ptr::null();
    let arguments = [program.as_ptr(), none];
    // SAFETY: the texts and the lists live until the call returns.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), [none].as_ptr()) };
    passed_the_sandbox(Err(io::Error::last_os_error()))
}
