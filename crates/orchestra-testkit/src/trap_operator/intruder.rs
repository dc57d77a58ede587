//! What hostile code tries, in a worker or a loader. Each attempt tells whether it got through: what it was after, it had. None of them does harm
//! where it does, and all get through again when they are made again.

use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

/// What the attempts are after is told by this variable: [`Bait::to_text`].
pub const INTRUDE: &str = "ORCHESTRA_TEST_INTRUDE";
/// The file of the bait's folder that holds a secret.
pub const SECRET: &str = "secret.txt";
/// The file of the bait's folder that is removed and put back.
pub const REMOVABLE: &str = "removable";
/// The file of the bait's folder that is made.
pub const WRITTEN: &str = "written";
/// The socket of the bait's folder at which the test listens.
pub const SOCKET: &str = "socket";
/// The one for datagrams.
pub const DATAGRAMS: &str = "datagrams";
/// A descriptor that the parent's own parent left open in it.
pub const INHERITED_FD: i32 = 77;
/// A variable of the parent that only the loaders of a store may see.
pub const SECRET_VARIABLE: &str = "AWS_SECRET_ACCESS_KEY";
/// How the operator begins its report; the names of what got through follow, with commas between them and a full stop behind.
pub const GOT_THROUGH: &str = "the intruder got through with:";
/// What it says on standard error before it writes over memory.
pub const SCRIBBLES: &str = "the test operator writes over all shared memory that it may write to";

/// What a test lays out for the attempts. All of it is there, and its user may do with it as it likes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bait {
    /// A folder that no sandbox allows, with [`SECRET`], [`REMOVABLE`], [`SOCKET`] and [`DATAGRAMS`] in it.
    pub folder: PathBuf,
    /// A folder that the process reads: of its model, or of its items.
    pub read: PathBuf,
    /// A port of TCP at which the test listens.
    pub port: u16,
    /// A process of the same user, which waits, and allows any other to trace it where the kernel asks for that.
    pub victim: i32,
    /// An address of the victim that it does not use itself, of a byte that it may read and write.
    pub address: usize,
    /// A queue of messages with one in it.
    pub queue: i32,
}

impl Bait {
    /// For [`INTRUDE`].
    pub fn to_text(&self) -> String {
        let Self { folder, read, port, victim, address, queue } = self;
        format!("{port} {victim} {address} {queue}|{}|{}", folder.display(), read.display())
    }

    fn of_environment() -> Self {
        Self::parse(&std::env::var(INTRUDE).unwrap_or_default()).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let mut numbers = parts.next()?.split(' ');
        Some(Self {
            port: numbers.next()?.parse().ok()?,
            victim: numbers.next()?.parse().ok()?,
            address: numbers.next()?.parse().ok()?,
            queue: numbers.next()?.parse().ok()?,
            folder: parts.next()?.into(),
            read: parts.next()?.into(),
        })
    }
}

/// Gives something where it got through.
type Attempt = fn(&Bait) -> Option<()>;

