//! `kind = "range"`: whole numbers, one item each, of no file.

use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::FetchRun;
use orchestra_plan::{
    ItemSchema, Items, ReadOptions, Reported, SourceContext, Spanned, TypedSource, settings,
};
use orchestra_store::{Found, ListError, PushFound};

use super::reading::limits::MOST_ITEMS;
use super::reading::locator::{locator, parts};

const COLUMN: &str = "n";

settings! {
    pub struct Range {
        /// the first number
        start: i64 = 0,
        /// where it ends; this number is none of them
        #[missing("say where it ends: stop = 1000 gives the numbers 0 to 999")]
        stop: Spanned<i64>,
        /// from one number to the next; not 0
        step: Spanned<i64> = 1,
    }
}

impl TypedSource for Range {
    const NAME: &'static str = "range";
    const ABOUT: &'static str = "Whole numbers from `start` to below `stop`, as the scalar `n` of i64; an item is called by its number. It reads no file.";
    const HAS_FILES: bool = false;
    type Items = RangeItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, RangeItems), Reported> {
        let (fields, Range { start, stop, step }) = (&mut source.fields, self);
        if step.value == 0 {
            return fields.bad("step", step.span, "must not be 0").fail();
        }
        let numbers = RangeItems { start, stop: stop.value, step: step.value };
        let n = numbers.count();
        if n == 0 {
            let reason = format!("leaves no number: it goes from {start} in steps of {}", step.value);
            return fields.bad("stop", stop.span, &reason).help("the numbers end before `stop`").fail();
        }
        if n > u128::from(MOST_ITEMS) {
            let reason = format!("gives {n} items, and a source has at most {MOST_ITEMS}");
            return fields.bad("stop", stop.span, &reason).fail();
        }
        source.n_items = u64::try_from(n).ok();
        let gives = Schema::of(COLUMN, ColumnType::Tensor(fixed_tensor(COLUMN, DType::I64, &[])));
        // An item is its number, whatever the others are: a run goes on with a later `stop`.
        let settings = serde_json::json!({ "kind": Self::NAME });
        Ok((ItemSchema { gives, settings, decoders: None }, numbers))
    }
}

#[derive(Debug, Clone, Copy, Encode, Decode)]
pub struct RangeItems {
    start: i64,
    stop: i64,
    /// Not 0.
    step: i64,
}

impl RangeItems {
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

impl Items for RangeItems {
    fn list(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let numbers = (0..).map_while(|at| Some((at, self.get(at)?)));
        for (at, number) in numbers {
            push(Found::Item(&number.to_string(), &locator(Path::new(""), &[at])))?;
        }
        Ok(())
    }

    fn start(&self, _: &ReadOptions) -> Box<dyn FetchRun> {
        Box::new(RangeFetch { numbers: *self, bytes: [0; 8] })
    }
}

struct RangeFetch {
    numbers: RangeItems,
    bytes: [u8; 8],
}

impl FetchRun for RangeFetch {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        let (_, at) = parts(locator, 1)?;
        let number = self.numbers.get(at[0]);
        self.bytes = number
            .ok_or_else(|| ItemError::result("the range has no such number; this is a bug"))?
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
            let numbers = RangeItems { start, stop, step };
            let mut expected = Vec::new();
            let mut n = i128::from(start);
            while (step > 0 && n < i128::from(stop)) || (step < 0 && n > i128::from(stop)) {
                expected.push(i64::try_from(n).unwrap());
                n += i128::from(step);
            }
            let (items, _) = listed(&numbers, Path::new("")).unwrap();
            assert_eq!(items.len(), expected.len());
            let mut run = numbers.start(&ReadOptions::default());
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
            assert_eq!(RangeItems { start, stop, step }.count(), 0);
        }
        assert_eq!(RangeItems { start: i64::MIN, stop: i64::MAX, step: 1 }.count(), u128::from(u64::MAX));
    }
}
