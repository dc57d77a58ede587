//! Enums of which each variant is a word of a workflow file. Reads no file.

/// A text that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// As written, without quotes.
    pub text: &'static str,
    /// What it says; empty where the word itself does.
    pub help: &'static str,
}

/// A setting that is one of several words. [`choices!`](crate::choices) declares them.
pub trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [Word];
    /// In the order of the words.
    const ALL: &'static [Self];

    /// As written in a file.
    fn name(self) -> &'static str {
        let at = Self::ALL.iter().position(|choice| *choice == self);
        at.map_or("", |at| Self::WORDS[at].text)
    }

    /// What a word stands for; `None` where it is none of them.
    fn named(text: &str) -> Option<Self> {
        Self::WORDS.iter().position(|word| word.text == text).map(|at| Self::ALL[at])
    }
}

/// Declares an enum of which each variant is a word of a file, with what the reference says of it; or says so `for` an enum that there is.
/// `#[default]` is that of `derive(Default)`.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $name:ident {$(
        $(#[doc = $help:literal])*
        $(#[default $(if $never:tt)?])?
        $choice:ident = $text:literal
    ),+ $(,)?}) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {$(
            $(#[doc = $help])*
            $(#[default $(if $never)?])?
            $choice,
        )+}

        $crate::choices! { for $name {$($(#[doc = $help])* $choice = $text),+} }
    };
    (for $name:ident {$(
        $(#[doc = $help:literal])*
        $choice:ident = $text:literal
    ),+ $(,)?}) => {
        impl $crate::Choice for $name {
            const WORDS: &'static [$crate::Word] =
                &[$($crate::Word { text: $text, help: concat!($($help),*).trim_ascii_start() }),+];
            const ALL: &'static [Self] = &[$(Self::$choice),+];
        }
    };
}
