//! The settings of a table as a typed struct, declared once: its keys, how they are read, and their form in JSON follow from the declaration.
//! Knows no table by name.

use std::num::NonZeroU64;
use std::time::Duration;

use orchestra_core::kernel::Grid;
use orchestra_core::tasks::Goal;
use orchestra_core::{Channels, ConvSearch, DType, Fit, Layout, ResizeFilter, SandboxMode, Word};
use serde_json::Value as Json;

use crate::bytes::parse_bytes;
use crate::fields::{Fields, NamedTexts, Spanned};
use crate::key::{Key, key};
use crate::plan::{LogFormat, OtlpProtocol};

/// The settings of a table. [`settings!`](crate::settings) implements it.
pub trait Settings: Sized {
    /// What the table may hold.
    const KEYS: &'static [Key];

    /// Reads a table; all that is wrong is reported. `None`: something that has no default is missing or wrong.
    fn read(fields: &mut Fields<'_, '_>) -> Option<Self>;

    /// An object: each setting by its key.
    fn json(&self) -> Json;
}

/// The type of a setting.
pub trait Setting: Sized {
    /// What the reference calls it.
    const TYPE: &'static str;
    /// The only texts that it may be; empty: any, or it is no text.
    const WORDS: &'static [Word] = &[];
    /// The keys that it has, where it is a table.
    const TABLE: &'static [Key] = &[];
    /// What the reference says of a key without a default.
    const LEFT_OUT: &'static str = "required";

    /// The value of a key. `None` where it is left out, or wrong and reported.
    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self>;

    /// What the text of a declared default says, for a table that leaves it out. `None`: it can have none.
    fn of_default(text: &str, fields: &Fields<'_, '_>) -> Option<Self> {
        let _ = (text, fields);
        None
    }

    /// As [`Settings::json`] has it.
    fn json(&self) -> Json {
        Json::Null
    }
}

pub const fn setting<T: Setting>(name: &'static str, default: &[&'static str], help: &'static str) -> Key {
    let default = match default {
        [default, ..] => default,
        [] => T::LEFT_OUT,
    };
    key(name, T::TYPE, default, help.trim_ascii_start()).one_of(T::WORDS).of(T::TABLE)
}

impl Fields<'_, '_> {
    /// The value of a key. `None` where it is left out, or wrong and reported.
    pub fn get<T: Setting>(&mut self, key: &str) -> Option<T> {
        T::read(self, key)
    }

    /// The value of a key; where it is left out, or wrong and reported, its declared default, or none of its type at all.
    pub fn value<T: Setting + Default>(&mut self, key: &str) -> T {
        T::read(self, key).or_else(|| self.default_of(key)).unwrap_or_default()
    }

    /// The value of a key; where it is left out, or wrong and reported, its declared default. `None` where it has none; that it is missing
    /// is then reported, with `missing` to say what to write.
    pub fn setting<T: Setting>(&mut self, key: &str, missing: &str) -> Option<T> {
        let value = T::read(self, key).or_else(|| self.default_of(key));
        if value.is_none() && self.entry(key).is_none() {
            let help = self.declared(key).map_or("", |key| key.help);
            self.missing(key, if missing.is_empty() { help } else { missing });
        }
        value
    }

    /// What the key is declared to be where it is left out.
    fn default_of<T: Setting>(&self, key: &str) -> Option<T> {
        let default = self.declared(key).map_or("", |key| key.default.trim_matches('"'));
        (default != "required").then(|| T::of_default(default, self)).flatten()
    }
}

/// Declares the settings of a table: each with what the reference says of it, its type and its default.
///
/// `= value` is the default of a key that is left out. `=> "words"` says what holds then, of an `Option` or a list. A key with neither is required.
/// `#[range(least, most)]` bounds a number; `#[missing("..")]` says what to write where a required key is missing. What follows `;` is no key.
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* pub struct $name:ident {$(
        $(#[doc = $help:literal])+
        $(#[serde($($serde:tt)*)])?
        $(#[range($least:expr, $most:expr)])?
        $(#[missing($missing:literal)])?
        $field:ident: $ty:ty $(= $default:literal)? $(=> $left_out:literal)?
    ),* $(,)? $(; $(#[$about:meta])* $other:ident: $other_ty:ty)?}) => {
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[doc = $help])+
                $(#[serde($($serde)*)])?
                pub $field: $ty,
            )*
            $($(#[$about])* pub $other: $other_ty)?
        }

        impl $crate::Settings for $name {
            const KEYS: &'static [$crate::Key] = &[$(
                $crate::setting::<$ty>(
                    stringify!($field),
                    &[$(stringify!($default))? $($left_out)?],
                    concat!($($help),+),
                )$(.from_to($least, $most))?
            ),*];

            fn read(fields: &mut $crate::Fields<'_, '_>) -> Option<Self> {
                let _ = &fields;
                $(let $field = fields.setting::<$ty>(stringify!($field), concat!($($missing)?));)*
                Some(Self { $($field: $field?,)* $($other: <$other_ty>::default())? })
            }

            fn json(&self) -> $crate::Json {
                let settings: &[(&str, $crate::Json)] =
                    &[$((stringify!($field), $crate::Setting::json(&self.$field))),*];
                settings.iter().cloned().collect()
            }
        }
    };
}

/// Declares an enum of which each variant is a word of a file, with what the reference says of it.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $name:ident $words:tt) => {
        $crate::declare_choices! { $(#[$meta])* pub enum $name $words }
        $crate::choice_settings! { $name }
    };
}

/// Makes settings of enums of words.
#[macro_export]
macro_rules! choice_settings {
    ($($name:ty),+) => {
        $(impl $crate::Setting for $name {
            const TYPE: &'static str = "text";
            const WORDS: &'static [$crate::Word] = <$name as $crate::Choice>::WORDS;

            fn read(fields: &mut $crate::Fields<'_, '_>, key: &str) -> Option<Self> {
                fields.choice(key)
            }

            fn of_default(text: &str, _: &$crate::Fields<'_, '_>) -> Option<Self> {
                $crate::Choice::named(text)
            }

            fn json(&self) -> $crate::Json {
                $crate::Choice::name(*self).into()
            }
        })+
    };
}

choice_settings! {
    Channels, ConvSearch, DType, Fit, Goal, Grid, Layout, LogFormat, OtlpProtocol, ResizeFilter, SandboxMode
}

/// It may be left out, and has no default.
impl<T: Setting> Setting for Option<T> {
    const TYPE: &'static str = T::TYPE;
    const WORDS: &'static [Word] = T::WORDS;
    const TABLE: &'static [Key] = T::TABLE;
    const LEFT_OUT: &'static str = "none";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        T::read(fields, key).map(Some)
    }

    fn of_default(_: &str, _: &Fields<'_, '_>) -> Option<Self> {
        Some(None)
    }

    fn json(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::json)
    }
}

/// With its place: that of the table where it is left out.
impl<T: Setting> Setting for Spanned<T> {
    const TYPE: &'static str = T::TYPE;
    const WORDS: &'static [Word] = T::WORDS;
    const TABLE: &'static [Key] = T::TABLE;
    const LEFT_OUT: &'static str = T::LEFT_OUT;

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let span = fields.entry(key)?.node.span;
        T::read(fields, key).map(|value| Spanned::new(value, span))
    }

    fn of_default(text: &str, fields: &Fields<'_, '_>) -> Option<Self> {
        T::of_default(text, fields).map(|value| Spanned::new(value, fields.span))
    }

    fn json(&self) -> Json {
        self.value.json()
    }
}

