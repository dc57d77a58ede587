//! Where the command runs: terminal or pipe, colours or none. Reads the environment once; draws nothing.

use std::io::IsTerminal as _;

/// What matters of the surroundings for what is printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub stderr_is_terminal: bool,
    pub term: Option<String>,
    pub no_color: Option<String>,
}

impl Surroundings {
    pub fn detect() -> Self {
        Self {
            stderr_is_terminal: std::io::stderr().is_terminal(),
            term: std::env::var("TERM").ok(),
            no_color: std::env::var("NO_COLOR").ok(),
        }
    }

    /// A terminal on which lines can be drawn again.
    pub fn interactive(&self) -> bool {
        self.stderr_is_terminal && self.term.as_deref().is_some_and(|t| !t.is_empty() && t != "dumb")
    }

    /// Colours are wanted: <https://no-color.org>, where an empty `NO_COLOR` counts as none.
    pub fn color(&self) -> bool {
        self.interactive() && self.no_color.as_deref().is_none_or(str::is_empty)
    }
}

/// Rows and columns of the terminal behind standard error, if it is one that knows.
pub fn terminal_size() -> Option<(usize, usize)> {
    let (rows, columns) = console::Term::stderr().size_checked()?;
    (rows > 0 && columns > 0).then(|| (usize::from(rows), usize::from(columns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_real_terminal_without_no_color_gets_colours() {
        let terminal = Surroundings { stderr_is_terminal: true, term: Some("xterm".into()), no_color: None };
        assert!(terminal.interactive() && terminal.color());
        let no_color = Surroundings { no_color: Some("1".into()), ..terminal.clone() };
        assert!(no_color.interactive() && !no_color.color());
        let empty = Surroundings { no_color: Some(String::new()), ..terminal.clone() };
        assert!(empty.color());
        let dumb = Surroundings { term: Some("dumb".into()), ..terminal.clone() };
        assert!(!dumb.interactive() && !dumb.color());
        assert!(!Surroundings::default().interactive());
    }
}
