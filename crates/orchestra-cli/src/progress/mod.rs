//! The progress of a run on standard error: drawn again in place on a terminal, as a plain line now and then elsewhere. It is
//! told what to show and asks no actor; time comes in with it.

mod painter;
mod render;
mod screen;

use std::time::Duration;

use orchestra_launch::RunStatus;
use painter::Painter;

use crate::stderr;
use crate::surroundings::Surroundings;
pub use render::{Look, plain_line, render};
pub use screen::Screen;

/// How often a line is written where nothing can be drawn again.
const LINE_EVERY_SECONDS: f64 = 10.0;

/// The state of a run, as it is shown: a snapshot, and what follows from an earlier one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgressView {
    pub now: RunStatus,
    /// Items finished per second, lately.
    pub per_second: f64,
    /// Time left, if it can be told.
    pub eta: Option<Duration>,
    /// Rows per second that leave each stage, lately.
    pub stage_rates: Vec<f64>,
    /// Share of time in which the workers of each device ran, lately, 0.0 to 1.0.
    pub busy: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMode {
    Bar,
    Lines,
    /// Not at all (`--quiet`).
    Off,
}

impl ProgressMode {
    pub fn of(surroundings: &Surroundings) -> Self {
        if surroundings.interactive() { Self::Bar } else { Self::Lines }
    }
}

/// Shows progress. Dropping it removes what was drawn.
#[derive(Debug)]
pub struct ProgressDisplay {
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Bar(Painter),
    Lines { due_seconds: f64 },
    Off,
}

impl ProgressDisplay {
    /// Shows nothing before the first update.
    pub fn new(mode: ProgressMode, surroundings: &Surroundings) -> Self {
        let lines = Shown::Lines { due_seconds: LINE_EVERY_SECONDS };
        let shown = match mode {
            ProgressMode::Bar => Painter::start(surroundings.color()).map_or(lines, Shown::Bar),
            ProgressMode::Lines => lines,
            ProgressMode::Off => Shown::Off,
        };
        Self { shown }
    }

    /// May be called as often as one likes.
    pub fn update(&mut self, view: ProgressView) {
        match &mut self.shown {
            Shown::Bar(painter) => painter.show(view),
            Shown::Lines { due_seconds } if view.now.seconds >= *due_seconds => {
                *due_seconds = view.now.seconds + LINE_EVERY_SECONDS;
                stderr::say_line(&plain_line(&view));
            }
            Shown::Lines { .. } | Shown::Off => {}
        }
    }

    /// The process was stopped and goes on: a shell wrote to the terminal in between.
    pub fn resumed(&self) {
        if let Shown::Bar(painter) = &self.shown {
            painter.forget();
        }
    }

    /// Whether something is drawn that a sudden end of the process would leave behind.
    pub fn is_drawn(&self) -> bool {
        matches!(self.shown, Shown::Bar(_))
    }

    /// Prints a line without disturbing what is drawn; to be given to the log's terminal output for as long as this lives.
    pub fn printer(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let above = match &self.shown {
            Shown::Bar(painter) => Some(painter.printer()),
            Shown::Lines { .. } | Shown::Off => None,
        };
        move |line| {
            if !above.as_ref().is_some_and(|print| print(line)) {
                stderr::log_line(line);
            }
        }
    }

    /// Removes what was drawn, so that the summary can follow.
    pub fn finish(&mut self) {
        self.shown = Shown::Off;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_the_surroundings() {
        let terminal = Surroundings { stderr_is_terminal: true, term: Some("xterm".into()), no_color: None };
        assert_eq!(ProgressMode::of(&terminal), ProgressMode::Bar);
        assert_eq!(ProgressMode::of(&Surroundings::default()), ProgressMode::Lines);
    }

    #[test]
    fn plain_lines_come_no_more_often_than_they_are_due() {
        let mut progress = ProgressDisplay { shown: Shown::Lines { due_seconds: LINE_EVERY_SECONDS } };
        let mut due_at = |seconds| {
            let now = RunStatus { seconds, ..RunStatus::default() };
            progress.update(ProgressView { now, ..ProgressView::default() });
            match progress.shown {
                Shown::Lines { due_seconds } => due_seconds,
                _ => panic!("no lines"),
            }
        };
        assert_eq!(due_at(9.0), 10.0);
        assert_eq!(due_at(25.0), 35.0);
    }
}
