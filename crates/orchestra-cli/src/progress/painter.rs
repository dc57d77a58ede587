//! Draws the progress from a thread of its own: a terminal that takes nothing (Ctrl-S, a slow connection) must hold up no run. It
//! keeps the newest state only, and decides nothing about what is shown.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use orchestra_core::locked;

use super::screen::Screen;
use super::{Look, ProgressView, render};
use crate::stderr;
use crate::surroundings::terminal_size;

/// Assumed where the terminal does not say: rows, columns.
const DEFAULT_SIZE: (usize, usize) = (24, 80);
/// Lines that wait for a terminal that takes nothing. Log files have all of them.
const MAX_WAITING: usize = 1000;

/// The thread that draws, and what it shall draw next.
#[derive(Debug)]
pub struct Painter {
    shared: Arc<PainterQueue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct PainterQueue {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    /// The newest state that is not drawn yet.
    view: Option<ProgressView>,
    lines: VecDeque<String>,
    /// Oldest lines that found no room in `lines`.
    n_dropped: usize,
    forget: bool,
    end: bool,
}

impl Painter {
    /// Draws nothing before the first view. `None` if the system gives no thread.
    pub fn start(color: bool) -> Option<Self> {
        let shared = Arc::new(PainterQueue::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("progress".into()).spawn(move || paint(&theirs, color));
        Some(Self { shared, thread: Some(thread.ok()?) })
    }

    pub fn show(&self, view: ProgressView) {
        self.shared.order(|orders| orders.view = Some(view));
    }

    /// What was drawn is no longer below the cursor: something else wrote to the terminal.
    pub fn forget(&self) {
        self.shared.order(|orders| orders.forget = true);
    }

    /// Prints lines above what is shown.
    pub fn printer(&self) -> impl Fn(&str) -> bool + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move |line| shared.print(line)
    }

    /// Removes what was drawn, once all lines are printed.
    pub fn finish(&mut self) {
        self.shared.order(|orders| orders.end = true);
        if let Some(thread) = self.thread.take() {
            // A painter that panicked has nothing more to draw.
            let _ = thread.join();
        }
    }
}

impl Drop for Painter {
    fn drop(&mut self) {
        self.finish();
    }
}

impl PainterQueue {
    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut locked(&self.orders));
        self.changed.notify_one();
    }

    /// `false` once printing has ended.
    fn print(&self, line: &str) -> bool {
        let mut taken = false;
        self.order(|orders| {
            taken = !orders.end;
            if taken {
                orders.push(line);
            }
        });
        taken
    }

    /// Waits until there is something to do, and takes it.
    fn next(&self) -> Orders {
        let idle = |o: &mut Orders| o.view.is_none() && o.lines.is_empty() && !o.forget && !o.end;
        let mut orders =
            self.changed.wait_while(locked(&self.orders), idle).unwrap_or_else(PoisonError::into_inner);
        let end = orders.end;
        std::mem::replace(&mut *orders, Orders { end, ..Orders::default() })
    }
}

impl Orders {
    fn push(&mut self, line: &str) {
        if self.lines.len() == MAX_WAITING {
            self.lines.pop_front();
            self.n_dropped += 1;
        }
        self.lines.push_back(line.to_owned());
    }

    fn printed(&mut self) -> Vec<String> {
        let dropped =
            (self.n_dropped > 0).then(|| format!("({} lines are in the logs only)", self.n_dropped));
        dropped.into_iter().chain(self.lines.drain(..)).collect()
    }
}

fn paint(shared: &PainterQueue, color: bool) {
    let mut screen = Screen::default();
    let mut shown: Vec<String> = Vec::new();
    loop {
        let mut orders = shared.next();
        if orders.forget {
            screen.forget();
        }
        let (rows, columns) = terminal_size().unwrap_or(DEFAULT_SIZE);
        if orders.end {
            shown.clear();
        } else if let Some(view) = &orders.view {
            // One row stays free, for the line that was there before.
            shown = render(view, Look { width: columns, color });
            shown.truncate(rows.saturating_sub(1).max(1));
        }
        let bytes = screen.draw(&orders.printed(), &shown, columns);
        stderr::say(&bytes);
        if orders.end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::RunStatus;

    use super::*;

    #[test]
    fn a_terminal_that_takes_nothing_keeps_the_newest_lines_and_a_count_of_the_others() {
        let shared = PainterQueue::default();
        for n in 0..MAX_WAITING + 7 {
            assert!(shared.print(&n.to_string()));
        }
        let lines = shared.next().printed();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert_eq!(lines[..2], ["(7 lines are in the logs only)".to_owned(), "7".to_owned()]);
    }

    #[test]
    fn the_newest_state_is_drawn_and_nothing_is_drawn_twice() {
        let shared = PainterQueue::default();
        for seconds in [1.0, 2.0, 3.0] {
            let now = RunStatus { seconds, ..RunStatus::default() };
            shared.order(|o| o.view = Some(ProgressView { now, ..ProgressView::default() }));
        }
        assert_eq!(shared.next().view.map(|v| v.now.seconds), Some(3.0));
        shared.order(|o| o.end = true);
        assert!(shared.next().view.is_none());
        assert!(!shared.print("too late"));
    }
}
