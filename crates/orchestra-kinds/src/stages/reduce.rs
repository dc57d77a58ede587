//! `kind = "reduce"`: one row of the rows of all items of a run, or one for each key: their sum, mean, least, largest, number or histogram; or all of
//! them in the order of the items.

use std::cmp::Ordering;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    Choice as _, Connect, Fields, Input, Reported, Runs, Spanned, StageConnected, StageContext, TypedStage,
    Upstreams, choices, settings,
};

use cell::Op;
use concat::{Concat, Joining, NAMES};
use merged::{By, ReduceOver, Reduced};

mod cell;
mod concat;
mod exact;
mod merged;

/// The most numbers of a result with one key: 512 MiB of counts.
const MOST_NUMBERS: usize = 1 << 26;

settings! {
    #[derive(Debug)]
    pub struct ReduceStage {
        /// what is made of the rows
        #[missing("say what is made of the rows: op = \"mean\"")]
        op: Name,
        /// what it is made of
        over: ReduceOver = "rows",
        /// a row of the result for each value of this column, `"stage"` or `"stage.column"`: the best class of classes, or an integer; of `concat` only
        /// with `join` or `stack`
        by: Option<String> => "all rows in one",
        /// a row of the result for each folder that items lie in; of `concat` only with `join` or `stack`
        by_folder: bool = false,
        /// of a histogram: the lower edge of its first bin and the upper edge of its last one
        range: Option<Spanned<[f64; 2]>>,
        /// of a histogram: how many bins of the same width
        #[range(1, 65_536)]
        bins: Option<u64>,
        /// of `concat`: one row, or one for each key, its tensors those of all rows one behind the other along their first dimension, as
        /// numpy.concatenate has them; up to 1 GiB of each over all keys, in memory. Beside `limits.memory`, writing it takes twice its bytes for `npy`, four times for `jsonl`, ten times for `parquet`
        join: bool = false,
        /// of `concat`: as `join`, but along a new first dimension, as numpy.stack has them: `embedding` f32\[32\] of 5,000 items becomes f32\[5000, 32\]. One
        /// more column, `names`, lists the items in that order
        stack: bool = false,
    }
}

choices! {
    pub enum Name {
        Sum = "sum",
        Mean = "mean",
        /// the least
        Min = "min",
        /// the largest
        Max = "max",
        /// how many lie in each bin
        Histogram = "histogram",
        /// how many rows there are
        Count = "count",
        /// every row as it is, in the order of the items
        Concat = "concat",
    }
}

impl TypedStage for ReduceStage {
    const NAME: &'static str = "reduce";
    const ABOUT: &'static str = "Makes one row of the rows of all items, once all have ended. Columns: the result, called as `op`, then `rows` and \
         `items`, how many are in it; items that failed are not. Sums and means are exact and rounded once, to f64, or to i64 for a sum of integers, so \
         neither the order of the items nor a restart changes a bit; the least and the largest of integers are i64, too. An item with NaN fails, and for \
         sum and mean one with an infinity. `histogram` is i64, with `outside`: how many were below its range, and above it. In records, \
         `item` is the key, or the name of the stage, and `source` the name of the stage; rows are in the order of their keys. Nothing gives no row. \
         `concat` gives the columns and items that it reads; with `join` or `stack`, one row called as the stage, or one for each key, called as that.";
    type Work = ();

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        let from = f.required_string("from", "name the stage whose rows are reduced");
        from.into_iter().chain(f.string("by")).map(|name| (None, name)).collect()
    }

    fn check(&self, f: &mut Fields<'_, '_>) {
        if let Some(by) = f.entry("by").filter(|_| self.by_folder) {
            f.bad("by_folder", by.key_span, "stands beside `by`").help("a row has one key");
        }
        let is_concat = self.op == Name::Concat;
        let is_histogram = self.op == Name::Histogram;
        for (key, has_effect) in [
            ("range", is_histogram),
            ("bins", is_histogram),
            ("over", !is_concat && self.op != Name::Count),
            // Rows that stay as they are have no key.
            ("by", !is_concat || self.join || self.stack),
            ("by_folder", !is_concat || self.join || self.stack),
            ("join", is_concat && !self.stack),
            ("stack", is_concat),
        ] {
            if let Some(entry) = f.entry(key).filter(|_| !has_effect) {
                let reason = match key {
                    "join" if is_concat => "stands beside `stack`".to_owned(),
                    _ => format!("has no effect on `op = \"{}\"`", self.op.name()),
                };
                let help = match key {
                    "by" | "by_folder" => "leave it out, or add `join = true`: one row for each key",
                    _ => "leave it out",
                };
                f.bad(key, entry.key_span, &reason).help(help);
            }
            if is_histogram && ["range", "bins"].contains(&key) && f.entry(key).is_none() {
                f.missing(key, "say where the bins lie: range = [0.0, 1.0], bins = 10");
            }
        }
        if let Some(Spanned { value: [low, high], span }) = &self.range {
            let bins = self.bins.unwrap_or(1);
            if low.partial_cmp(high) != Some(Ordering::Less) {
                f.bad("range", *span, "is not two numbers, the smaller one first")
                    .help("write range = [0.0, 1.0]");
            } else if !Op::histogram(*low, *high, bins).has_bins() {
                let reason =
                    format!("has no {bins} bins of the same width: f64 cannot tell their edges apart");
                f.bad("range", *span, &reason)
                    .help("its width times `bins` must be below 1.7e308, and its numbers must not be almost the same");
            }
        }
    }
}