/// All attempts but those of [`attempts_on_inputs`], by name.
pub const ATTEMPTS: [(&str, Attempt); 34] = [
    ("reading /etc/passwd", |_| fs::read("/etc/passwd").ok().map(drop)),
    ("reading a secret", |bait| fs::read(bait.folder.join(SECRET)).ok().map(drop)),
    ("listing a folder", |bait| fs::read_dir(&bait.folder).ok().map(drop)),
    ("listing /", |_| fs::read_dir("/").ok().map(drop)),
    ("listing the home folder", |_| fs::read_dir(std::env::var_os("HOME")?).ok().map(drop)),
    ("writing a file", |bait| File::create(bait.folder.join(WRITTEN)).ok().map(drop)),
    ("overwriting a secret", |bait| {
        File::options().append(true).open(bait.folder.join(SECRET)).ok().map(drop)
    }),
    ("cutting a secret", |bait| cut_to_its_length(&bait.folder.join(SECRET))),
    ("opening a secret to all", |bait| chmod(&bait.folder.join(SECRET))),
    ("removing a file", |bait| remove_and_put_back(&bait.folder.join(REMOVABLE)).ok()),
    ("writing for all", |_| write_and_remove(Path::new("/tmp")).ok()),
    ("writing beside its own code", |_| write_and_remove(&own_folder()?).ok()),
    ("writing where it reads", |bait| write_and_remove(&bait.read).ok()),
    ("the parent's environment", |_| fs::read(format!("/proc/{}/environ", parent())).ok().map(drop)),
    ("the parent's memory", |_| read_memory_of_parent()),
    ("the parent's priority", |_| keep_priority_of_parent()),
    ("a signal to the parent", |_| signal_parent()),
    ("shared memory of the parent", |_| map_memory_of_parent()),
    ("a descriptor of another process", |bait| take_descriptor(bait.victim)),
    ("memory of another process", |bait| read_memory(bait).map(drop)),
    ("writing to another process", write_memory),
    ("tracing another process", |bait| trace(bait.victim)),
    ("messages of other programs", |bait| take_message_and_put_it_back(bait.queue)),
    ("an address of TCP", |bait| TcpStream::connect(("127.0.0.1", bait.port)).ok().map(drop)),
    ("an address of UDP", |_| UdpSocket::bind("127.0.0.1:0").ok().map(drop)),
    ("listening", |_| TcpListener::bind("127.0.0.1:0").ok().map(drop)),
    ("a local socket", |bait| UnixStream::connect(bait.folder.join(SOCKET)).ok().map(drop)),
    ("a datagram", |_| UnixDatagram::unbound().ok().map(drop)),
    ("a datagram to a local socket", |bait| direct_datagrams_to(&bait.folder.join(DATAGRAMS)).ok()),
    ("a secret variable", |_| std::env::var(SECRET_VARIABLE).ok().map(drop)),
    // SAFETY: the call only looks at the number.
    ("an inherited descriptor", |_| done(unsafe { libc::fcntl(INHERITED_FD, libc::F_GETFD) })),
    ("another process", |_| fork()),
    ("another program", |_| Command::new("true").status().ok()?.success().then_some(())),
    ("becoming another program", |_| become_a_program()),
];

/// The names of the attempts that got through.
pub fn attempts() -> Vec<&'static str> {
    let bait = Bait::of_environment();
    ATTEMPTS.iter().filter_map(|(name, attempt)| attempt(&bait).map(|()| *name)).collect()
}

/// Likewise of what a worker tries with the inputs of its stage, which it has mapped and may only read.
pub fn attempts_on_inputs() -> Vec<&'static str> {
    let attempts = [
        ("changing the mapping of inputs", make_inputs_writable()),
        ("another mapping of inputs", map_inputs_again()),
    ];
    attempts.into_iter().filter_map(|(name, through)| through.map(|()| name)).collect()
}

/// Writes over all memory that this process shares with others, so many times: what it may write to, what it can make so, and what its descriptors and
/// those of its parent lead to.
pub fn scribble(passes: usize) {
    let mut pieces: Vec<Range<usize>> = mapped("rw-s").into_iter().map(|piece| piece.addresses).collect();
    pieces.extend(mapped("r--s").into_iter().map(|piece| piece.addresses).filter(make_writable));
    pieces
        .extend(descriptors("self").chain(descriptors(&parent().to_string())).filter_map(|path| map(&path)));
    eprintln!("{SCRIBBLES}");
    for pass in 0..passes {
        for at in pieces.iter().cloned().flatten() {
            let byte = (pass % 255) as u8 + 1;
            // SAFETY: there is none but that the memory is mapped; the damage is the purpose.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(byte) };
        }
    }
}

/// Memory without a name in the file system.
#[derive(Debug)]
struct Piece {
    addresses: Range<usize>,
    inode: u64,
}

/// The memory that this process shares with its parent, as far as it is mapped with these permissions.
fn mapped(permissions: &str) -> Vec<Piece> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let piece = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, mapped_as) = (words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let is_meant = mapped_as == permissions && line.contains("/memfd:");
        let address = |text| usize::from_str_radix(text, 16).ok();
        let inode = words.nth(2)?.parse().ok()?;
        is_meant.then_some(Piece { addresses: address(start)?..address(end)?, inode })
    };
    maps.lines().filter_map(piece).collect()
}

