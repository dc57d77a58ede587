//! The part of the terminal that is drawn again and again: which bytes remove what was drawn and put something else there. Pure:
//! it writes nothing, and it knows no run.

/// A place on the terminal. Between two calls the cursor stands at the start of the last drawn line, so that what the terminal
/// echoes (`^C`) moves nothing, and the next call removes it too.
#[derive(Debug, Default)]
pub struct Screen {
    /// Columns of each line that stands there.
    drawn: Vec<usize>,
}

impl Screen {
    /// Bytes that put `lines` there, on a terminal that is now `columns` wide. `above` are whole lines that stay: they scroll away
    /// like any other output.
    pub fn draw(&mut self, above: &[String], lines: &[String], columns: usize) -> String {
        let mut out = self.erase(columns);
        for line in above {
            out.push_str(line);
            out.push_str("\r\n");
        }
        out.push_str(&lines.join("\r\n"));
        if !lines.is_empty() {
            out.push('\r');
        }
        self.drawn = lines.iter().map(|line| console::measure_text_width(line)).collect();
        out
    }

    /// Bytes that remove what stands there; the cursor is then where its first line began.
    pub fn erase(&mut self, columns: usize) -> String {
        let drawn = std::mem::take(&mut self.drawn);
        let Some((last, before_last)) = drawn.split_last() else { return String::new() };
        // A terminal that became narrower has broken the lines anew. The cursor stays with its line.
        let rows_of = |width: &usize| width.div_ceil(columns.max(1)).max(1);
        let rows: usize = before_last.iter().map(rows_of).sum();
        let below = if rows_of(last) > 1 { "\x1b[J" } else { "" };
        // Row by row: some terminals keep a copy of what one order removes from their first row on.
        format!("\r{below}\x1b[K{}", "\x1b[A\x1b[K".repeat(rows))
    }

    /// Something else wrote below: what stands there is no longer ours.
    pub fn forget(&mut self) {
        self.drawn.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|t| (*t).to_owned()).collect()
    }

    #[test]
    fn a_drawing_takes_the_place_of_the_one_before() {
        let mut screen = Screen::default();
        assert_eq!(screen.draw(&[], &lines(&["one", "two"]), 80), "one\r\ntwo\r");
        assert_eq!(screen.draw(&[], &lines(&["three"]), 80), "\r\x1b[K\x1b[A\x1b[Kthree\r");
        assert_eq!(screen.erase(80), "\r\x1b[K");
        assert_eq!(screen.erase(80), "");
    }

    #[test]
    fn lines_above_stay_and_the_drawing_follows_them() {
        let mut screen = Screen::default();
        screen.draw(&[], &lines(&["a", "b", "c"]), 80);
        let bytes = screen.draw(&lines(&["said"]), &lines(&["d"]), 80);
        assert_eq!(bytes, "\r\x1b[K\x1b[A\x1b[K\x1b[A\x1b[Ksaid\r\nd\r");
    }

    #[test]
    fn lines_that_a_narrower_terminal_broke_are_removed_as_a_whole() {
        let mut screen = Screen::default();
        screen.draw(&[], &lines(&[&"x".repeat(79), "", "\x1b[32mlast\x1b[0m"]), 80);
        assert_eq!(screen.erase(40), format!("\r\x1b[K{}", "\x1b[A\x1b[K".repeat(3)));
        screen.draw(&[], &lines(&[&"x".repeat(79)]), 80);
        assert_eq!(screen.erase(40), "\r\x1b[J\x1b[K");
    }

    #[test]
    fn what_was_forgotten_is_not_removed() {
        let mut screen = Screen::default();
        screen.draw(&[], &lines(&["a", "b"]), 80);
        screen.forget();
        assert_eq!(screen.draw(&[], &lines(&["c"]), 80), "c\r");
    }
}
