//! Failures of items grouped by their cause: the same stage, the same kind and the same text, but for what differs from item to item. Reads no file.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Causes that are told apart; failures of all further ones are counted together.
const MOST_CAUSES: usize = 1000;
/// Bytes of a text that causes are told apart by.
const COMPARED_BYTES: usize = 512;
/// Items of a cause that are known by their numbers.
const FIRST_ITEMS: usize = 4;

/// A line of `failures.jsonl`.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedFailure<'a> {
    #[serde(borrow)]
    pub item: Cow<'a, str>,
    pub index: u64,
    #[serde(borrow)]
    pub source: Cow<'a, str>,
    #[serde(borrow)]
    pub stage: Cow<'a, str>,
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub error: Cow<'a, str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCause {
    /// How many items failed so.
    pub items: u64,
    pub stage: String,
    /// As in `failures.jsonl`.
    pub kind: String,
    /// What was said of the first of them.
    pub error: String,
    /// The name of the first of them.
    pub item: String,
    /// The first of them: source, number and name. Not part of what is written.
    #[serde(skip)]
    pub first: Vec<(String, u64, String)>,
}

/// The causes of failures, as they come.
#[derive(Debug, Default)]
pub struct FailureCauses {
    causes: Vec<FailureCause>,
    by_key: HashMap<[String; 3], usize>,
    others: u64,
}

impl FailureCauses {
    pub fn add(&mut self, line: &RecordedFailure<'_>) {
        let RecordedFailure { item, index, source, stage, kind, error } = line;
        let text = |text: &Cow<'_, str>| text.clone().into_owned();
        let key = [text(stage), text(kind), same_for_all(error, item)];
        let at = match self.by_key.get(&key) {
            Some(at) => *at,
            None if self.causes.len() == MOST_CAUSES => {
                self.others += 1;
                return;
            }
            None => {
                let (stage, kind, error, item) = (text(stage), text(kind), text(error), text(item));
                self.by_key.insert(key, self.causes.len());
                self.causes.push(FailureCause { items: 0, stage, kind, error, item, first: Vec::new() });
                self.causes.len() - 1
            }
        };
        let cause = &mut self.causes[at];
        cause.items += 1;
        if cause.first.len() < FIRST_ITEMS {
            cause.first.push((text(source), *index, text(item)));
        }
    }

    /// All causes, the commonest first, and how many items have failed for further ones.
    pub fn commonest_first(mut self) -> (Vec<FailureCause>, u64) {
        self.causes.sort_by_key(|cause| std::cmp::Reverse(cause.items));
        (self.causes, self.others)
    }
}

/// What the text of a failure has in common with those of other items: without the name of its item, without numbers, and without what stands between
/// double quotes, which are values.
pub fn same_for_all(error: &str, item: &str) -> String {
    let error = &error[..error.floor_char_boundary(COMPARED_BYTES)];
    let named = without_name(error, item);
    let (mut same, mut rest) = (String::with_capacity(named.len()), &named[..]);
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => rest[1..].find('"').map_or(1, |end| end + 2),
            '0'..='9' => number(rest),
            _ => 0,
        };
        if length == 0 {
            same.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        // The sign is one of the number, unless a word or another number stands before it.
        if c != '"'
            && same.ends_with('-')
            && !same[..same.len() - 1].ends_with(|c: char| c.is_alphanumeric() || c == '…')
        {
            same.pop();
        }
        same.push('…');
        rest = &rest[length..];
    }
    same
}

/// Takes the name of an item out where it is a word by itself.
fn without_name(error: &str, item: &str) -> String {
    let is_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut without, mut from) = (String::with_capacity(error.len()), 0);
    for (at, name) in error.match_indices(item).filter(|(_, name)| !name.is_empty()) {
        let (before, after) = (&error[..at], &error[at + name.len()..]);
        if !is_of_word(before.chars().next_back()) && !is_of_word(after.chars().next()) {
            without.push_str(&error[from..at]);
            without.push('…');
            from = at + name.len();
        }
    }
    without.push_str(&error[from..]);
    without
}

/// Bytes of the number that a text begins with: digits with points, commas between thousands, and an exponent.
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 1;
    loop {
        match bytes.get(end) {
            Some(b'0'..=b'9') => end += 1,
            Some(b'.' | b',') if is_digit(end + 1) => end += 2,
            Some(b'e' | b'E') if is_digit(end + 1) => end += 2,
            Some(b'e' | b'E') if matches!(bytes.get(end + 1), Some(b'+' | b'-')) && is_digit(end + 2) => {
                end += 3;
            }
            _ => return end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_differ_by_their_item_and_its_numbers_are_one_cause() {
        for (one, item_of_one, other, item_of_other) in [
            ("KeyError: 'x' (st.py:6)", "a.png", "KeyError: 'x' (st.py:6)", "b.png"),
            ("`a.png` is cut off at byte 17", "a.png", "`b.png` is cut off at byte 40960", "b.png"),
            (
                "found -0.568, and a list of 1 is expected",
                "r[0]",
                "found 12, and a list of 1 is expected",
                "r[1]",
            ),
            ("value 1e-05 is too small", "a", "value 2.5E+7 is too small", "b"),
            ("it claims 1,000,000 pixels", "a", "it claims 12 pixels", "b"),
            ("`x` is \"seven\", and i64 is expected", "a", "`x` is \"\", and i64 is expected", "b"),
            ("line 7 of rows.csv", "rows.csv[6]", "line 8 of rows.csv", "rows.csv[7]"),
        ] {
            assert_eq!(same_for_all(one, item_of_one), same_for_all(other, item_of_other));
        }
    }

    #[test]
    fn texts_that_say_something_else_are_other_causes() {
        let texts = [
            "KeyError: 'x'",
            "KeyError: 'y'",
            "a list of 1",
            "found nan",
            "found inf",
            "open \"",
            "f32-64",
            "f-32",
        ];
        let same: std::collections::HashSet<String> =
            texts.iter().map(|text| same_for_all(text, "i")).collect();
        assert_eq!(same.len(), texts.len(), "{same:?}");
    }

    #[test]
    fn causes_are_counted_with_an_example_and_their_number_is_bounded() {
        let line = |stage: &'static str, error: String, item: String, index| RecordedFailure {
            item: item.into(),
            index,
            source: "s".into(),
            stage: stage.into(),
            kind: "model".into(),
            error: error.into(),
        };
        let mut causes = FailureCauses::default();
        causes.add(&line("read", "no such file".into(), "a".into(), 0));
        (0..7).for_each(|n| causes.add(&line("f", format!("row {n} is bad"), format!("item {n}"), n)));
        causes.add(&line("g", "row 1 is bad".into(), "b".into(), 0));
        let (found, others) = causes.commonest_first();
        let counted: Vec<_> = found
            .iter()
            .map(|cause| (cause.items, &cause.stage[..], &cause.error[..], &cause.item[..]))
            .collect();
        assert_eq!(counted[0], (7, "f", "row 0 is bad", "item 0"));
        let first: Vec<_> = (0..4).map(|n| ("s".to_owned(), n, format!("item {n}"))).collect();
        assert_eq!(found[0].first, first);
        assert_eq!((counted.len(), others), (3, 0));

        let mut many = FailureCauses::default();
        let word = |n: usize| n.to_string().bytes().map(|b| char::from(b - b'0' + b'a')).collect::<String>();
        (0..MOST_CAUSES + 7).for_each(|n| many.add(&line("f", word(n), "i".into(), 0)));
        let (found, others) = many.commonest_first();
        assert_eq!((found.len(), others), (MOST_CAUSES, 7));
    }
}