fn make_writable(piece: &Range<usize>) -> bool {
    let start = ptr::with_exposed_provenance_mut::<c_void>(piece.start);
    // SAFETY: where it works, nothing is written.
    unsafe { libc::mprotect(start, piece.len(), libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

fn make_inputs_writable() -> Option<()> {
    mapped("r--s").iter().any(|piece| make_writable(&piece.addresses)).then_some(())
}

/// By the mapping that there is, or by a descriptor that was left open.
fn map_inputs_again() -> Option<()> {
    let by_mapping = mapped("r--s").into_iter().map(|Piece { addresses, .. }| {
        PathBuf::from(format!("/proc/self/map_files/{:x}-{:x}", addresses.start, addresses.end))
    });
    by_mapping.chain(descriptors("self")).find_map(|path| map(&path)).map(drop)
}

/// Memory that a process has descriptors of.
fn descriptors(process: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    all.map(|entry| entry.path())
        .filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")))
}

/// Maps memory to be written to; nothing is written.
fn map(path: &Path) -> Option<Range<usize>> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let len = usize::try_from(file.metadata().ok()?.len()).ok().filter(|len| *len > 0)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, both, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    (start != libc::MAP_FAILED).then(|| start.expose_provenance()..start.expose_provenance() + len)
}

/// That of others: this process's own, the parent has, too.
fn map_memory_of_parent() -> Option<()> {
    let own: Vec<u64> = mapped("rw-s").iter().chain(&mapped("r--s")).map(|piece| piece.inode).collect();
    descriptors(&parent().to_string())
        .filter(|path| fs::metadata(path).is_ok_and(|file| !own.contains(&file.ino())))
        .find_map(|path| {
            let piece = map(&path)?;
            // SAFETY: it was mapped above, and nothing refers to it.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(piece.start), piece.len()) };
            Some(())
        })
}

fn write_and_remove(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!("orchestra-intruder-{}", std::process::id()));
    File::create(&file)?;
    fs::remove_file(file)
}

fn remove_and_put_back(file: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    // Empty: a loader ends if a file grows.
    File::create(file).map(drop)
}

/// Where the library or program lies that this code is in, as the kernel says.
fn own_folder() -> Option<PathBuf> {
    let here = own_folder as *const () as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let holds_it = |line: &&str| {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let address = |text| usize::from_str_radix(text, 16).ok();
        bounds
            .and_then(|(start, end)| Some(address(start)?..address(end)?))
            .is_some_and(|r| r.contains(&here))
    };
    let line = maps.lines().find(holds_it)?;
    Path::new(&line[line.find('/')?..]).parent().map(Path::to_owned)
}

fn chmod(file: &Path) -> Option<()> {
    let name = CString::new(file.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: the text lives until the call returns.
    done(unsafe { libc::chmod(name.as_ptr(), 0o666) })
}

/// By its name. The kernel checks the same as if it became shorter.
fn cut_to_its_length(file: &Path) -> Option<()> {
    let len = fs::metadata(file).ok()?.len();
    let name = CString::new(file.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: the text lives until the call returns.
    done(unsafe { libc::truncate(name.as_ptr(), i64::try_from(len).ok()?) })
}

/// Sets it to what it is: the kernel checks the same as if it became lower.
fn keep_priority_of_parent() -> Option<()> {
    // SAFETY: no memory is touched.
    done(unsafe {
        libc::setpriority(libc::PRIO_PROCESS, parent(), libc::getpriority(libc::PRIO_PROCESS, parent()))
    })
}

fn take_message_and_put_it_back(queue: i32) -> Option<()> {
    let mut message = [0_u64; 8];
    let (text, len) =
        (message.as_mut_ptr().cast::<c_void>(), size_of_val(&message) - size_of::<libc::c_long>());
    // SAFETY: the memory lives until the calls return, and has room for the type and the text.
    unsafe {
        let taken = libc::msgrcv(queue, text, len, 0, libc::IPC_NOWAIT);
        let taken = usize::try_from(taken).ok()?;
        done(libc::msgsnd(queue, text, taken, libc::IPC_NOWAIT))
    }
}

fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

fn done(result: i32) -> Option<()> {
    (result >= 0).then_some(())
}

/// By one end of a pair, since a socket of its own may be forbidden. Nothing is sent: the test reads none of it, so the socket would be full in the end.
fn direct_datagrams_to(socket: &Path) -> io::Result<()> {
    UnixDatagram::pair()?.0.connect(socket)
}

fn fork() -> Option<()> {
    // SAFETY: the child makes one call, which is allowed after a fork of a process with threads.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            pid @ 1.. => done(libc::waitpid(pid, ptr::null_mut(), 0)),
            _ => None,
        }
    }
}

/// By one that does nothing to a process that does not wait for it.
fn signal_parent() -> Option<()> {
    // SAFETY: no memory is touched.
    done(unsafe { libc::kill(parent().cast_signed(), libc::SIGURG) })
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

/// What begins where the first mapping does. Who may open the file may read it.
fn read_memory_of_parent() -> Option<()> {
    let memory = File::open(format!("/proc/{}/mem", parent())).ok()?;
    let Ok(maps) = fs::read_to_string(format!("/proc/{}/maps", parent())) else { return Some(()) };
    let start = u64::from_str_radix(maps.split_once('-')?.0, 16).ok()?;
    memory.read_exact_at(&mut [0], start).ok()
}

fn read_memory(bait: &Bait) -> Option<u8> {
    let mut byte = 0_u8;
    let (to, from) = (piece((&raw mut byte).cast()), piece(ptr::without_provenance_mut(bait.address)));
    // SAFETY: the byte is written to at most.
    let read = unsafe { libc::process_vm_readv(bait.victim, &raw const to, 1, &raw const from, 1, 0) };
    (read == 1).then_some(byte)
}

fn write_memory(bait: &Bait) -> Option<()> {
    let mut byte = read_memory(bait).unwrap_or(0);
    let (from, to) = (piece((&raw mut byte).cast()), piece(ptr::without_provenance_mut(bait.address)));
    // SAFETY: memory of this process is only read.
    let written = unsafe { libc::process_vm_writev(bait.victim, &raw const from, 1, &raw const to, 1, 0) };
    (written == 1).then_some(())
}

fn piece(start: *mut c_void) -> libc::iovec {
    libc::iovec { iov_base: start, iov_len: 1 }
}

/// Its standard input.
fn take_descriptor(pid: i32) -> Option<()> {
    // SAFETY: no memory is touched; both descriptors are closed by the one that made them.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return None;
        }
        let taken = libc::syscall(libc::SYS_pidfd_getfd, process, 0, 0);
        libc::close(process as i32);
        if taken < 0 {
            return None;
        }
        libc::close(taken as i32);
    }
    Some(())
}

