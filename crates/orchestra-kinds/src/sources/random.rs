//! `kind = "random"`: tensors of random numbers, one item each, of no file. The numbers of an item depend on its number and the seed alone.

use std::f64::consts::TAU;
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use half::f16;
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::FetchRun;
use orchestra_core::{DType, MAX_RANK};
use orchestra_plan::{
    ItemSchema, Items, ReadOptions, Reported, SourceContext, Spanned, TypedSource, choices, settings,
};
use orchestra_store::{Found, ListError, PushFound};

use super::reading::field_type::{ShapeSetting, is_bounded};
use super::reading::limits::{LARGEST_TENSOR, MOST_ITEMS};
use super::reading::locator::{locator, parts};

settings! {
    pub struct Random {
        /// how many; an item is called by its number, from 0
        #[range(1, MOST_ITEMS)]
        #[missing("say how many: items = 1000")]
        items: u64,
        /// the shape of an item; `[]` is a single number
        shape: Option<Spanned<ShapeSetting>> => "[]",
        /// the type of the numbers; whole numbers are any of their type
        dtype: DType = "f32",
        /// how they lie
        distribution: Spanned<Distribution> = "uniform",
        /// other seeds give other numbers
        #[range(0, i64::MAX as u64)]
        seed: u64 = 0,
        /// the name of the tensor, for `from = "source.name"` and in records
        column: String = "x",
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum Distribution {
        /// from 0 to below 1
        Uniform = "uniform",
        /// of mean 0 and deviation 1, for f64, f32 and f16
        Normal = "normal",
    }
}

impl TypedSource for Random {
    const NAME: &'static str = "random";
    const ABOUT: &'static str = "TensorFiles of random numbers, the same for an item in every run with the same seed. It reads no file.";
    const HAS_FILES: bool = false;
    type Items = RandomItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, RandomItems), Reported> {
        let Random { items, shape, dtype, distribution, seed, column } = self;
        let fields = &mut source.fields;
        if let Some(shape) = shape.as_ref().filter(|shape| !is_bounded(&shape.value.0, dtype)) {
            let most = LARGEST_TENSOR >> 20;
            let reason = format!("must be at most {MAX_RANK} sizes from 1, of {most} MiB in all");
            return fields.bad("shape", shape.span, &reason).fail();
        }
        if distribution.value == Distribution::Normal && !dtype.is_float() {
            return fields
                .bad("distribution", distribution.span, &format!("cannot be `normal` for {dtype}"))
                .help("normal numbers are f64, f32 or f16")
                .fail();
        }
        source.n_items = Some(items);
        let shape: Arc<[usize]> = shape.map(|shape| shape.value.0).unwrap_or_default().into();
        let is_normal = distribution.value == Distribution::Normal;
        let schema = ItemSchema {
            gives: Schema::of(&column, ColumnType::Tensor(fixed_tensor(&column, dtype, &shape))),
            // `items` is not among them: a run goes on with more of them.
            settings: serde_json::json!({
                "kind": Self::NAME, "seed": seed, "dtype": dtype, "shape": shape.to_vec(), "normal": is_normal, "column": column,
            }),
            decoders: None,
        };
        Ok((schema, RandomItems { items, seed, dtype, shape, is_normal, column }))
    }
}

#[derive(Debug, Clone, Encode, Decode)]
pub struct RandomItems {
    items: u64,
    seed: u64,
    dtype: DType,
    shape: Arc<[usize]>,
    is_normal: bool,
    column: String,
}

impl Items for RandomItems {
    fn list(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        (0..self.items)
            .try_for_each(|item| push(Found::Item(&item.to_string(), &locator(Path::new(""), &[item]))))
    }

    fn start(&self, _: &ReadOptions) -> Box<dyn FetchRun> {
        Box::new(RandomFetch { numbers: self.clone(), data: Vec::new() })
    }
}

struct RandomFetch {
    numbers: RandomItems,
    data: Vec<u8>,
}

