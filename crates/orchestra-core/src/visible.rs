//! Words of files, models and programs, where people read them: nothing in them steers a terminal, or makes one name look like another.

use std::borrow::Cow;

/// Whether the character moves, hides or turns what is beside it: control characters, line separators, those of no width, and those that turn
/// the direction of what follows.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text with such characters spelled out, but for the ends of lines.
pub fn visible(text: &str) -> Cow<'_, str> {
    spelled_out(text, |c| c != '\n' && steers(c))
}

/// As [`visible`], with the ends of lines spelled out, too.
pub fn visible_in_line(text: &str) -> Cow<'_, str> {
    spelled_out(text, steers)
}

fn spelled_out(text: &str, which: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&which) {
        return text.into();
    }
    let shown = |c: char| if which(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}