/// Asks for a program that is not there, since one that is there would take the place of this process. Outside of a sandbox the error is that there is
/// none: that much the kernel says only to a process that may have another program.
fn become_a_program() -> Option<()> {
    let program = CString::new("/nowhere/program").ok()?;
    let none: *const libc::c_char = ptr::null();
    let arguments = [program.as_ptr(), none];
    // SAFETY: the texts and the lists live until the call returns.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), [none].as_ptr()) };
    (io::Error::last_os_error().kind() == io::ErrorKind::NotFound).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that is mapped to be read, and a descriptor of it.
    struct Inputs {
        start: *mut c_void,
        descriptor: i32,
    }

    const BYTES: usize = 4096;

    impl Inputs {
        fn map(seals: i32) -> Self {
            // SAFETY: a new file and a new mapping, which end with this value.
            unsafe {
                let descriptor = libc::memfd_create(c"inputs".as_ptr(), libc::MFD_ALLOW_SEALING);
                assert!(descriptor >= 0 && libc::ftruncate(descriptor, BYTES as i64) == 0);
                assert_eq!(libc::fcntl(descriptor, libc::F_ADD_SEALS, seals), 0);
                let start =
                    libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0);
                assert_ne!(start, libc::MAP_FAILED);
                Self { start, descriptor }
            }
        }
    }

    impl Drop for Inputs {
        fn drop(&mut self) {
            // SAFETY: made by `map`.
            unsafe {
                libc::munmap(self.start, BYTES);
                libc::close(self.descriptor);
            }
        }
    }

    /// The control of attempts that fail with any sandbox, since the memory itself is sealed.
    #[test]
    fn inputs_that_are_not_sealed_are_written_to_and_sealed_ones_are_not() {
        let sealed = Inputs::map(libc::F_SEAL_FUTURE_WRITE);
        assert_eq!(mapped("r--s").len(), 1, "this process has no others");
        assert!(attempts_on_inputs().is_empty(), "{:?}", attempts_on_inputs());
        drop(sealed);
        let _open = Inputs::map(0);
        // First, since it needs the mapping as it is.
        assert!(map_inputs_again().is_some());
        assert!(make_inputs_writable().is_some());
    }
}
