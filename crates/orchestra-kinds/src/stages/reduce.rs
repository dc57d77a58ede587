//! `kind = "reduce"`: one row of the rows of all items of a run, or one for each key: their sum, mean, least, largest, number or histogram; or all of
//! them in the order of the items.

use std::collections::BTreeMap;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, OwnedValue, Refusal, Schema, Value, fixed_tensor};
use orchestra_core::shapes::{ItemInfo, Merge, MergeState, Reduce, ReducedRow, Reduction};
use orchestra_core::{DType, ItemId, TensorSpec};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Reads, Runs, StageConnected, StageContext, StageKind, key,
};

use crate::tensor::{Element, element};
use cell::{Cell, OUTSIDE, Op};
use concat::Concat;

mod cell;
mod concat;
mod exact;

/// The kind `reduce`.
pub struct ReduceStage;

const KEYS: [Key; 6] = [
    key(
        "op",
        "text",
        "required",
        "`\"sum\"`, `\"mean\"`, `\"min\"`, `\"max\"`, `\"histogram\"`, `\"count\"`, or `\"concat\"`: every row as it is, in the order of the items",
    ),
    key(
        "over",
        "text",
        "\"rows\"",
        "`\"rows\"`: each element by itself, so the result has the shape of a row; `\"elements\"`: all elements of all rows, to one number",
    ),
    key(
        "by",
        "text",
        "all rows in one",
        "a row of the result for each value of this column, `\"stage\"` or `\"stage.column\"`: the best class of classes, or an integer",
    ),
    key("by_folder", "true or false", "false", "a row of the result for each folder that items lie in"),
    key(
        "range",
        "two numbers",
        "none",
        "of a histogram: the lower edge of its first bin and the upper edge of its last one",
    ),
    key("bins", "integer, 1 to 65536", "none", "of a histogram: how many bins of the same width"),
];

impl StageKind for ReduceStage {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn about(&self) -> &'static str {
        "Makes one row of the rows of all items, once all have ended; only sinks read it. Columns: the result, called as `op`, then `rows` and \
         `items`, how many are in it; items that failed are not. Sums and means are exact and rounded once, to f32, or to i64 for a sum of integers, so \
         neither the order of the items nor a restart changes a bit; the least and the largest of integers are i64, too. What is no number makes \
         sum, mean, min and max no number. `histogram` is i64, with `outside`: how many were below its range, above it, or no number. In records, \
         `item` is the key, or the name of the stage, and `source` the name of the stage; rows are in the order of their keys. Nothing gives no row. \
         `concat` gives the columns and items that it reads."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn reads(&self, f: &mut Fields<'_, '_>) -> Reads {
        let from = f.required_string("from", "name the stage whose rows are reduced");
        from.into_iter().chain(f.string("by")).map(|name| (None, name)).collect()
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let choices = [
            ("sum", Name::Sum),
            ("mean", Name::Mean),
            ("min", Name::Min),
            ("max", Name::Max),
            ("histogram", Name::Histogram),
            ("count", Name::Count),
            ("concat", Name::Concat),
        ];
        let called = f.required_string("op", "say what is made of the rows: op = \"mean\"")?.value;
        let name = f.choice("op", &choices)?.value;
        let by = match (f.entry("by"), f.boolean("by_folder")) {
            (Some(by), Some(true)) => {
                f.bad("by_folder", by.key_span, "stands beside `by`").help("a row has one key");
                return None;
            }
            (Some(_), _) => By::Column,
            (None, Some(true)) => By::Folder,
            (None, _) => By::Nothing,
        };
        let has_effect = |key: &str| match key {
            "range" | "bins" => name == Name::Histogram,
            "over" => !matches!(name, Name::Count | Name::Concat),
            _ => name != Name::Concat,
        };
        for key in ["range", "bins", "over", "by", "by_folder"] {
            if let Some(entry) = f.entry(key).filter(|_| !has_effect(key)) {
                let reason = format!("has no effect on `op = \"{called}\"`");
                f.bad(key, entry.key_span, &reason).help("leave it out");
                return None;
            }
        }
        let over = [("rows", Over::Rows), ("elements", Over::Elements)];
        let over = f.choice("over", &over).map_or(Over::Rows, |over| over.value);
        let op = match name {
            Name::Sum => Some(Op::Sum),
            Name::Mean => Some(Op::Mean),
            Name::Min => Some(Op::Min),
            Name::Max => Some(Op::Max),
            Name::Histogram => Some(histogram(f)?),
            Name::Count | Name::Concat => None,
        };
        let is_concat = name == Name::Concat;
        Some(Draft::Stage(Box::new(ReduceDraft { called, is_concat, op, over, by })))
    }
}

