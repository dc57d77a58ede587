//! What a process says on stderr: the end of it is kept as its last words, and its owner logs the lines. It reads whatever comes, so
//! that no process ever waits for us; what is too much for a log is counted instead of logged.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::time::Instant;

/// Lines of stderr that are kept as last words.
const LAST_LINES: usize = 12;
/// Longest line of stderr that is kept, in bytes; what is longer is cut into several.
const LONGEST_LINE: usize = 2000;
/// Lines of one process that are logged whenever they come.
const BURST: u64 = 200;
/// Lines beyond `BURST` that are logged in a second.
const LINES_PER_SECOND: u64 = 20;

/// What is to be logged of it.
#[derive(Debug, Clone, Copy)]
pub enum StderrText<'a> {
    Line(&'a str),
    /// So many lines were more than is logged.
    TooMuch(u64),
}

/// Tells `log` what the process says until it says no more; gives back the end of it.
pub async fn last_words(
    stderr: Box<dyn AsyncRead + Send + Unpin>,
    mut log: impl FnMut(StderrText<'_>),
) -> String {
    let mut tail: VecDeque<String> = VecDeque::with_capacity(LAST_LINES + 1);
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    let began = Instant::now();
    let mut allowance = Allowance::new();
    loop {
        line.clear();
        // A process that floods stderr without a newline must not fill our memory.
        let mut limited = (&mut reader).take(LONGEST_LINE as u64);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if text.is_empty() {
            continue;
        }
        if let Some(left_out) = allowance.spend(began.elapsed()) {
            if left_out > 0 {
                log(StderrText::TooMuch(left_out));
            }
            log(StderrText::Line(&text));
        }
        // Notes are hints for people who run a program by hand.
        if !text.starts_with("note:") {
            tail.push_back(text);
        }
        if tail.len() > LAST_LINES {
            tail.pop_front();
        }
    }
    if allowance.left_out > 0 {
        log(StderrText::TooMuch(allowance.left_out));
    }
    Vec::from(tail).join(" | ")
}

/// How many lines may be logged: a burst, and then some in each second.
struct Allowance {
    lines: u64,
    /// Up to when lines were allowed for.
    counted: Duration,
    /// Lines left out since the last one that was logged.
    left_out: u64,
}

impl Allowance {
    fn new() -> Self {
        Self { lines: BURST, counted: Duration::ZERO, left_out: 0 }
    }

    /// Whether one more line may be logged; then, how many before it were not.
    fn spend(&mut self, now: Duration) -> Option<u64> {
        let seconds = now.saturating_sub(self.counted).as_secs();
        if seconds > 0 {
            self.counted += Duration::from_secs(seconds);
            self.lines = (self.lines + seconds.saturating_mul(LINES_PER_SECOND)).min(BURST);
        }
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn words(said: &[u8]) -> String {
        last_words(Box::new(std::io::Cursor::new(said.to_vec())), |_| ()).await
    }

    #[test]
    fn a_burst_is_allowed_and_then_some_lines_in_each_second() {
        let mut allowance = Allowance::new();
        let first = Duration::from_millis(10);
        assert!((0..BURST).all(|_| allowance.spend(first) == Some(0)));
        assert!((0..1_000).all(|_| allowance.spend(first).is_none()));
        let later = Duration::from_millis(1_100);
        assert_eq!(allowance.spend(later), Some(1_000), "what was left out is told with the next line");
        assert!((1..LINES_PER_SECOND).all(|_| allowance.spend(later) == Some(0)));
        assert_eq!(allowance.spend(later), None);
        let much_later = Duration::from_secs(1_000_000);
        assert_eq!((0..10_000).filter(|_| allowance.spend(much_later).is_some()).count() as u64, BURST);
    }

    #[tokio::test]
    async fn the_last_lines_are_kept_whatever_is_left_out_of_the_log() {
        let said: String = (0..10_000).map(|i| format!("line {i}\n")).collect();
        let words = words(said.as_bytes()).await;
        assert_eq!(words.split(" | ").count(), LAST_LINES);
        assert!(words.starts_with("line 9988 | ") && words.ends_with("line 9999"), "{words}");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_and_what_is_no_text_is_no_error() {
        let words = words(&vec![0xff; 100 * LONGEST_LINE]).await;
        assert!(words.len() <= LAST_LINES * (3 * LONGEST_LINE + 3), "{} bytes", words.len());
    }
}
