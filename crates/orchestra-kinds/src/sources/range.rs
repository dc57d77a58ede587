//! `kind = "range"`: whole numbers, one item each, of no file.

use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Fetch, FetchRun, KindSettings, Opens};
use orchestra_plan::tree::Value as Toml;
use orchestra_plan::{At, Fields, Key, SourceConnected, SourceContext, SourceKind, key};
use orchestra_store::{Expand, Found, ListError, PushFound};

use super::reading::limits::MOST_ITEMS;
use super::reading::locator::{file_of, locator, parts};

pub struct Range;

const COLUMN: &str = "n";

const KEYS: [Key; 3] = [
    key("start", "integer", "0", "the first number"),
    key("stop", "integer", "required", "where it ends; this number is none of them"),
    key("step", "integer, not 0", "1", "from one number to the next"),
];

impl SourceKind for Range {
    fn name(&self) -> &'static str {
        "range"
    }

    fn about(&self) -> &'static str {
        "Whole numbers from `start` to below `stop`, as the scalar `n` of i64; an item is called by its number. It reads no file."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn has_files(&self) -> bool {
        false
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let fields = &mut source.fields;
        let start = integer(fields, "start", 0)?;
        let step = integer(fields, "step", 1)?;
        if fields.entry("stop").is_none() {
            fields.missing("stop", "say where it ends: stop = 1000 gives the numbers 0 to 999");
            return None;
        }
        let stop = integer(fields, "stop", 0)?;
        if step.value == 0 {
            fields.bad("step", step.span, "must not be 0");
            return None;
        }
        let numbers = Numbers { start: start.value, stop: stop.value, step: step.value };
        let n = numbers.count();
        if n == 0 {
            let reason = format!("leaves no number: it goes from {} in steps of {}", start.value, step.value);
            fields.bad("stop", stop.span, &reason).help("the numbers end before `stop`");
            return None;
        }
        if n > u128::from(MOST_ITEMS) {
            fields.bad("stop", stop.span, &format!("gives {n} items, and a source has at most {MOST_ITEMS}"));
            return None;
        }
        source.n_items = u64::try_from(n).ok();
        let numbers = Arc::new(numbers);
        Some(SourceConnected {
            gives: Schema::of(COLUMN, ColumnType::Tensor(fixed_tensor(COLUMN, DType::I64, &[]))),
            fetch: Arc::clone(&numbers) as Arc<dyn Fetch>,
            expand: Some(numbers),
            names_repeat: false,
            // An item is its number, whatever the others are: a run goes on with a later `stop`.
            settings: serde_json::json!({ "kind": "range" }),
            decoders: None,
        })
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(settings.read::<Numbers>()?))
    }
}

/// A whole number of either sign. `None` after an error.
fn integer(fields: &mut Fields<'_, '_>, key: &str, default: i64) -> Option<At<i64>> {
    let Some(entry) = fields.entry(key) else { return Some(At::new(default, fields.span)) };
    let Toml::Integer(n) = entry.node.value else {
        fields.wrong(key, &entry.node, "a whole number");
        return None;
    };
    Some(At::new(n, entry.node.span))
}

#[derive(Debug, Clone, Copy, Encode, Decode)]
struct Numbers {
    start: i64,
    stop: i64,
    /// Not 0.
    step: i64,
}

impl Numbers {
    fn count(self) -> u128 {
        let way = i128::from(self.stop) - i128::from(self.start);
        let is_forward = (way > 0) == (self.step > 0);
        if way == 0 || !is_forward {
            return 0;
        }
        way.unsigned_abs().div_ceil(u128::from(self.step.unsigned_abs()))
    }

    /// Number `at`, if there are so many.
    fn get(self, at: u64) -> Option<i64> {
        let n = i128::from(self.start) + i128::from(self.step) * i128::from(at);
        (u128::from(at) < self.count()).then(|| i64::try_from(n).ok()).flatten()
    }
}

impl Expand for Numbers {
    fn expand(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let numbers = (0..).map_while(|at| Some((at, self.get(at)?)));
        for (at, number) in numbers {
            push(Found::Item(&number.to_string(), &locator(Path::new(""), &[at])))?;
        }
        Ok(())
    }
}

impl Fetch for Numbers {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(Number { numbers: *self, bytes: [0; 8] })
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Range.name(), self)
    }

    fn opens(&self) -> Opens {
        Opens::OfItems(file_of)
    }
}

struct Number {
    numbers: Numbers,
    bytes: [u8; 8],
}

impl FetchRun for Number {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let (_, at) = parts(locator, 1)?;
        let number = self.numbers.get(at[0]);
        self.bytes = number
            .ok_or_else(|| Refusal::result("the range has no such number; this is a bug"))?
            .to_ne_bytes();
        Ok(8)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        show(&[Value::Tensor(TensorView { name: COLUMN, dtype: DType::I64, shape: &[], data: &self.bytes })]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::reading::tests::listed;

    #[test]
    fn the_numbers_are_those_of_a_loop_and_are_read_in_any_order() {
        for (start, stop, step) in
            [(0, 5, 1), (3, 11, 4), (3, 12, 4), (2, -7, -3), (i64::MAX - 2, i64::MAX, 1)]
        {
            let numbers = Numbers { start, stop, step };
            let mut expected = Vec::new();
            let mut n = i128::from(start);
            while (step > 0 && n < i128::from(stop)) || (step < 0 && n > i128::from(stop)) {
                expected.push(i64::try_from(n).unwrap());
                n += i128::from(step);
            }
            let (items, _) = listed(&numbers, Path::new("")).unwrap();
            assert_eq!(items.len(), expected.len());
            let mut run = numbers.start();
            for (n, (name, locator)) in expected.iter().zip(&items).rev() {
                run.fetch(locator).unwrap();
                run.with_row(&mut |row| {
                    let [Value::Tensor(view)] = row else { panic!("not a tensor") };
                    assert_eq!((view.data, name), (&n.to_ne_bytes()[..], &n.to_string()));
                });
            }
            assert!(run.fetch(&locator(Path::new(""), &[expected.len() as u64])).is_err());
        }
        for (start, stop, step) in [(0, 0, 1), (5, 0, 1), (0, 5, -1)] {
            assert_eq!(Numbers { start, stop, step }.count(), 0);
        }
        assert_eq!(Numbers { start: i64::MIN, stop: i64::MAX, step: 1 }.count(), u128::from(u64::MAX));
    }
}