fn histogram(f: &mut Fields<'_, '_>) -> Option<Op> {
    let (range, bins) = (f.numbers("range"), f.integer("bins", 1..=65_536));
    for key in ["range", "bins"] {
        if f.entry(key).is_none() {
            f.missing(key, "say where the bins lie: range = [0.0, 1.0], bins = 10");
        }
    }
    let (At { value: range, span }, bins) = (range?, bins?);
    match range[..] {
        [low, high] if low < high => Some(Op::histogram(low, high, bins.value)),
        _ => {
            f.bad("range", span, "is not two numbers, the smaller one first")
                .help("write range = [0.0, 1.0]");
            None
        }
    }
}

/// As `op` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Sum,
    Mean,
    Min,
    Max,
    Histogram,
    Count,
    Concat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Rows,
    Elements,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Nothing,
    Folder,
    Column,
}

#[derive(Debug)]
struct ReduceDraft {
    /// `op`, as written.
    called: String,
    is_concat: bool,
    /// `None`: rows are counted, or kept.
    op: Option<Op>,
    over: Over,
    by: By,
}

impl Connect for ReduceDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        if self.is_concat {
            return self.concat(stage);
        }
        let value = match &self.op {
            Some(_) => stage.column(0, "a tensor", |c| matches!(c.ty, ColumnType::Tensor(_)))?,
            // Any column will do, and none that is costly to have.
            None => {
                stage.inputs.first()?.gives.0.iter().position(|c| c.ty != ColumnType::Picture).unwrap_or(0)
            }
        };
        let mut reads = vec![(0, value)];
        if self.by == By::Column {
            let what = "classes, or one integer per row";
            reads.push((1, stage.column(1, what, |c| c.ty == ColumnType::Labels || is_integer(&c.ty))?));
        }
        let input = &stage.inputs[0];
        let spec = input.gives.0[value].ty.tensor();
        let shape = match (&self.op, self.over) {
            (Some(_), Over::Rows) => match spec.and_then(TensorSpec::fixed_row) {
                Some(shape) => shape,
                None => {
                    let message =
                        format!("stage `{}` cannot reduce `{}`", stage.name, input.gives.0[value].name);
                    let help = "over = \"elements\" takes rows of any shape";
                    stage.diags.error(input.span, message).label("its rows have no fixed shape").help(help);
                    return None;
                }
            },
            _ => Vec::new(),
        };
        let dtype = spec.map_or(DType::I64, |spec| spec.dtype);
        let reduce = Reduced {
            stage: stage.name.to_owned(),
            column: self.called.clone(),
            op: self.op.clone(),
            over: self.over,
            by: self.by,
            dtype,
            shape,
        };
        let by = match self.by {
            By::Nothing => String::new(),
            By::Folder => " by folder".to_owned(),
            By::Column => format!(" by `{}`", stage.inputs[1].name),
        };
        let over = match (&self.op, self.over) {
            (None, _) => "rows",
            (Some(_), Over::Rows) => "each element",
            (Some(_), Over::Elements) => "all elements",
        };
        let edges = match &self.op {
            Some(Op::Histogram(edges)) => &edges[..],
            _ => &[],
        };
        Some(StageConnected {
            settings: serde_json::json!({
                "op": self.called, "value": value, "over": over, "by": by, "edges": edges,
                "key": reads.get(1).map(|(_, column)| column),
            }),
            gives: reduce.gives(),
            reads,
            details: vec![format!("{} of {over}{by}", self.called)],
            about: format!("{} of {over}{by}, over the whole run", self.called),
            runs: Runs::Reduce(Arc::new(reduce)),
        })
    }
}

impl ReduceDraft {
    fn concat(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let (input, reads) = stage.whole_row()?;
        if let Some(column) = input.gives.0.iter().find(|c| c.ty == ColumnType::Picture) {
            let message = format!("stage `{}` cannot keep `{}` of `{}`", stage.name, column.name, input.name);
            stage.diags.error(input.span, message).help("reduce what is made of the pictures");
            return None;
        }
        Some(StageConnected {
            settings: serde_json::json!({ "op": self.called, "columns": reads.iter().map(|(_, column)| column).collect::<Vec<_>>() }),
            reads,
            gives: input.gives,
            runs: Runs::Reduce(Arc::new(Concat)),
            details: vec!["all rows, in order".to_owned()],
            about: "all rows of the run, in the order of the items".to_owned(),
        })
    }
}

