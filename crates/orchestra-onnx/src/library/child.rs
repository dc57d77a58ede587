//! Runs a program, hears its lines and ends it when told to. Knows nothing of Python, and leaves no child behind.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// How often a silent child is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// For how many of these an ended child whose outputs stay open is listened to.
const SILENT_TICKS: u32 = 10;
/// How often a child is looked at in one of these that has closed its outputs, and so is about to end.
const LOOKS: u32 = 50;
/// A line is cut after this many bytes, so that a child cannot fill our memory.
const LINE_BYTES: u64 = 16 << 10;
/// Lines that wait to be heard. A child that writes faster waits in its turn.
const LINES: usize = 64;

pub(crate) enum Event {
    Stdout(String),
    Stderr(String),
    /// `TICK` has passed without a line.
    Quiet,
}

/// Runs `command` to its end and tells `hear` all that happens. If `hear` breaks, the child is killed and the result is
/// `None`.
pub(crate) fn run(
    command: &mut Command,
    mut hear: impl FnMut(Event) -> ControlFlow<()>,
) -> io::Result<Option<ExitStatus>> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut child = ChildGuard(child);
    let lines = child.listen();
    let (mut silent_since_end, mut looks) = (0, 0);
    loop {
        let ended = child.0.try_wait()?;
        let event = match lines.recv_timeout(TICK) {
            Ok(line) => line,
            // Silent since it ended: a child of its own holds its outputs open. What it wrote itself is in the pipe, and has been heard by
            // now also where our reading threads have to wait for a core.
            Err(RecvTimeoutError::Timeout) if ended.is_some() => {
                silent_since_end += 1;
                if silent_since_end >= SILENT_TICKS {
                    return Ok(ended);
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => Event::Quiet,
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => return Ok(ended),
            // It has closed its outputs, so it most likely ends at once.
            Err(RecvTimeoutError::Disconnected) => {
                thread::park_timeout(TICK / LOOKS);
                looks += 1;
                if looks % LOOKS != 0 {
                    continue;
                }
                Event::Quiet
            }
        };
        if hear(event).is_break() {
            return Ok(None);
        }
    }
}

/// A child that does not outlive its owner.
struct ChildGuard(Child);

impl ChildGuard {
    fn listen(&mut self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(LINES);
        if let Some(output) = self.0.stdout.take() {
            read_lines(output, sender.clone(), Event::Stdout);
        }
        if let Some(output) = self.0.stderr.take() {
            read_lines(output, sender, Event::Stderr);
        }
        receiver
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was waited for, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The thread ends with the output, or with the receiver.
fn read_lines(output: impl Read + Send + 'static, sender: SyncSender<Event>, event: fn(String) -> Event) {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match output.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(event(line)).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::process::{Pid, Signal, kill_process, test_kill_process};

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    fn pid(line: &str) -> Pid {
        Pid::from_raw(line.parse().unwrap()).unwrap()
    }

    #[test]
    fn every_line_of_both_outputs_is_heard_before_the_end() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let text = "for n in $(seq 500); do echo $n; echo $n >&2; done; printf last; exit 3";
        let status = run(&mut shell(text), |event| {
            match event {
                Event::Stdout(line) => out.push(line),
                Event::Stderr(line) => err.push(line),
                Event::Quiet => {}
            }
            ControlFlow::Continue(())
        });
        assert_eq!(status.unwrap().unwrap().code(), Some(3));
        assert_eq!((out.len(), out[500].as_str(), err.len()), (501, "last", 500));
    }

    #[test]
    fn a_child_that_is_given_up_is_killed_and_waited_for() {
        let mut child = None;
        let status = run(&mut shell("echo $$; exec sleep 600"), |event| {
            if let Event::Stdout(line) = event {
                child = Some(pid(&line));
            }
            ControlFlow::Break(())
        });
        assert!(status.unwrap().is_none());
        assert!(test_kill_process(child.unwrap()).is_err(), "it still exists");
    }

    #[test]
    fn a_child_of_the_child_that_holds_its_outputs_is_not_waited_for() {
        let mut grandchild = None;
        let status = run(&mut shell("sleep 600 & echo $!"), |event| {
            if let Event::Stdout(line) = event {
                grandchild = Some(pid(&line));
            }
            ControlFlow::Continue(())
        });
        assert!(status.unwrap().unwrap().success());
        kill_process(grandchild.unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_child_that_closes_its_outputs_and_lives_on_can_be_given_up() {
        let status = run(&mut shell("exec sleep 600 >&- 2>&-"), |event| match event {
            Event::Quiet => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        assert!(status.unwrap().is_none());
    }
}
