//! `kind = "merge"`: several lists of an item to one.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, OwnedRow, OwnedValue, Refusal, Schema, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Element};
use orchestra_plan::{
    At, Choice as _, Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings,
};

use super::shared::box_order::{BoxPosition, Order};

settings! {
    #[derive(Debug)]
    pub struct Merge {
        /// the order of the rows; as they come, those of the first list are first, and the other orders go by the columns `box` and `score`
        order: At<Order> = "given",
    }
}

impl TypedStage for Merge {
    const NAME: &'static str = "merge";
    const ABOUT: &'static str = "Makes one list, `parts`, of several with the same columns, such as `gather` gives for parts that went different ways: `from = [\"short\", \"long\"]`.";
    type Work = Merging;
}

impl Connect for Merge {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what = "lists, which `gather` and `detect` give";
        let mut reads = Vec::new();
        for at in 0..stage.inputs.len().max(2) {
            reads.push((at, stage.column(at, what, |c| matches!(c.ty, ColumnType::List(_)))?));
        }
        let list = |(at, column): (usize, usize)| &stage.inputs[at].gives.0[column].ty;
        let ColumnType::List(rows) = list(reads[0]) else { return Err(Reported) };
        if let Some(&(other, column)) = reads.iter().find(|&&read| list(read) != list(reads[0])) {
            let (name, other) = (stage.name, &stage.inputs[other]);
            let message = format!(
                "stage `{name}` cannot merge the list of `{}` with that of `{}`",
                other.name, stage.inputs[0].name
            );
            let ColumnType::List(columns) = &other.gives.0[column].ty else { return Err(Reported) };
            return stage
                .error(other.span, message)
                .label(format!("its rows are {columns}, those of the first {rows}"))
                .help("give their columns the same names and types with a `select` in front of each `gather`")
                .fail();
        }
        let number = |name: &str, n: usize| {
            let at = rows.position(name)?;
            let tensor = rows.0[at].ty.tensor()?;
            (tensor.dtype == DType::F32 && tensor.row_len() == Some(n)).then_some(at)
        };
        let columns = OrderColumns {
            corners: number("box", 4),
            polygon: number("polygon", 8),
            score: number("score", 1),
        };
        let lacks = match self.order.value {
            Order::Given => None,
            Order::Score => columns.score.is_none().then_some("`score`, f32"),
            _ => columns.corners.is_none().then_some("`box`, f32[4]"),
        };
        if let Some(lacks) = lacks {
            let message =
                format!("stage `{}` cannot order its rows, which have no column {lacks}", stage.name);
            return stage
                .error(self.order.span, message)
                .label(format!("they are {rows}"))
                .help("leave `order` out, or keep that column with a `select`")
                .fail();
        }
        let order = self.order.value;
        let about = match order {
            Order::Given => "one list of several".to_owned(),
            _ => format!("one list of several, in order: {}", order.name()),
        };
        Ok(StageConnected {
            gives: Schema::of("parts", ColumnType::List(rows.clone())),
            settings: self.json(),
            reads,
            runs: Runs::map::<Self>(Merging { order, columns }, None), // Lists have no bound.
            details: vec![about.clone()],
            about,
        })
    }
}

/// Where a row has what it is ordered by.
#[derive(Debug, Clone, Copy, Encode, Decode)]
struct OrderColumns {
    corners: Option<usize>,
    polygon: Option<usize>,
    score: Option<usize>,
}

/// How lists become one.
#[derive(Debug, Encode, Decode)]
pub struct Merging {
    order: Order,
    columns: OrderColumns,
}

impl RowWork for Merging {
    type Scratch = ();
    const IN_LOADER: bool = false;

