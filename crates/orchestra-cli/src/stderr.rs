//! Standard error: progress, messages, the summary. It may have no reader (`2>&1 | head`, a closed terminal, a full disk), or one that reads no more (a
//! terminal that was halted, a supervisor that hangs): that must change neither the run nor its exit code, so nothing here fails, panics, or waits
//! for long.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use orchestra_core::visible;
use orchestra_launch::telemetry::logs::json_line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::Level;

/// Set where everything is to be said in JSON lines; then holds the id of the run, once it is known.
static JSON: OnceLock<OnceLock<String>> = OnceLock::new();

/// From now on, whatever is said is one JSON object per message and line, like the lines of the log.
pub fn speak_json() {
    JSON.get_or_init(OnceLock::new);
}

/// The run that JSON lines belong to from now on.
pub fn set_run(run_id: &str) {
    if let Some(run) = JSON.get() {
        run.get_or_init(|| run_id.to_owned());
    }
}

/// Writes a text as it is, with what colours it and moves it, or as one JSON line.
pub fn say(text: &str) {
    match JSON.get() {
        Some(run) => write(&json(text, run.get().map(String::as_str))),
        None => write(text),
    }
}

/// Writes a text for people, whose lines end. What it quotes of files and models steers no terminal.
pub fn say_text(text: &str) {
    say(&visible(text));
}

/// The same, of a line without its end.
pub fn say_line(text: &str) {
    match JSON.get() {
        Some(_) => say(text),
        None => say_text(&format!("{text}\n")),
    }
}

/// Writes a line of the log, which has its form already.
pub fn log_line(line: &str) {
    write(&format!("{line}\n"));
}

/// What a pipe takes at once, if it takes anything.
const PIECE: usize = 4096;

/// How long a reader may halt before messages are lost; from then on until it reads again none waits.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

static IS_STUCK: AtomicBool = AtomicBool::new(false);

fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    for piece in text.as_bytes().chunks(PIECE) {
        let patience = if IS_STUCK.load(Ordering::Relaxed) { Timespec::default() } else { PATIENCE };
        let takes_more = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&patience)) != Ok(0);
        IS_STUCK.store(!takes_more, Ordering::Relaxed);
        // See above: a closed end reads nothing.
        if !takes_more || stderr.write_all(piece).is_err() {
            return;
        }
    }
}

fn json(text: &str, run: Option<&str>) -> String {
    let text = text.trim_end();
    let (level, message) = match (text.strip_prefix("error: "), text.strip_prefix("warning: ")) {
        (Some(error), _) => (Level::ERROR, error),
        (None, Some(warning)) => (Level::WARN, warning),
        (None, None) => (Level::INFO, text),
    };
    format!("{}\n", json_line(level, message, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_becomes_one_json_line_with_the_level_of_its_first_word() {
        let lines =
            [json("error: no disk\nat all\n", None), json("warning: w", Some("r1")), json("done\n", None)];
        let lines = lines.map(|line| {
            assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            (line["level"].clone(), line["message"].clone(), line["run"].clone())
        });
        assert_eq!(lines[0], ("ERROR".into(), "no disk\nat all".into(), serde_json::Value::Null));
        assert_eq!(lines[1], ("WARN".into(), "w".into(), "r1".into()));
        assert_eq!(lines[2].0, "INFO");
    }
}