impl Connect for ReduceStage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        if self.op == Name::Concat {
            return self.concat(stage);
        }
        let op = self.op()?;
        let value = self.value_column(stage)?;
        let mut reads = vec![(0, value)];
        reads.extend(self.key_column(stage)?);
        let (input, name) = (&stage.inputs[0], stage.name);
        let Column { name: column, ty } = &input.gives.0[value];
        let shape = match (&op, self.over) {
            (Some(_), ReduceOver::Rows) => ty.tensor().and_then(TensorSpec::fixed_row),
            _ => Some(Vec::new()),
        };
        let Some(shape) = shape else {
            let d = stage.error(input.span, format!("stage `{name}` cannot reduce `{column}`"));
            let help = "over = \"elements\" takes rows of any shape";
            return d.label("its rows have no fixed shape").help(help).fail();
        };
        let reduce = Reduced {
            stage: name.to_owned(),
            column: self.op.name().to_owned(),
            op: op.clone(),
            over: self.over,
            by: self.key(),
            dtype: ty.tensor().map_or(DType::I64, |spec| spec.dtype),
            shape,
        };
        let (numbers, cells) = (reduce.numbers_per_cell(), reduce.n_cells());
        if numbers.saturating_mul(cells) > MOST_NUMBERS {
            let message = format!("stage `{name}` would keep {numbers} numbers for each of {cells} elements");
            let help = "over = \"elements\" keeps them once for all elements";
            return stage.error(input.span, message).label("that is too much memory").help(help).fail();
        }
        let by = self.by_words(stage);
        let over = match (&op, self.over) {
            (None, _) => "rows",
            (Some(_), ReduceOver::Rows) => "each element",
            (Some(_), ReduceOver::Elements) => "all elements",
        };
        let edges = match &op {
            Some(Op::Histogram(edges)) => &edges[..],
            _ => &[],
        };
        Ok(StageConnected {
            settings: serde_json::json!({
                "op": self.op.name(), "value": value, "over": over, "by": by, "edges": edges,
                "key": reads.get(1).map(|(_, column)| column),
                // An earlier program rounded to f32.
                "result": reduce.columns().first().map(|(_, dtype, _)| dtype.name()),
            }),
            gives: reduce.gives(),
            reads,
            details: vec![format!("{} of {over}{by}", self.op.name())],
            about: format!("{} of {over}{by}, over the whole run", self.op.name()),
            runs: Runs::Reduce(Arc::new(reduce)),
        })
    }
}

impl ReduceStage {
    /// What is made of a tensor; `None`: nothing, rows are counted.
    fn op(&self) -> Result<Option<Op>, Reported> {
        Ok(match self.op {
            Name::Concat | Name::Count => None,
            Name::Sum => Some(Op::Sum),
            Name::Mean => Some(Op::Mean),
            Name::Min => Some(Op::Min),
            Name::Max => Some(Op::Max),
            Name::Histogram => {
                let [low, high] = self.range.as_ref().ok_or(Reported)?.value;
                Some(Op::histogram(low, high, self.bins.ok_or(Reported)?))
            }
        })
    }

