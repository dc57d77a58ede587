//! Values in a text for `/bin/sh`. A plain value stands there as it is; any other one is given in a variable, and the text only names that, so no
//! value is ever read as a part of a command. It runs nothing.
//!
//! [`enclosing`] says where naming the variable would make no word of the value. It knows less of the language than a shell does: where it errs, the
//! word is a wrong one, and still none that runs, unless a command takes its words for numbers (`let`, `declare -i`).

use std::fmt;

/// Whether the shell takes a value for one word wherever it stands in a text, and for the same text between quotes.
pub(crate) fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c))
}

const VARIABLE: &str = "ORCHESTRA_VALUE_";

/// The variable with a value, by its number.
pub(crate) fn variable(number: usize) -> String {
    format!("{VARIABLE}{number}")
}

/// The word of a text that names a variable.
pub(crate) fn word(variable: &str) -> String {
    format!("\"${{{variable}}}\"")
}

/// What stands before the numbers of the part files of a sink, and the rest of their glob, which the shell is to expand; `None`: the value is no such
/// glob.
pub(crate) fn part_files(value: &str) -> Option<(&str, &str)> {
    let (stem, glob) = value.split_at(value.rfind("-*.")?);
    is_plain(&glob[3..]).then_some((stem, glob))
}

/// A text that names variables with their values between quotes, for people.
pub(crate) fn in_full(text: &str, variables: &[(String, String)]) -> String {
    let values = variables.iter().filter(|(name, _)| name.starts_with(VARIABLE));
    values.fold(text.to_owned(), |text, (name, value)| {
        text.replace(&word(name), &format!("'{}'", value.replace('\'', r"'\''")))
    })
}

/// What a value that is not plain cannot stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    Quotes,
    Backslash,
    HereDocument,
    /// `$((..))`, `((..))`, `$[..]`, `[[..]]`, `name[..]`, `${name:..}` and `${name[..]}`: bash, as `/bin/sh`, runs commands that stand in the text
    /// of a number.
    Arithmetic,
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quotes => "between quotes",
            Self::Backslash => "behind a backslash",
            Self::HereDocument => "in a here-document",
            Self::Arithmetic => "in arithmetic",
        })
    }
}

/// What is open at a place of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShellNesting {
    /// `(..)`
    Subshell,
    /// `$(..)`
    Substitution,
    Backquotes,
    SingleQuotes,
    DoubleQuotes,
    /// `${name-..}`, with a word
    Parameter,
    /// `${name:..}` and `${name[..]}`, with a number
    Offset,
    /// `$((..))` or `((..))`, with so many parentheses
    Arithmetic(usize),
    /// `$[..]`, `[[..]]` or `name[..]`, each bracket by itself
    Brackets,
}

impl ShellNesting {
    fn holds_commands(self) -> bool {
        matches!(self, Self::Subshell | Self::Substitution | Self::Backquotes)
    }
}

/// What the end of a text lies in; `None` where a word may stand.
pub(crate) fn enclosing(text: &str) -> Option<Within> {
    let mut reader = ShellReader { rest: text, open: Vec::new(), documents: Vec::new(), in_word: false };
    while !reader.rest.is_empty() {
        if let Err(within) = reader.step() {
            return Some(within);
        }
    }
    let innermost = reader.open.iter().rev().take_while(|open| !open.holds_commands());
    innermost.fold(None, |within, open| match open {
        ShellNesting::SingleQuotes | ShellNesting::DoubleQuotes => Some(Within::Quotes),
        ShellNesting::Offset | ShellNesting::Arithmetic(_) | ShellNesting::Brackets => {
            Some(within.unwrap_or(Within::Arithmetic))
        }
        _ => within,
    })
}

struct ShellReader<'a> {
    rest: &'a str,
    open: Vec<ShellNesting>,
    /// Here-documents that begin with the next line: the line that ends each, and whether tabs before it are left out.
    documents: Vec<(String, bool)>,
    /// The place is in the middle of a word, where `#` begins no comment.
    in_word: bool,
}