fn is_integer(ty: &ColumnType) -> bool {
    let is_one = |spec: &TensorSpec| !is_float(spec.dtype) && spec.row_len() == Some(1);
    matches!(ty, ColumnType::Tensor(spec) if is_one(spec))
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16)
}

/// What is made of the rows.
#[derive(Debug)]
struct Reduced {
    stage: String,
    /// What the column of the result is called.
    column: String,
    op: Option<Op>,
    over: Over,
    by: By,
    /// Of the elements that are read.
    dtype: DType,
    /// Of the cells.
    shape: Vec<usize>,
}

/// What rows have in common that are reduced together: a number to sort by, and its text.
type RowKey = (i64, String);

impl Reduced {
    fn n_cells(&self) -> usize {
        if self.op.is_some() { self.shape.iter().product() } else { 0 }
    }

    /// The columns of a result, but for the counts: name, type and what is behind the dimensions of the cells.
    fn columns(&self) -> Vec<(&str, DType, Option<usize>)> {
        match &self.op {
            None => Vec::new(),
            Some(Op::Histogram(edges)) => vec![
                (&self.column, DType::I64, Some(edges.len() - 1)),
                ("outside", DType::I64, Some(OUTSIDE)),
            ],
            Some(Op::Mean) => vec![(&self.column, DType::F32, None)],
            Some(_) if is_float(self.dtype) => vec![(&self.column, DType::F32, None)],
            Some(_) => vec![(&self.column, DType::I64, None)],
        }
    }

    fn gives(&self) -> Schema {
        let shape = |inner: Option<usize>| self.shape.iter().copied().chain(inner).collect::<Vec<_>>();
        let columns =
            self.columns().into_iter().map(|(name, dtype, inner)| fixed_tensor(name, dtype, &shape(inner)));
        let counts = ["rows", "items"].map(|name| fixed_tensor(name, DType::I64, &[]));
        let column = |spec: TensorSpec| Column { name: spec.name.clone(), ty: ColumnType::Tensor(spec) };
        Schema(columns.chain(counts).map(column).collect())
    }

    fn key(&self, item: &ItemInfo<'_>, key: Option<&Value<'_>>) -> Result<RowKey, Refusal> {
        match (self.by, key) {
            (By::Nothing, _) => Ok((0, self.stage.clone())),
            (By::Folder, _) => {
                Ok((0, item.name.rsplit_once('/').map_or(".", |(folder, _)| folder).to_owned()))
            }
            (By::Column, Some(Value::Labels(labels))) => {
                let best =
                    labels.first().ok_or_else(|| Refusal::result("it has no class to reduce it by"))?;
                Ok((i64::from(best.class), best.label.to_owned()))
            }
            (By::Column, Some(value)) => value.with_tensor(|view| match element(view.dtype, view.data) {
                Element::Int(v) => Ok((v, v.to_string())),
                Element::Bool(v) => Ok((i64::from(v), v.to_string())),
                Element::Float(_) => {
                    Err(Refusal::result("internal error: a key is no integer; this is a bug"))
                }
            }),
            (By::Column, None) => Err(Refusal::result("internal error: a key is missing; this is a bug")),
        }
    }
}

impl Reduce for Reduced {
    /// The key, and behind it the elements of the row as they are; or the cell of all of them.
    fn contribute(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        encode(&self.key(item, row.get(1))?, out)?;
        let (Some(op), Some(value)) = (&self.op, row.first()) else { return Ok(()) };
        value.with_tensor(|view| match self.over {
            Over::Rows if view.data.len() != self.n_cells() * view.dtype.size_bytes() => {
                let (shape, expected) = (view.shape, &self.shape);
                Err(Refusal::result(format!(
                    "a row to reduce has shape {shape:?}, and the others have {expected:?}"
                )))
            }
            Over::Rows => {
                out.extend_from_slice(view.data);
                Ok(())
            }
            Over::Elements => {
                let mut cell = op.cell();
                let elements = view.data.chunks_exact(view.dtype.size_bytes());
                elements.for_each(|bytes| op.add(&mut cell, element(view.dtype, bytes)));
                encode(&cell, out)
            }
        })
    }

    fn reduction(&self) -> Reduction<'_> {
        Reduction::Merged(self)
    }
}

