//! The declaration of a key of a table. Reads no value.

/// A key of a table: parsing, `check`, the JSON Schema and the reference pages come from this declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As written.
    pub name: &'static str,
    /// What its value is, in a word or two.
    pub ty: &'static str,
    /// The least and the most that an integer may be, or each of a list.
    pub range: Option<(u64, u64)>,
    /// The only texts that there may be; empty: any.
    pub words: &'static [Word],
    /// The keys of a table.
    pub keys: &'static [Key],
    /// What it is where it is left out: a value, `required`, or a phrase.
    pub default: &'static str,
    /// What it is for. What its words say is not in here: see [`Key::meaning`].
    pub help: &'static str,
}

/// A text that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// As written, without quotes.
    pub text: &'static str,
    /// What it says; empty where the word itself does.
    pub help: &'static str,
}

/// All words of a key, each with the value that it stands for: `words` are declared with the key ([`Key::one_of`]), values are what
/// [`Fields::word`](crate::Fields::word) gives.
#[derive(Debug, Clone, Copy)]
pub struct Words<T: 'static, const N: usize> {
    /// In the order in which they are shown.
    pub words: [Word; N],
    values: [T; N],
}

#[must_use]
pub const fn key(name: &'static str, ty: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, ty, range: None, words: &[], keys: &[], default, help }
}

impl Key {
    /// Of an integer, or of each of a list: its bounds, both of which may be.
    #[must_use]
    pub const fn from_to(self, least: u64, most: u64) -> Key {
        Key { range: Some((least, most)), ..self }
    }

    /// Of a text: the words that it may be.
    #[must_use]
    pub const fn one_of(self, words: &'static [Word]) -> Key {
        Key { words, ..self }
    }

    /// Of a table: the keys that it may have.
    #[must_use]
    pub const fn of(self, keys: &'static [Key]) -> Key {
        Key { keys, ..self }
    }

    /// What it is for, and, behind the first clause of that, what each of its words says.
    #[must_use]
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

impl<T: Copy, const N: usize> Words<T, N> {
    /// Of words with their values and what they say.
    #[must_use]
    pub const fn new(rows: [(&'static str, T, &'static str); N]) -> Self {
        let mut words = [Word { text: "", help: "" }; N];
        let mut values = [rows[0].1; N];
        let mut at = 0;
        while at < N {
            words[at] = Word { text: rows[at].0, help: rows[at].2 };
            values[at] = rows[at].1;
            at += 1;
        }
        Self { words, values }
    }

    /// What a word stands for; `None` where it is none of these.
    pub fn value(&self, text: &str) -> Option<T> {
        self.words.iter().position(|word| word.text == text).map(|at| self.values[at])
    }

    /// What the first of them stands for.
    pub fn first(&self) -> T {
        self.values[0] // `new` takes no fewer.
    }

    /// All that there are, in their order.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.values.iter().copied()
    }

    /// The word for a value; empty where there is none.
    pub fn text(&self, value: T) -> &'static str
    where
        T: PartialEq,
    {
        self.values.iter().position(|known| *known == value).map_or("", |at| self.words[at].text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: Words<bool, 2> = Words::new([("left", false, "where the heart is"), ("right", true, "")]);

    #[test]
    fn a_word_stands_for_its_value_and_nothing_else_does() {
        assert_eq!(
            [SIDES.value("left"), SIDES.value("right"), SIDES.value("Left")],
            [Some(false), Some(true), None]
        );
        assert_eq!((SIDES.text(true), SIDES.values().collect::<Vec<_>>()), ("right", vec![false, true]));
    }

    #[test]
    fn a_meaning_names_all_words_with_what_they_say() {
        const PLAIN: [Word; 2] = [Word { text: "a", help: "" }, Word { text: "b", help: "" }];
        let of =
            |words: &'static [Word]| key("side", "text", "\"left\"", "which one").one_of(words).meaning();
        assert_eq!(of(&SIDES.words), "which one: `\"left\"`: where the heart is; `\"right\"`");
        assert_eq!(of(&PLAIN), "which one: `\"a\"` or `\"b\"`");
        assert_eq!(of(&PLAIN[..1]), "which one: `\"a\"`");
        assert_eq!(of(&[]), "which one");
        let more = key("side", "text", "\"left\"", "which one; of a body").one_of(&PLAIN).meaning();
        assert_eq!(more, "which one: `\"a\"` or `\"b\"`; of a body");
    }
}