impl ShellReader<'_> {
    /// Whether the text goes on with this, which is passed then.
    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn push(&mut self, open: ShellNesting) {
        self.open.push(open);
        self.in_word = false;
    }

    fn pop(&mut self) {
        // `(a)# b` is a comment, and `$(a)#b` is a word.
        self.in_word = self.open.pop() != Some(ShellNesting::Subshell);
    }

    /// Passes what stands next; an error where the end of the text lies in it.
    fn step(&mut self) -> Result<(), Within> {
        let innermost = self.open.last().copied();
        if innermost == Some(ShellNesting::SingleQuotes) {
            let end = self.rest.find('\'').ok_or(Within::Quotes)?;
            self.rest = &self.rest[end + 1..];
            self.pop();
            return Ok(());
        }
        if self.takes("\\") {
            let escaped = self.rest.chars().next().ok_or(Within::Backslash)?;
            self.rest = &self.rest[escaped.len_utf8()..];
            self.in_word = true;
            return Ok(());
        }
        if self.takes("$((") {
            self.push(ShellNesting::Arithmetic(2));
        } else if self.takes("$[") {
            self.push(ShellNesting::Brackets);
        } else if self.takes("$(") {
            self.push(ShellNesting::Substitution);
        } else if self.takes("${") {
            let name = |c: char| c.is_ascii_alphanumeric() || "_@*#?!$".contains(c);
            self.rest = self.rest.trim_start_matches(name);
            let has_word =
                self.rest.strip_prefix(':').is_none_or(|rest| rest.starts_with(['-', '=', '?', '+']));
            let is_number = !has_word || self.rest.starts_with('[');
            self.push(if is_number { ShellNesting::Offset } else { ShellNesting::Parameter });
        } else {
            match innermost {
                Some(ShellNesting::DoubleQuotes) => self.quoted(),
                Some(
                    ShellNesting::Parameter
                    | ShellNesting::Offset
                    | ShellNesting::Arithmetic(_)
                    | ShellNesting::Brackets,
                ) => self.expanded(),
                _ => return self.command(),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn quoted(&mut self) {
        match self.next() {
            Some('"') => self.pop(),
            Some('`') => self.push(ShellNesting::Backquotes),
            _ => {}
        }
    }

    /// In `${..}`, `$((..))` and brackets.
    fn expanded(&mut self) {
        // Between double quotes an apostrophe is one.
        let is_quoted = self.open.contains(&ShellNesting::DoubleQuotes);
        match (self.next(), self.open.last_mut()) {
            (Some('}'), Some(ShellNesting::Parameter | ShellNesting::Offset)) => self.pop(),
            (Some('['), Some(ShellNesting::Brackets)) => self.push(ShellNesting::Brackets),
            (Some(']'), Some(ShellNesting::Brackets)) => self.pop(),
            (Some('('), Some(ShellNesting::Arithmetic(parentheses))) => *parentheses += 1,
            (Some(')'), Some(ShellNesting::Arithmetic(parentheses))) => {
                *parentheses -= 1;
                if *parentheses == 0 {
                    self.pop();
                }
            }
            (Some('\''), _) if !is_quoted => self.push(ShellNesting::SingleQuotes),
            (Some('"'), _) => self.push(ShellNesting::DoubleQuotes),
            (Some('`'), _) => self.push(ShellNesting::Backquotes),
            _ => {}
        }
    }

    fn command(&mut self) -> Result<(), Within> {
        if self.takes("((") {
            self.push(ShellNesting::Arithmetic(2));
            return Ok(());
        }
        if self.takes("<<<") {
            self.in_word = false;
            return Ok(());
        }
        if self.takes("<<") {
            return self.document();
        }
        let innermost = self.open.last().copied();
        match self.next() {
            Some('(') => self.push(ShellNesting::Subshell),
            Some('[') if self.in_word || self.rest.starts_with('[') => self.push(ShellNesting::Brackets),
            Some(')') if matches!(innermost, Some(ShellNesting::Subshell | ShellNesting::Substitution)) => {
                self.pop()
            }
            Some('`') if innermost == Some(ShellNesting::Backquotes) => self.pop(),
            Some('`') => self.push(ShellNesting::Backquotes),
            Some('\'') => self.push(ShellNesting::SingleQuotes),
            Some('"') => self.push(ShellNesting::DoubleQuotes),
            Some('#') if !self.in_word => {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            }
            Some('\n') => {
                self.in_word = false;
                return self.documents();
            }
            Some(c) => self.in_word = !(c.is_whitespace() || ";&|)<>".contains(c)),
            None => {}
        }
        Ok(())
    }

    /// Behind `<<`: the line that will end the document.
    fn document(&mut self) -> Result<(), Within> {
        let has_tabs = self.takes("-");
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        let (mut end, mut quotes) = (String::new(), None);
        loop {
            // A value within it is a part of no document that is known here.
            let c = self.rest.chars().next().ok_or(Within::HereDocument)?;
            if quotes.is_none() && (c.is_whitespace() || ";&|()<>`".contains(c)) {
                break;
            }
            self.next();
            match (c, quotes) {
                ('\\', None) => end.extend(self.next()),
                ('\'' | '"', None) => quotes = Some(c),
                (c, Some(open)) if c == open => quotes = None,
                (c, _) => end.push(c),
            }
        }
        self.documents.push((end, has_tabs));
        self.in_word = false;
        Ok(())
    }

    /// At the beginning of a line: passes the documents that begin there.
    fn documents(&mut self) -> Result<(), Within> {
        for (end, has_tabs) in std::mem::take(&mut self.documents) {
            loop {
                let (line, rest) = self.rest.split_once('\n').ok_or(Within::HereDocument)?;
                self.rest = rest;
                if (if has_tabs { line.trim_start_matches('\t') } else { line }) == end {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_part_files_are_left_to_the_shell_and_nothing_else_is() {
        for (value, parts) in [
            ("/out/rows-*.parquet", Some(("/out/rows", "-*.parquet"))),
            ("/my out/a-*.b-*.tar", Some(("/my out/a-*.b", "-*.tar"))),
            ("/out/rows.jsonl", None),
            ("/out/*.jsonl", None),
            ("/out/rows-*.$(x)", None),
        ] {
            assert_eq!(part_files(value), parts, "{value}");
        }
    }

    #[test]
    fn a_place_is_told_by_what_is_open_there() {
        use Within::{Arithmetic, Backslash, HereDocument, Quotes};
        for (text, within) in [
            ("", None),
            ("a ", None),
            ("a 'b' \"c\"", None),
            ("a 'b", Some(Quotes)),
            ("a \"b", Some(Quotes)),
            ("a \"b\\\"", Some(Quotes)),
            ("a \\", Some(Backslash)),
            ("a \"\\", Some(Backslash)),
            ("a 'b\\", Some(Quotes)),
            ("a 'b\\' ", None),
            ("a \\' ", None),
            ("# don't\na ", None),
            ("# don't\na '", Some(Quotes)),
            ("# don't ", None),
            ("a#b 'c", Some(Quotes)),
            ("a \"$(b#c)#d", Some(Quotes)),
            ("(a)# don't\nb ", None),
            ("a \"$(b ", None),
            ("a \"$(b \"", Some(Quotes)),
            ("a \"$(b \"c\") ", Some(Quotes)),
            ("a `b ", None),
            ("a `b` '", Some(Quotes)),
            ("a \"`b ", None),
            ("a ${b:-", None),
            ("a ${b#", None),
            ("a ${#b} ", None),
            ("a ${b:", Some(Arithmetic)),
            ("a ${b:1:", Some(Arithmetic)),
            ("a ${b[", Some(Arithmetic)),
            ("a ${b[1]} ", None),
            ("a \"${b:-", Some(Quotes)),
            ("a \"${b:-it's}\" ", None),
            ("a $((", Some(Arithmetic)),
            ("a $((1 + (2) * ", Some(Arithmetic)),
            ("a $((${b:-", Some(Arithmetic)),
            ("a $((1 + (2))) ", None),
            ("a $((1 + $(b ", None),
            ("((", Some(Arithmetic)),
            ("cat <<EOF\n", Some(HereDocument)),
            ("cat <<EOF >", None),
            ("cat <<EOF\nit's\nEOF\n", None),
            ("cat <<EOF\n EOF\n", Some(HereDocument)),
            ("cat <<-'E F'\n\tit's\n\tE F\na ", None),
            ("cat << \\EOF | b '", Some(Quotes)),
            ("cat <<A <<B\nA\n", Some(HereDocument)),
            ("cat <<A <<B\nA\nB\na ", None),
            ("cat <<", Some(HereDocument)),
            ("cat <<E", Some(HereDocument)),
            ("cat <<< ", None),
            ("case a in b) c ", None),
            ("f() { a ", None),
        ] {
            assert_eq!(enclosing(text), within, "{text}");
        }
    }
}
