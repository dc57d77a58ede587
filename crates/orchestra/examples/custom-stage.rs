//! Kinds of a program's own: a source, a stage and a sink, which a workflow names like any others. docs/guide/kinds.md explains each part.
//!
//!     cargo run -p orchestra --example custom-stage -- OUTPUT

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra::kind::*;
use orchestra::{Orchestra, Workflow};

const WORKFLOW: &str = r#"
version = 1
sources.tides = { kind = "waves", hours = 6 }
stages.doubled = { kind = "scale", from = "tides", by = 2 }
sinks.chart = { kind = "bars", from = "doubled" }
"#;

settings! {
    /// `kind = "waves"`: the height of a wave at each hour.
    #[derive(Clone, Copy, Debug, bincode::Encode, bincode::Decode)]
    pub struct Waves {
        /// how many hours
        hours: i64,
    }
}

impl TypedSource for Waves {
    const NAME: &'static str = "waves";
    const ABOUT: &'static str = "Gives the height of a wave at each hour.";
    const HAS_FILES: bool = false;
    type Items = Self;

    fn connect(self, _: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, Self), Reported> {
        let gives = Schema::of("height", ColumnType::Tensor(fixed_tensor("height", DType::F32, &[1])));
        Ok((ItemSchema { gives, settings: self.json(), decoders: None }, self))
    }
}

impl Items for Waves {
    fn list(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        // Its name, and how `fetch` finds it.
        let mut item = |hour| push(Found::Item(&format!("{hour}h"), format!("#{hour}").as_bytes()));
        (0..self.hours).try_for_each(&mut item)
    }

    fn start(&self, _: &ReadOptions) -> Box<dyn FetchRun> {
        Box::new(Height([0; 4]))
    }
}

struct Height([u8; 4]); // of the hour that was read last

impl FetchRun for Height {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        let hour = std::str::from_utf8(&locator[1..]).ok().and_then(|hour| hour.parse::<f32>().ok());
        let hour = hour.ok_or_else(|| ItemError::result("this is no hour"))?;
        self.0 = (10.0 + 8.0 * hour.sin()).to_ne_bytes();
        Ok(4)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        show(&[Value::Tensor(TensorView { name: "height", dtype: DType::F32, shape: &[1], data: &self.0 })]);
    }
}

settings! {
    /// `kind = "scale"`: each number of a tensor, times another one.
    #[derive(Debug, Clone, Copy, bincode::Encode, bincode::Decode)]
    pub struct Scale {
        /// what each number is multiplied by
        by: f64,
    }
}

impl TypedStage for Scale {
    const NAME: &'static str = "scale";
    const ABOUT: &'static str = "Multiplies every number of a tensor.";
    type Work = Self;
}

impl Connect for Scale {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let is_f32 = |ty: &ColumnType| matches!(ty, ColumnType::Tensor(tensor) if tensor.dtype == DType::F32);
        let column = stage.column(0, "a tensor of f32", |column| is_f32(&column.ty))?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor().ok_or(Reported)?.clone();
        let (runs, about) = (Runs::map::<Self>(*self, tensor.row_len()), format!("x * {}", self.by));
        let gives = Schema::of(&tensor.name, ColumnType::Tensor(tensor.clone()));
        let (reads, details) = (vec![(0, column)], vec![about.clone()]);
        Ok(StageConnected { gives, reads, runs, settings: self.json(), details, about })
    }
}

impl RowWork for Scale {
    type Scratch = Vec<u8>;

    fn apply(&self, scaled: &mut Vec<u8>, row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let numbers =
                tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes) * self.by as f32);
            scaled.clear();
            scaled.extend(numbers.flat_map(f32::to_ne_bytes));
            emit.row(&[Value::Tensor(TensorView { data: scaled, ..*tensor })])
        })
    }
}

settings! {
    /// `kind = "bars"`: a bar for each item, as long as its number says.
    pub struct Bars {}
}

impl TypedSink for Bars {
    const NAME: &'static str = "bars";
    const ABOUT: &'static str = "Draws a bar for each item.";
    const EXTENSION: &'static str = "txt";

    fn connect(self, _: &Input, _: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        Ok(Arc::new(BarEncoder))
    }
}

#[derive(Debug)]
struct BarEncoder;

impl Encoder for BarEncoder {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let number = tensor.data.first_chunk().map_or(0.0, |bytes| f32::from_ne_bytes(*bytes));
            let bar = "#".repeat(number.max(0.0) as usize);
            writeln!(out, "{:>4} {bar}", item.name).map_err(|error| ItemError::result(error.to_string()))
        })
    }
}

fn kinds() -> Kinds {
    let kinds = orchestra::kind::builtin().with_source(Typed::<Waves>::kind());
    kinds.with_typed_stage::<Scale>().with_sink(Typed::<Bars>::kind())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    orchestra::run_if_worker_with(&kinds()); // loaders are copies of this program, and know the same kinds
    let output = PathBuf::from(std::env::args_os().nth(1).ok_or("name a folder for the results")?);
    tokio::runtime::Runtime::new()?.block_on(async {
        let orchestra = Orchestra::builder().kinds(kinds()).build().await?;
        orchestra.run(Workflow::parse(WORKFLOW, ".")?.output(&output)).await?;
        print!("{}", std::fs::read_to_string(output.join("chart.txt"))?);
        Ok(())
    })
}