    fn value_column(&self, stage: &mut StageContext<'_>) -> Result<usize, Reported> {
        if self.op != Name::Count {
            return stage.column(0, "a tensor", |c| matches!(c.ty.required(), ColumnType::Tensor(_)));
        }
        // Any column will do, and none that is costly to have.
        let columns = &stage.inputs.first().ok_or(Reported)?.gives.0;
        Ok(columns.iter().position(|c| c.ty != ColumnType::Picture).unwrap_or(0))
    }

    fn key(&self) -> By {
        match (&self.by, self.by_folder) {
            (Some(_), _) => By::Column,
            (None, true) => By::Folder,
            (None, false) => By::Nothing,
        }
    }

    fn key_column(&self, stage: &mut StageContext<'_>) -> Result<Option<(usize, usize)>, Reported> {
        if self.key() != By::Column {
            return Ok(None);
        }
        let is_key = |c: &Column| c.ty == ColumnType::Labels || is_integer(&c.ty);
        Ok(Some((1, stage.column(1, "classes, or one integer per row", is_key)?)))
    }

    fn by_words(&self, stage: &StageContext<'_>) -> String {
        match self.key() {
            By::Nothing => String::new(),
            By::Folder => " by folder".to_owned(),
            By::Column => format!(" by `{}`", stage.inputs[1].name),
        }
    }

    fn concat(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (input, mut reads) = stage.whole_first()?;
        if let Some(column) = input.gives.0.iter().find(|c| c.ty.has_pictures()) {
            let message = format!("stage `{}` cannot keep `{}` of `{}`", stage.name, column.name, input.name);
            return stage.error(input.span, message).help("reduce what is made of the pictures").fail();
        }
        let mut settings = serde_json::json!({
            "op": self.op.name(), "columns": reads.iter().map(|(_, column)| column).collect::<Vec<_>>(),
        });
        if !self.join && !self.stack {
            return Ok(StageConnected {
                settings,
                reads,
                gives: input.gives,
                runs: Runs::Reduce(Arc::new(Concat { joining: None })),
                details: vec!["all rows, in order".to_owned()],
                about: "all rows of the run, in the order of the items".to_owned(),
            });
        }
        let gives = self.joined_columns(stage, input)?;
        settings[if self.stack { "stack" } else { "join" }] = true.into();
        let by = self.by_words(stage);
        if self.key() != By::Nothing {
            settings["by"] = by.clone().into();
        }
        if let Some(key) = self.key_column(stage)? {
            settings["key"] = key.1.into();
            reads.push(key);
        }
        Ok(StageConnected {
            settings,
            reads,
            gives,
            runs: Runs::Reduce(Arc::new(Concat {
                joining: Some(Joining { stage: stage.name.to_owned(), by: self.key(), stacks: self.stack }),
            })),
            details: vec![format!("one array of all rows{by}, in order")],
            about: format!("one array of all rows of the run{by}, in the order of the items"),
        })
    }

    /// TensorFiles of any number of rows, and of what is stacked the names of the items.
    fn joined_columns(&self, stage: &mut StageContext<'_>, input: Input) -> Result<Schema, Reported> {
        let name = stage.name;
        let mut gives = input.gives;
        if self.stack && gives.position(NAMES).is_some() {
            let message =
                format!("stage `{name}` calls the names of the items `{NAMES}`, as a tensor is called");
            let help = "call it otherwise: kind = \"select\", columns = { others = \"names\" }";
            return stage.error(input.span, message).help(help).fail();
        }
        for column in &mut gives.0 {
            let Some(spec) = column.ty.tensor() else {
                let message = format!("stage `{name}` cannot join `{}` of `{}`", column.name, input.name);
                let help = "name the tensors that are joined: from = \"stage.tensor\"; or leave `join` and `stack` out";
                return stage
                    .error(input.span, message)
                    .label(format!("it is {}", column.ty))
                    .help(help)
                    .fail();
            };
            let inner = spec.row.iter().skip(usize::from(!self.stack)).cloned();
            let row = std::iter::once(Dim::Dynamic).chain(inner).collect();
            column.ty = ColumnType::Tensor(TensorSpec { row, ..spec.clone() });
        }
        let names = ColumnType::List(Schema::of("name", ColumnType::Text));
        gives.0.extend(self.stack.then(|| Column { name: NAMES.to_owned(), ty: names }));
        Ok(gives)
    }
}

fn is_integer(ty: &ColumnType) -> bool {
    let is_one = |spec: &TensorSpec| !spec.dtype.is_float() && spec.row_len() == Some(1);
    matches!(ty.required(), ColumnType::Tensor(spec) if is_one(spec))
}