impl FetchRun for RandomFetch {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        let (_, item) = parts(locator, 1)?;
        let RandomItems { seed, dtype, ref shape, is_normal, .. } = self.numbers;
        let elements = shape.iter().product::<usize>();
        let mut bits = Bits::of(seed, item[0]);
        self.data.clear();
        self.data.reserve(elements * dtype.size_bytes());
        for _ in 0..elements {
            match dtype {
                DType::F32 => self.data.extend_from_slice(&bits.float(is_normal).to_ne_bytes()),
                DType::F16 => {
                    // The largest f16 below 1: a number that rounds to 1 is none of "below 1".
                    let number = f16::from_f32(bits.float(is_normal));
                    let number = if is_normal { number } else { number.min(f16::from_bits(0x3bff)) };
                    self.data.extend_from_slice(&number.to_ne_bytes());
                }
                DType::I64 => self.data.extend_from_slice(&bits.next().to_ne_bytes()),
                DType::I16 => self.data.extend_from_slice(&((bits.next() >> 48) as u16).to_ne_bytes()),
                DType::F64 => self.data.extend_from_slice(&bits.double(is_normal).to_ne_bytes()),
                DType::I32 => self.data.extend_from_slice(&((bits.next() >> 32) as u32).to_ne_bytes()),
                DType::U8 => self.data.push((bits.next() >> 56) as u8),
                DType::Bool => self.data.push((bits.next() >> 63) as u8),
            }
        }
        Ok(self.data.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let RandomItems { column, dtype, shape, .. } = &self.numbers;
        show(&[Value::Tensor(TensorView { name: column, dtype: *dtype, shape, data: &self.data })]);
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014), which is fixed here: another generator would give other items.
struct Bits(u64);

impl Bits {
    fn of(seed: u64, item: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(item)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to below 1: 24 bits, which an f32 holds exactly.
    fn float(&mut self, is_normal: bool) -> f32 {
        if !is_normal {
            return (self.next() >> 40) as f32 / (1 << 24) as f32;
        }
        self.double(is_normal) as f32
    }

    /// From 0 to below 1: 53 bits, which an f64 holds exactly.
    fn double(&mut self, is_normal: bool) -> f64 {
        let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
        if !is_normal {
            return unit(self.next());
        }
        // Box and Muller: of a radius and an angle. 1 - u is never 0.
        let radius = (-2.0 * (1.0 - unit(self.next())).ln()).sqrt();
        radius * (TAU * unit(self.next())).cos()
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(dtype: DType, is_normal: bool, seed: u64) -> RandomItems {
        RandomItems { items: 100, seed, dtype, shape: [1000].into(), is_normal, column: "x".into() }
    }

    fn item(run: &mut dyn FetchRun, n: u64) -> Vec<u8> {
        run.fetch(&locator(Path::new(""), &[n])).unwrap();
        let mut data = Vec::new();
        run.with_row(&mut |row| {
            let [Value::Tensor(view)] = row else { panic!("not a tensor") };
            data = view.data.to_vec();
        });
        data
    }

    #[test]
    fn an_item_depends_on_its_number_and_the_seed_and_on_nothing_read_before() {
        for dtype in DType::ALL {
            let (mut a, mut b) = (
                numbers(dtype, false, 1).start(&ReadOptions::default()),
                numbers(dtype, false, 1).start(&ReadOptions::default()),
            );
            let forward: Vec<_> = (0..5).map(|n| item(&mut *a, n)).collect();
            let backward: Vec<_> = (0..5).rev().map(|n| item(&mut *b, n)).collect();
            assert!(forward.iter().eq(backward.iter().rev()), "{dtype}");
            assert!(forward.iter().all(|data| data.len() == 1000 * dtype.size_bytes()));
            assert_ne!(forward[0], forward[1]);
            assert_ne!(item(&mut *numbers(dtype, false, 2).start(&ReadOptions::default()), 0), forward[0]);
        }
    }

    #[test]
    fn the_numbers_have_the_mean_and_the_deviation_of_their_distribution() {
        for (is_normal, mean, deviation) in [(false, 0.5, (1.0_f64 / 12.0).sqrt()), (true, 0.0, 1.0)] {
            let mut run = numbers(DType::F32, is_normal, 7).start(&ReadOptions::default());
            let data: Vec<u8> = (0..100).flat_map(|n| item(&mut *run, n)).collect();
            let values: Vec<f64> =
                data.as_chunks().0.iter().map(|b| f64::from(f32::from_ne_bytes(*b))).collect();
            let n = values.len() as f64;
            let found = values.iter().sum::<f64>() / n;
            let square = values.iter().map(|v| (v - found).powi(2)).sum::<f64>() / n;
            assert!(
                (found - mean).abs() < 0.02 && (square.sqrt() - deviation).abs() < 0.02,
                "{found} {square}"
            );
            assert!(is_normal || values.iter().all(|v| (0.0..1.0).contains(v)));
        }
    }
}
