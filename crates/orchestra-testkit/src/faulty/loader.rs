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

use orchestra_core::data::ItemError;
use orchestra_core::shapes::MapCount;
use orchestra_core::{FailureKind, LeftOut, Origin, StageId};

/// What the first loader does: one of [`LOADER_FAULTS`] or of those at its start.
pub const LOADER_FAULT: &str = "ORCHESTRA_LOADER_FAULT";
/// A file that the first loader makes, so that those after it know. Without it, all loaders misbehave.
pub const LOADER_FAULT_ONCE: &str = "ORCHESTRA_LOADER_FAULT_ONCE";

/// What a loader does when it is given items: frames without an item, for ever; two answers for each item; an item of which no row comes to a leaf;
/// values that lie outside of its region, and more parts than there are rows; bytes that are no frame; it closes its socket and lives on.
pub const LOADER_FAULTS: [&str; 6] = ["nothing", "twice", "no-row", "nonsense", "garbage", "hang-up"];
/// What it does at its start, and lives on: it says nothing, or that it is of another version or speaks another protocol; or it dies.
const AT_START: [&str; 4] = ["never-hello", "other-build", "other-protocol", "die-at-start"];

/// Misbehaves if this is the process to do so.
pub(super) fn misbehave() -> Option<ExitCode> {
    let wanted = std::env::var(LOADER_FAULT).ok()?;
    let fault = LOADER_FAULTS.into_iter().chain(AT_START).find(|name| *name == wanted)?;
    if let Some(once) = std::env::var_os(LOADER_FAULT_ONCE) {
        OpenOptions::new().write(true).create_new(true).open(once).ok()?;
    }
    // SAFETY: the parent has put its socket there, and nothing else in this process takes it.
    let socket = unsafe { OwnedFd::from_raw_fd(WORKER_SOCKET_FD) };
    // What goes wrong here is the end of this process, which is a fault, too.
    drop(serve(UnixStream::from(socket), fault));
    Some(ExitCode::FAILURE)
}

fn serve(socket: UnixStream, fault: &str) -> anyhow::Result<()> {
    let mut reader: FrameReader<UnixStream, ToLoader> = FrameReader::new(socket.try_clone()?);
    let mut writer: FrameWriter<UnixStream, FromLoader> = FrameWriter::new(socket.try_clone()?);
    let (mut protocol, mut build) = (LOADER_PROTOCOL, BUILD.to_owned());
    match fault {
        "never-hello" => live_on(),
        "die-at-start" => {
            eprintln!("dying at once, as asked");
            std::process::abort();
        }
        "other-build" => build = "0.0.7".to_owned(),
        "other-protocol" => protocol += 1,
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
            "nothing" => loop {
                writer.write(&FromLoader::Answers { sent_ns: 0, answers: Vec::new() })?;
            },
            "twice" => {
                let refused = ItemError { kind: FailureKind::Read, error: "made up".to_owned() };
                let answers = vec![answer(Err((None, refused))); ends.len() * 2];
                writer.write(&FromLoader::Answers { sent_ns: u64::MAX, answers })?;
            }
            "no-row" | "nonsense" => {
                let outside = SentValue::Tensor { at: u64::MAX - 1, shape: vec![usize::MAX; 3] };
                let huge = SentValue::Picture { at: 4096, width: u32::MAX, height: u32::MAX, channels: 3 };
                let nonsense = vec![
                    RowEvent::Row { leaf: 0, values: vec![outside, huge] },
                    RowEvent::Parts { at: 0, n: u32::MAX },
                    RowEvent::Nothing { at: usize::MAX },
                ];
                let rows = if fault == "no-row" { Vec::new() } else { nonsense };
                writer.write(&FromLoader::Answers { sent_ns: 0, answers: vec![answer(Ok(rows))] })?;
                // The others of its items are left to those after it.
                return Ok(());
            }
            "garbage" => std::io::Write::write_all(&mut &socket, &[0xff; 64])?,
            "hang-up" => {
                socket.shutdown(std::net::Shutdown::Both)?;
                live_on();
            }
            // Those at its start are not given any.
            _ => {}
        }
    }
    Ok(())
}

fn live_on() -> ! {
    loop {
        std::thread::park();
    }
}