impl Merge for Reduced {
    fn state<'a>(&'a self, saved: Option<&[u8]>) -> Result<Box<dyn MergeState + 'a>, Refusal> {
        let groups = saved.map_or(Ok((BTreeMap::new(), 0)), decode)?.0;
        Ok(Box::new(State { of: self, groups }))
    }
}

/// What is known of the rows with one key.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
struct Group {
    rows: u64,
    items: u64,
    /// The item of the last row: the rows of an item come together.
    last: (u16, u64),
    cells: Vec<Cell>,
}

struct State<'a> {
    of: &'a Reduced,
    groups: BTreeMap<RowKey, Group>,
}

impl MergeState for State<'_> {
    fn add(&mut self, item: ItemId, contribution: &[u8]) -> Result<(), Refusal> {
        let (key, used): (RowKey, usize) = decode(contribution)?;
        let (rest, item) = (&contribution[used..], (item.source.0, item.index));
        let (of, op) = (self.of, self.of.op.as_ref());
        let group = self.groups.entry(key).or_insert_with(|| Group {
            rows: 0,
            items: 0,
            last: item,
            cells: op.map_or_else(Vec::new, |op| vec![op.cell(); of.n_cells()]),
        });
        group.items += u64::from(group.rows == 0 || group.last != item);
        group.rows += 1;
        group.last = item;
        match (op, of.over) {
            (None, _) => {}
            (Some(op), Over::Rows) => {
                let elements = rest.chunks_exact(of.dtype.size_bytes());
                group
                    .cells
                    .iter_mut()
                    .zip(elements)
                    .for_each(|(cell, bytes)| op.add(cell, element(of.dtype, bytes)));
            }
            (Some(_), Over::Elements) => {
                let (other, _): (Cell, usize) = decode(rest)?;
                group.cells.iter_mut().for_each(|cell| cell.merge(&other));
            }
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, Refusal> {
        let mut out = Vec::new();
        encode(&self.groups, &mut out)?;
        Ok(out)
    }

    fn rows(&self) -> Result<Vec<ReducedRow>, Refusal> {
        self.groups.iter().map(|((_, name), group)| self.of.row(name, group)).collect()
    }
}

impl Reduced {
    fn row(&self, name: &str, group: &Group) -> Result<ReducedRow, Refusal> {
        let count = |name: &str, n: u64| tensor(name, DType::I64, Vec::new(), n.to_ne_bytes().to_vec());
        let mut values = Vec::new();
        for (column, dtype, inner) in self.columns() {
            let shape = self.shape.iter().copied().chain(inner).collect();
            let mut data = Vec::new();
            for cell in &group.cells {
                self.write(cell, column, dtype, &mut data)?;
            }
            values.push(tensor(column, dtype, shape, data));
        }
        values.extend([count("rows", group.rows), count("items", group.items)]);
        Ok(ReducedRow { item: name.to_owned(), values })
    }

    /// Appends what one column says of a cell.
    fn write(&self, cell: &Cell, column: &str, dtype: DType, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let Some(op) = &self.op else { return Ok(()) };
        match cell {
            Cell::Counts(counts) => {
                let (bins, outside) = counts.split_at(counts.len() - OUTSIDE);
                let part = if column == "outside" { outside } else { bins };
                out.extend(part.iter().flat_map(|n| n.to_ne_bytes()));
            }
            _ if dtype == DType::F32 => out.extend(cell.to_f32(op).to_ne_bytes()),
            _ => {
                let beyond = || Refusal::result(format!("its {column} is beyond what 64 bits hold"));
                out.extend(cell.to_i64(op).ok_or_else(beyond)?.to_ne_bytes());
            }
        }
        Ok(())
    }
}

fn tensor(name: &str, dtype: DType, shape: Vec<usize>, data: Vec<u8>) -> OwnedValue {
    OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
}

fn encode(value: &impl Encode, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let encoded = bincode::encode_into_std_write(value, out, bincode::config::standard());
    encoded
        .map(drop)
        .map_err(|error| Refusal::result(format!("what is kept of it cannot be written: {error}")))
}

/// The value at the beginning of what [`encode`] wrote, and how many bytes it has.
fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<(T, usize), Refusal> {
    bincode::decode_from_slice(bytes, bincode::config::standard())
        .map_err(|error| Refusal::result(format!("what was kept of the rows is damaged: {error}")))
}

#[cfg(test)]
mod tests;
