//! The progress of a run on standard error: drawn again in place on a terminal, as a plain line now and then elsewhere. It is
//! told what to show and asks nobody; time comes in as an argument.

mod render;

use std::io::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::surroundings::{Surroundings, terminal_width};
pub use render::{Look, plain_line, render};

/// How often a line is written where nothing can be drawn again.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Assumed where the terminal does not say.
const DEFAULT_WIDTH: usize = 80;

/// The state of a run, as it is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgressView {
    /// Items that the sources name, once they are counted.
    pub total: Option<u64>,
    /// Items with records.
    pub done: u64,
    /// Items with failures.
    pub failed: u64,
    /// Items finished per second, lately.
    pub per_second: f64,
    /// Time left, if it can be told.
    pub eta: Option<Duration>,
    /// Stages, in the order of the data.
    pub stages: Vec<StageView>,
    /// Devices, in the order of the plan.
    pub devices: Vec<DeviceView>,
    /// Workers that died and were replaced.
    pub restarts: u64,
}

/// A stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageView {
    /// Its name.
    pub name: String,
    /// Items that wait in front of it.
    pub queued: u64,
    /// Items that leave it per second.
    pub per_second: f64,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// Workers that are ready.
    pub workers: u64,
    /// Share of time in which they ran, 0.0 to 1.0.
    pub busy: f64,
    /// Memory in use and in all, in bytes, where it is known.
    pub memory: Option<(u64, u64)>,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMode {
    /// Drawn in place.
    Bar,
    /// A line every ten seconds.
    Lines,
    /// Not at all (`--quiet`).
    Off,
}

impl ProgressMode {
    /// In place on a terminal, else lines.
    pub fn of(surroundings: &Surroundings) -> Self {
        if surroundings.interactive() { Self::Bar } else { Self::Lines }
    }
}

/// Shows progress. Dropping it removes what was drawn.
#[derive(Debug)]
pub struct Progress {
    shown: Shown,
    color: bool,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    Lines { due: Duration },
    Off,
}

impl Progress {
    /// Shows nothing before the first update.
    pub fn new(mode: ProgressMode, surroundings: &Surroundings) -> Self {
        let shown = match mode {
            ProgressMode::Bar => Shown::Bar(bar(ProgressDrawTarget::stderr())),
            ProgressMode::Lines => Shown::Lines { due: LINE_EVERY },
            ProgressMode::Off => Shown::Off,
        };
        Self { shown, color: surroundings.color() }
    }

    /// Shows `view`; `elapsed` is the time since the run began. May be called as often as one likes.
    pub fn update(&mut self, view: &ProgressView, elapsed: Duration) {
        match &mut self.shown {
            Shown::Bar(bar) => {
                let width = terminal_width().unwrap_or(DEFAULT_WIDTH);
                bar.set_message(render(view, Look { width, color: self.color }).join("\n"));
            }
            Shown::Lines { due } if elapsed >= *due => {
                *due = elapsed + LINE_EVERY;
                // Standard error may be closed; then nobody wants the line.
                let _ = writeln!(std::io::stderr(), "{}", plain_line(view));
            }
            Shown::Lines { .. } | Shown::Off => {}
        }
    }

    /// Prints a line without disturbing what is drawn; to be given to the log's terminal output for as long as this lives.
    pub fn printer(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let bar = match &self.shown {
            Shown::Bar(bar) => Some(bar.clone()),
            Shown::Lines { .. } | Shown::Off => None,
        };
        move |line| match &bar {
            Some(bar) if !bar.is_finished() => bar.println(line),
            _ => {
                // As above.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        }
    }

    /// Removes what was drawn, so that the summary can follow.
    pub fn finish(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        self.shown = Shown::Off;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The library only places our text and limits how often it is drawn; it lays nothing out.
fn bar(target: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").expect("the template is constant and tested");
    ProgressBar::with_draw_target(None, target).with_style(style)
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
    fn a_bar_takes_updates_lines_and_an_end_in_any_order() {
        let bar = bar(ProgressDrawTarget::hidden());
        let mut progress = Progress { shown: Shown::Bar(bar.clone()), color: false };
        let printer = progress.printer();
        progress.update(&ProgressView { total: Some(10), done: 3, ..Default::default() }, Duration::ZERO);
        assert!(bar.message().contains("3/10"), "{}", bar.message());
        printer("a line");
        progress.finish();
        assert!(bar.is_finished());
        progress.update(&ProgressView::default(), Duration::ZERO);
        progress.finish();
    }

    #[test]
    fn plain_lines_come_no_more_often_than_they_are_due() {
        let mut progress = Progress { shown: Shown::Lines { due: LINE_EVERY }, color: false };
        let due = |p: &Progress| match p.shown {
            Shown::Lines { due } => due,
            _ => panic!("no lines"),
        };
        progress.update(&ProgressView::default(), Duration::from_secs(9));
        assert_eq!(due(&progress), Duration::from_secs(10));
        progress.update(&ProgressView::default(), Duration::from_secs(25));
        assert_eq!(due(&progress), Duration::from_secs(35));
    }
}