/// A list, or a single one.
impl Setting for Vec<Spanned<String>> {
    const TYPE: &'static str = "text or list";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        fields.strings(key)
    }

    fn of_default(_: &str, _: &Fields<'_, '_>) -> Option<Self> {
        Some(Vec::new())
    }

    fn json(&self) -> Json {
        self.iter().map(|text| &*text.value).collect()
    }
}

impl Setting for NamedTexts {
    const TYPE: &'static str = "table";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        fields.texts(key, [&format!("a table: {key} = {{ name = \"..\" }}"), "is empty", "a text in quotes"])
    }

    fn json(&self) -> Json {
        self.0.iter().map(|(name, text)| (&*name.value, &*text.value)).collect()
    }
}

impl Setting for [f64; 2] {
    const TYPE: &'static str = "two numbers";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let numbers = fields.numbers(key)?;
        let pair = numbers.value[..].try_into().ok();
        if pair.is_none() {
            fields.bad(key, numbers.span, "is not two numbers").help(format!("write {key} = [0.0, 1.0]"));
        }
        pair
    }

    fn json(&self) -> Json {
        self.as_slice().into()
    }
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bytes(pub u64);

macro_rules! plain_settings {
    ($($ty:ty: $name:literal, $fields:ident, $key:ident => $read:expr, $text:ident => $of_default:expr, $value:ident => $json:expr;)*) => {
        $(impl Setting for $ty {
            const TYPE: &'static str = $name;

            fn read($fields: &mut Fields<'_, '_>, $key: &str) -> Option<Self> {
                $read
            }

            fn of_default($text: &str, _: &Fields<'_, '_>) -> Option<Self> {
                $of_default
            }

            fn json(&self) -> Json {
                let $value = self;
                $json.into()
            }
        })*
    };
}

plain_settings! {
    f64: "number", f, key => f.number(key).map(|n| n.value), text => text.parse().ok(), n => *n;
    i64: "integer", f, key => f.whole_number(key), text => text.parse().ok(), n => *n;
    u64: "integer", f, key => f.integer(key).map(|n| n.value), text => text.parse().ok(), n => *n;
    u32: "integer", f, key => f.integer(key)?.value.try_into().ok(), text => text.parse().ok(), n => *n;
    usize: "integer", f, key => f.integer(key)?.value.try_into().ok(), text => text.parse().ok(), n => *n;
    u8: "integer", f, key => f.integer(key)?.value.try_into().ok(), text => text.parse().ok(), n => *n;
    bool: "true or false", f, key => f.boolean(key), text => text.parse().ok(), is => *is;
    String: "text", f, key => f.string(key).map(|text| text.value), text => Some(text.to_owned()), text => text.as_str();
    NonZeroU64: "memory", f, key => more_than_nothing(f, key), text => parse_bytes(text).and_then(Self::new), bytes => bytes.get();
    Bytes: "memory", f, key => f.bytes(key).map(|bytes| Bytes(bytes.value)), text => parse_bytes(text).map(Bytes), bytes => bytes.0;
    Duration: "duration", f, key => f.duration(key), text => humantime::parse_duration(text).ok(), time => time.as_secs_f64();
}

/// An amount of memory that is not 0.
fn more_than_nothing(f: &mut Fields<'_, '_>, key: &str) -> Option<NonZeroU64> {
    let bytes = f.bytes(key)?;
    let some = NonZeroU64::new(bytes.value);
    if some.is_none() {
        f.bad(key, bytes.span, "must be more than nothing");
    }
    some
}
