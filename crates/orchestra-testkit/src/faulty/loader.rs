//! Loaders that do not keep to the protocol. The first process that asks is one of them, and those after it are sound; without a file by which they
//! know, all of them are.

use std::fs::OpenOptions;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use orchestra_worker::codec::{FrameReader, FrameWriter};
use orchestra_worker::loader::events::{
    FromLoader, ItemAnswer, LOADER_PROTOCOL, RowEvent, SentValue, ToLoader,
};
use orchestra_worker::{BUILD, WORKER_SOCKET_FD};

use orchestra_core::data::Refusal;
use orchestra_core::shapes::MapCount;
use orchestra_core::{FailureKind, LeftOut, Origin, StageId};

/// What the first loader does: one of [`LoaderFault::NAMES`] or of [`LoaderFault::AT_START`].
pub const LOADER_FAULT: &str = "ORCHESTRA_LOADER_FAULT";
/// A file that the first loader makes, so that those after it know. Without it, all loaders misbehave.
pub const LOADER_FAULT_ONCE: &str = "ORCHESTRA_LOADER_FAULT_ONCE";

/// What a loader does when it is given items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoaderFault {
    /// Frames without an item, for ever.
    Nothing,
    /// Two answers for each item.
    Twice,
    /// An item of which no row comes to a leaf.
    NoRow,
    /// Values that lie outside of its region, and more parts than there are rows.
    Nonsense,
    /// Bytes that are no frame.
    Garbage,
    /// It closes its socket and lives on.
    HangUp,
    /// At its start: it says nothing, and lives on.
    NeverHello,
    /// At its start: it says that it is of another version, and lives on.
    OtherBuild,
    /// At its start: it says that it speaks another protocol, and lives on.
    OtherProtocol,
    /// At its start: SIGABRT.
    DieAtStart,
}

impl LoaderFault {
    /// Those before it is given items, by name.
    pub const AT_START: [(&str, LoaderFault); 4] = [
        ("never-hello", LoaderFault::NeverHello),
        ("other-build", LoaderFault::OtherBuild),
        ("other-protocol", LoaderFault::OtherProtocol),
        ("die-at-start", LoaderFault::DieAtStart),
    ];

    /// All others, by name.
    pub const NAMES: [(&str, LoaderFault); 6] = [
        ("nothing", LoaderFault::Nothing),
        ("twice", LoaderFault::Twice),
        ("no-row", LoaderFault::NoRow),
        ("nonsense", LoaderFault::Nonsense),
        ("garbage", LoaderFault::Garbage),
        ("hang-up", LoaderFault::HangUp),
    ];
}

/// Misbehaves if this is the process to do so.
pub(super) fn misbehave() -> Option<ExitCode> {
    let wanted = std::env::var(LOADER_FAULT).ok()?;
    let all = LoaderFault::NAMES.into_iter().chain(LoaderFault::AT_START);
    let (_, fault) = all.into_iter().find(|(name, _)| *name == wanted)?;
    if let Some(once) = std::env::var_os(LOADER_FAULT_ONCE) {
        OpenOptions::new().write(true).create_new(true).open(once).ok()?;
    }
    // SAFETY: the parent has put its socket there, and nothing else in this process takes it.
    let socket = unsafe { OwnedFd::from_raw_fd(WORKER_SOCKET_FD) };
    // What goes wrong here is the end of this process, which is a fault, too.
    drop(serve(UnixStream::from(socket), fault));
    Some(ExitCode::FAILURE)
}

fn serve(socket: UnixStream, fault: LoaderFault) -> anyhow::Result<()> {
    let mut reader: FrameReader<UnixStream, ToLoader> = FrameReader::new(socket.try_clone()?);
    let mut writer: FrameWriter<UnixStream, FromLoader> = FrameWriter::new(socket.try_clone()?);
    let (mut protocol, mut build) = (LOADER_PROTOCOL, BUILD.to_owned());
    match fault {
        LoaderFault::NeverHello => live_on(),
        LoaderFault::DieAtStart => {
            eprintln!("dying at once, as asked");
            std::process::abort();
        }
        LoaderFault::OtherBuild => build = "0.0.7".to_owned(),
        LoaderFault::OtherProtocol => protocol += 1,
        _ => {}
    }
    let is_another = (protocol, &build[..]) != (LOADER_PROTOCOL, BUILD);
    writer.write(&FromLoader::Hello { protocol, build })?;
    if is_another {
        live_on();
    }
    let answer = |rows| ItemAnswer {
        rows,
        read_bytes: u64::MAX,
        counts: vec![MapCount { entered: u64::MAX, left: u64::MAX }; 3],
        left_out: vec![(Origin::Stage(StageId(u16::MAX)), LeftOut::Pages, 1)],
        began_ns: 0,
        read_ns: u64::MAX,
        took_ns: 0,
    };
    while let Some(frame) = reader.read()? {
        let ToLoader::Items { ends, .. } = frame else {
            writer.write(&FromLoader::Ready)?;
            continue;
        };
        if ends.is_empty() {
            continue;
        }
        match fault {
            LoaderFault::Nothing => loop {
                writer.write(&FromLoader::Answers { sent_ns: 0, answers: Vec::new() })?;
            },
            LoaderFault::Twice => {
                let refused = Refusal { kind: FailureKind::Read, error: "made up".to_owned() };
                let answers = vec![answer(Err((None, refused))); ends.len() * 2];
                writer.write(&FromLoader::Answers { sent_ns: u64::MAX, answers })?;
            }
            LoaderFault::NoRow | LoaderFault::Nonsense => {
                let outside = SentValue::Tensor { at: u64::MAX - 1, shape: vec![usize::MAX; 3] };
                let huge = SentValue::Picture { at: 4096, width: u32::MAX, height: u32::MAX, channels: 3 };
                let nonsense = vec![
                    RowEvent::Row { leaf: 0, values: vec![outside, huge] },
                    RowEvent::Parts { at: 0, n: u32::MAX },
                    RowEvent::Nothing { at: usize::MAX },
                ];
                let rows = if fault == LoaderFault::NoRow { Vec::new() } else { nonsense };
                writer.write(&FromLoader::Answers { sent_ns: 0, answers: vec![answer(Ok(rows))] })?;
                // The others of its items are left to those after it.
                return Ok(());
            }
            LoaderFault::Garbage => std::io::Write::write_all(&mut &socket, &[0xff; 64])?,
            LoaderFault::HangUp => {
                socket.shutdown(std::net::Shutdown::Both)?;
                live_on();
            }
            // They are not given any.
            LoaderFault::NeverHello
            | LoaderFault::OtherBuild
            | LoaderFault::OtherProtocol
            | LoaderFault::DieAtStart => {}
        }
    }
    Ok(())
}

fn live_on() -> ! {
    loop {
        std::thread::park();
    }
}
