//! The declaration of a key of a table. Reads no value.

use orchestra_core::Word;

/// A key of a table: parsing, `check`, the JSON Schema and the reference pages come from this declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub name: &'static str,
    /// What its value is, in a word or two.
    pub ty: &'static str,
    /// The least and the most that a number may be, or each of a list.
    pub range: Option<(u64, u64)>,
    /// The only texts that there may be; empty: any.
    pub words: &'static [Word],
    pub keys: &'static [Key],
    /// What it is where it is left out: a value, `required`, or a phrase.
    pub default: &'static str,
    /// What it is for. What its words say is not in here: see [`Key::meaning`].
    pub help: &'static str,
}

pub const fn key(name: &'static str, ty: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, ty, range: None, words: &[], keys: &[], default, help }
}

/// Declares the keys of tables: each with what it is for, what its value is in a word or two, and what holds where it is left out.
///
/// `#[range(least, most)]` bounds a number, `#[words(..)]` names the only texts that there may be, `#[table(..)]` the keys of a table.
#[macro_export]
macro_rules! keys {
    ($($(#[doc = $about:literal])* $vis:vis const $list:ident {$(
        $(#[doc = $help:literal])+
        $(#[range($least:expr, $most:expr)])?
        $(#[words($words:expr)])?
        $(#[table($keys:expr)])?
        $name:ident: $ty:literal = $default:literal
    ),* $(,)?})*) => {$(
        $(#[doc = $about])*
        $vis const $list: &[$crate::Key] = &[$(
            $crate::key(stringify!($name), $ty, $default, concat!($($help),+).trim_ascii_start())
                $(.from_to($least, $most))?
                $(.one_of($words))?
                $(.of($keys))?
        ),*];
    )*};
}

/// The keys of two lists, `N` in all.
pub const fn joined<const N: usize>(lists: [&[Key]; 2]) -> [Key; N] {
    let mut all = [key("", "", "", ""); N];
    let mut at = 0;
    while at < N {
        let n = lists[0].len();
        all[at] = if at < n { lists[0][at] } else { lists[1][at - n] };
        at += 1;
    }
    all
}

impl Key {
    /// Of a number, or of each of a list: its bounds, both of which may be.
    pub const fn from_to(self, least: u64, most: u64) -> Key {
        Key { range: Some((least, most)), ..self }
    }

    /// Of a text: the words that it may be.
    pub const fn one_of(self, words: &'static [Word]) -> Key {
        Key { words, ..self }
    }

    /// Of a table: the keys that it may have.
    pub const fn of(self, keys: &'static [Key]) -> Key {
        Key { keys, ..self }
    }

    /// What it is for, and, behind the first clause of that, what each of its words says.
    pub fn meaning(&self) -> String {
        let said = |word: &Word| match word.help {
            "" => format!("`\"{}\"`", word.text),
            help => format!("`\"{}\"`: {help}", word.text),
        };
        let words: Vec<String> = self.words.iter().map(said).collect();
        let words = match &words[..] {
            [] => return self.help.to_owned(),
            [before @ .., last]
                if !before.is_empty() && self.words.iter().all(|word| word.help.is_empty()) =>
            {
                format!("{} or {last}", before.join(", "))
            }
            words => words.join("; "),
        };
        match self.help.split_once("; ") {
            Some((first, more)) => format!("{first}: {words}; {more}"),
            None => format!("{}: {words}", self.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::Choice as _;

    use super::*;
    use crate::choices;

    choices! {
        pub enum Side {
            /// where the heart is
            Left = "left",
            Right = "right",
        }
    }

    #[test]
    fn a_word_stands_for_its_value_and_nothing_else_does() {
        assert_eq!(["left", "right", "Left"].map(Side::named), [Some(Side::Left), Some(Side::Right), None]);
        assert_eq!((Side::Right.name(), Side::ALL), ("right", &[Side::Left, Side::Right][..]));
    }

    #[test]
    fn a_meaning_names_all_words_with_what_they_say() {
        const PLAIN: [Word; 2] = [Word { text: "a", help: "" }, Word { text: "b", help: "" }];
        let of =
            |words: &'static [Word]| key("side", "text", "\"left\"", "which one").one_of(words).meaning();
        assert_eq!(of(Side::WORDS), "which one: `\"left\"`: where the heart is; `\"right\"`");
        assert_eq!(of(&PLAIN), "which one: `\"a\"` or `\"b\"`");
        assert_eq!(of(&PLAIN[..1]), "which one: `\"a\"`");
        assert_eq!(of(&[]), "which one");
        let more = key("side", "text", "\"left\"", "which one; of a body").one_of(&PLAIN).meaning();
        assert_eq!(more, "which one: `\"a\"` or `\"b\"`; of a body");
    }
}