    fn apply(&self, (): &mut (), inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let mut rows: Vec<(BoxPosition, OwnedRow)> = Vec::new();
        for input in inputs {
            let Value::List(list) = input else {
                return Err(Refusal::result("internal error: a list is missing; this is a bug"));
            };
            rows.extend(list.iter().map(|row| (self.columns.position(row), row.clone())));
        }
        let is_nan = |p: &BoxPosition| p.score.is_nan() || [p.x, p.y, p.height].iter().any(|v| v.is_nan());
        if self.order != Order::Given
            && let Some(n) = rows.iter().position(|(position, _)| is_nan(position))
        {
            return Err(Refusal::result(format!(
                "row {n} has no place in the order: its box or score is NaN"
            )));
        }
        emit.row(&[Value::List(&self.order.sort(rows))])
    }
}

impl OrderColumns {
    fn position(&self, row: &OwnedRow) -> BoxPosition {
        let number = |column: Option<usize>, at: usize| match column.and_then(|column| row.get(column)) {
            Some(OwnedValue::Tensor { dtype, data, .. }) => {
                let bytes = data.get(at * dtype.size_bytes()..).unwrap_or_default();
                Element::read(*dtype, bytes).to_f64()
            }
            _ => 0.0,
        };
        let [left, top, right, bottom] = [0, 1, 2, 3].map(|at| number(self.corners, at));
        let height = match self.polygon {
            // The box of a long line that is not quite level is much higher than the line.
            Some(_) => {
                let [a, b, d] = [0, 2, 6].map(|at| [number(self.polygon, at), number(self.polygon, at + 1)]);
                let side = |p: [f64; 2]| (p[0] - a[0]).hypot(p[1] - a[1]);
                side(b).min(side(d))
            }
            None => bottom - top,
        };
        BoxPosition {
            score: number(self.score, 0) as f32,
            x: (left + right) / 2.0,
            y: (top + bottom) / 2.0,
            height,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::apply;
    use super::*;

    fn row(corners: [f32; 4]) -> OwnedRow {
        let data = corners.iter().flat_map(|v| v.to_ne_bytes()).collect();
        vec![OwnedValue::Tensor { name: "box".into(), dtype: DType::F32, shape: [4].into(), data }]
    }

    #[test]
    fn rows_of_all_lists_come_in_one_order_and_empty_lists_add_none() {
        let (first, second) =
            ([row([0.0, 50.0, 9.0, 60.0]), row([0.0, 2.0, 9.0, 12.0])], [row([20.0, 0.0, 29.0, 10.0])]);
        let merged = |order| {
            let mut taken: Vec<OwnedRow> = Vec::new();
            let columns = OrderColumns { corners: Some(0), polygon: None, score: None };
            let lists = [Value::List(&first), Value::List(&[]), Value::List(&second)];
            apply(&Merging { order, columns }, &lists, |row| {
                let [Value::List(rows)] = row else { panic!("{row:?}") };
                taken.extend_from_slice(rows);
            })
            .unwrap();
            let left = |row: &OwnedRow| row[0].clone();
            taken.iter().map(|row| format!("{:?}", left(row))).collect::<Vec<_>>()
        };
        let name = |row: &OwnedRow| format!("{:?}", row[0]);
        assert_eq!(merged(Order::Given), [name(&first[0]), name(&first[1]), name(&second[0])]);
        assert_eq!(merged(Order::Reading), [name(&first[1]), name(&second[0]), name(&first[0])]);
    }

    #[test]
    fn a_row_without_a_place_in_the_order_fails_the_item_and_only_where_there_is_one() {
        let list = [row([0.0, 0.0, 9.0, 10.0]), row([0.0, f32::NAN, 9.0, 10.0])];
        for (order, fails) in [(Order::Given, false), (Order::Reading, true), (Order::LeftToRight, true)] {
            let columns = OrderColumns { corners: Some(0), polygon: None, score: None };
            let merged = apply(&Merging { order, columns }, &[Value::List(&list)], |_| ());
            assert_eq!(merged.is_err(), fails, "{order:?}");
        }
    }
}
