use orchestra_core::SourceId;
use orchestra_core::data::{Label, TensorView};
use proptest::prelude::*;

use super::*;
use crate::stages::reduce::concat::Concat;

const DIM: usize = 3;

fn reduced(op: Option<Op>, over: ReduceOver, by: By, dtype: DType) -> Reduced {
    let shape = if over == ReduceOver::Rows { vec![DIM] } else { Vec::new() };
    Reduced { stage: "total".into(), column: "value".into(), op, over, by, dtype, shape }
}

fn item(index: u64) -> ItemId {
    ItemId { source: SourceId(0), index }
}

/// Of one row with these elements, whose best class is its second one.
fn contribution(of: &Reduced, name: &str, index: u64, values: &[f32], class: u32) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    let row = TensorView { name: "y", dtype: DType::F32, shape: &[values.len()], data: &data };
    let label = format!("class {class}");
    let labels = [Label { label: &label, class, score: 0.5 }];
    let mut out = Vec::new();
    let info = ItemInfo { name, id: item(index), source: "s", parts: &[] };
    of.contribute(&info, &[Value::Tensor(row), Value::Labels(&labels)], &mut out).unwrap();
    out
}

/// The rows of the result: name, bytes of each column.
fn rows(of: &Reduced, contributions: &[(u64, Vec<u8>)]) -> Vec<(String, Vec<Vec<u8>>)> {
    rows_with_saves(of, contributions, &[])
}

/// The same, where the state is saved and begun anew before these places.
fn rows_with_saves(
    of: &Reduced,
    contributions: &[(u64, Vec<u8>)],
    saves: &[usize],
) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut state = of.state(None).unwrap();
    for (at, (index, bytes)) in contributions.iter().enumerate() {
        if saves.contains(&at) {
            state = of.state(Some(&state.save().unwrap())).unwrap();
        }
        state.add(item(*index), bytes).unwrap();
    }
    let bytes = |value: OwnedValue| match value {
        OwnedValue::Tensor { data, .. } => data.to_vec(),
        other => panic!("{other:?}"),
    };
    let row = |row: ReducedRow| (row.item, row.values.into_iter().map(bytes).collect());
    state.rows().unwrap().into_iter().map(row).collect()
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect()
}

fn ints(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect()
}

/// Its number; the elements of its rows, their class, and how many there are.
type Item = (usize, ([f32; DIM], u32, usize));

fn finite() -> impl Strategy<Value = f32> {
    use proptest::num::f32::{NORMAL, SUBNORMAL, ZERO};
    NORMAL | SUBNORMAL | ZERO
}

fn any_op() -> impl Strategy<Value = Option<Op>> {
    prop_oneof![
        Just(None),
        Just(Some(Op::Sum)),
        Just(Some(Op::Mean)),
        Just(Some(Op::Min)),
        Just(Some(Op::Max)),
        Just(Some(Op::histogram(-1e3, 1e3, 7))),
    ]
}

proptest! {
    #[test]
    fn neither_order_nor_restarts_change_a_bit(
        op in any_op(),
        over in prop_oneof![Just(ReduceOver::Rows), Just(ReduceOver::Elements)],
        by in prop_oneof![Just(By::Nothing), Just(By::Folder), Just(By::Column)],
        (items, shuffled) in proptest::collection::vec((proptest::array::uniform3(finite()), 0u32..3, 1usize..3), 0..30)
            .prop_map(|items| items.into_iter().enumerate().collect::<Vec<_>>())
            .prop_flat_map(|items| (Just(items.clone()), Just(items).prop_shuffle())),
        saves in proptest::collection::vec(0usize..60, 0..4),
    ) {
        let of = reduced(op, over, by, DType::F32);
        // Each item has one row or two, which come together.
        let all = |items: &[Item]| {
            let rows = |(index, (values, class, n)): &Item| {
                let name = format!("{}/{index}", class % 2);
                let row = contribution(&of, &name, *index as u64, values, *class);
                vec![(*index as u64, row); *n]
            };
            items.iter().flat_map(rows).collect::<Vec<_>>()
        };
        let expected = rows(&of, &all(&items));
        prop_assert_eq!(&rows_with_saves(&of, &all(&shuffled), &saves), &expected);
        let counted: i64 = expected.iter().map(|(_, columns)| ints(columns.last().unwrap())[0]).sum();
        prop_assert_eq!(counted, items.len() as i64, "each item is counted once");
        let n_rows: i64 = expected.iter().map(|(_, columns)| ints(&columns[columns.len() - 2])[0]).sum();
        prop_assert_eq!(n_rows, items.iter().map(|(_, (_, _, n))| *n as i64).sum::<i64>());
    }
}

#[test]
fn each_element_by_itself_or_all_of_them() {
    let values = [[1.0, -2.0, 0.5], [3.0, 7.0, 0.25]];
    let result = |op: Op, over| {
        let of = reduced(Some(op), over, By::Nothing, DType::F32);
        let all: Vec<_> = (0..).zip(&values).map(|(i, v)| (i, contribution(&of, "a", i, v, 0))).collect();
        let [(name, columns)] = rows(&of, &all).try_into().unwrap();
        assert_eq!(
            (name.as_str(), ints(&columns[columns.len() - 2]), ints(columns.last().unwrap())),
            ("total", vec![2], vec![2])
        );
        columns
    };
    let sum = floats(&result(Op::Sum, ReduceOver::Rows)[0]);
    assert_eq!(sum, [4.0, 5.0, 0.75]);
    assert_eq!(floats(&result(Op::Mean, ReduceOver::Rows)[0])[2], 0.375);
    assert_eq!(result(Op::Max, ReduceOver::Elements)[0], 7_f32.to_ne_bytes(), "a number that was one");
    let histogram = result(Op::histogram(0.0, 1.0, 2), ReduceOver::Elements);
    assert_eq!((ints(&histogram[0]), ints(&histogram[1])), (vec![1, 2], vec![1, 2]));
    let histogram = result(Op::histogram(0.0, 1.0, 2), ReduceOver::Rows);
    assert_eq!(ints(&histogram[0]), [0, 1, 0, 0, 1, 1], "bins of each element");
    assert_eq!(ints(&histogram[1]), [0, 1, 1, 1, 0, 0]);
}

#[test]
fn what_is_no_number_fails_its_item_and_leaves_the_result_alone() {
    let infinite = |op: &Op| matches!(op, Op::Sum | Op::Mean);
    for op in [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::histogram(0.0, 1.0, 2)] {
        for (dtype, over) in [
            (DType::F32, ReduceOver::Rows),
            (DType::F64, ReduceOver::Elements),
            (DType::F16, ReduceOver::Rows),
        ] {
            let of = reduced(Some(op.clone()), over, By::Nothing, dtype);
            for (value, is_refused) in [
                (f64::NAN, true),
                (f64::INFINITY, infinite(&op)),
                (f64::NEG_INFINITY, infinite(&op)),
                (0.5, false),
            ] {
                let mut data = Vec::new();
                for value in [1.0, value, 0.0] {
                    Element::Double(value).append(dtype, &mut data).unwrap();
                }
                let row = TensorView { name: "y", dtype, shape: &[DIM], data: &data };
                let info = ItemInfo { name: "a", id: item(0), source: "s", parts: &[] };
                let added = of.contribute(&info, &[Value::Tensor(row)], &mut Vec::new());
                assert_eq!(added.is_err(), is_refused, "{op:?} {dtype} {value}");
                assert!(added.err().is_none_or(|why| why.error.contains("at place 1 `y` holds")));
            }
        }
    }
}

#[test]
fn a_sum_beyond_f64_is_refused_and_the_mean_of_its_numbers_is_none() {
    for op in [Op::Sum, Op::Mean] {
        let of = reduced(Some(op.clone()), ReduceOver::Elements, By::Nothing, DType::F64);
        let mut state = of.state(None).unwrap();
        let data = [f64::MAX; 2].map(f64::to_ne_bytes).concat();
        let row = TensorView { name: "y", dtype: DType::F64, shape: &[2], data: &data };
        let info = ItemInfo { name: "a", id: item(0), source: "s", parts: &[] };
        let mut out = Vec::new();
        of.contribute(&info, &[Value::Tensor(row)], &mut out).unwrap();
        state.add(item(0), &out).unwrap();
        let refused = state.rows().err().map(|why| why.error);
        assert_eq!(refused.is_some_and(|why| why.contains("beyond what f64 holds")), op == Op::Sum);
    }
}

#[test]
fn totals_of_doubles_keep_every_bit() {
    let of = reduced(Some(Op::Sum), ReduceOver::Elements, By::Nothing, DType::F64);
    let mut state = of.state(None).unwrap();
    for (index, value) in [(0, 1e16), (1, 1.0), (2, 1.0), (3, -1e16)] {
        let data = f64::to_ne_bytes(value);
        let row = TensorView { name: "y", dtype: DType::F64, shape: &[1], data: &data };
        let info = ItemInfo { name: "a", id: item(index), source: "s", parts: &[] };
        let mut out = Vec::new();
        of.contribute(&info, &[Value::Tensor(row)], &mut out).unwrap();
        state.add(item(index), &out).unwrap();
        state = of.state(Some(&state.save().unwrap())).unwrap();
    }
    let rows = state.rows().unwrap();
    assert!(
        matches!(&rows[0].values[0], OwnedValue::Tensor { dtype: DType::F64, data, .. } if **data == 2.0_f64.to_ne_bytes())
    );
}

#[test]
fn keys_are_sorted_and_give_a_row_each() {
    let of = |by| reduced(Some(Op::Sum), ReduceOver::Elements, by, DType::F32);
    let all = |of: &Reduced| {
        let one = |(i, name, class)| (i, contribution(of, name, i, &[1.0, 2.0, 3.0], class));
        [(0, "b/x.png", 10), (1, "a/y/z.png", 9), (2, "top.png", 10)].map(one)
    };
    let by_class = of(By::Column);
    let names = |rows: Vec<(String, Vec<Vec<u8>>)>| {
        rows.into_iter().map(|(name, columns)| (name, floats(&columns[0])[0])).collect::<Vec<_>>()
    };
    let found = names(rows(&by_class, &all(&by_class)));
    assert_eq!(found, [("class 9".to_owned(), 6.0), ("class 10".to_owned(), 12.0)]);
    let by_folder = of(By::Folder);
    let found: Vec<String> = rows(&by_folder, &all(&by_folder)).into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, [".", "a/y", "b"]);
    let mut out = Vec::new();
    let info = ItemInfo { name: "a", id: item(0), source: "s", parts: &[] };
    let row = TensorView { name: "y", dtype: DType::F32, shape: &[1], data: &[0; 4] };
    let refused = by_class.contribute(&info, &[Value::Tensor(row), Value::Labels(&[])], &mut out);
    assert!(refused.unwrap_err().error.contains("no class"));
}

#[test]
fn integers_stay_integers_and_one_beyond_64_bits_is_refused() {
    let of = reduced(Some(Op::Sum), ReduceOver::Elements, By::Nothing, DType::I64);
    let add = |state: &mut dyn MergeState, value: i64| {
        let data = value.to_ne_bytes();
        let row = TensorView { name: "y", dtype: DType::I64, shape: &[1], data: &data };
        let mut out = Vec::new();
        let info = ItemInfo { name: "a", id: item(0), source: "s", parts: &[] };
        of.contribute(&info, &[Value::Tensor(row)], &mut out).unwrap();
        state.add(item(0), &out).unwrap();
    };
    let mut state = of.state(None).unwrap();
    add(&mut *state, i64::MAX);
    let rows = state.rows().unwrap();
    assert!(
        matches!(&rows[0].values[0], OwnedValue::Tensor { dtype: DType::I64, data, .. } if **data == i64::MAX.to_ne_bytes())
    );
    add(&mut *state, 1);
    assert!(state.rows().unwrap_err().error.contains("64 bits"));
}

#[test]
fn a_row_of_another_shape_fails_its_item_and_damage_is_no_state() {
    let of = reduced(Some(Op::Sum), ReduceOver::Rows, By::Nothing, DType::F32);
    let row = TensorView { name: "y", dtype: DType::F32, shape: &[1], data: &[0; 4] };
    let info = ItemInfo { name: "a", id: item(0), source: "s", parts: &[] };
    let refused = of.contribute(&info, &[Value::Tensor(row)], &mut Vec::new()).unwrap_err();
    assert!(refused.error.contains("[1]") && refused.error.contains("[3]"), "{}", refused.error);
    assert!(of.state(Some(b"\xff")).is_err());
}

#[test]
fn a_row_that_is_kept_comes_back_as_it_was() {
    let view = TensorView { name: "y", dtype: DType::I32, shape: &[1, 2], data: &[1, 2, 3, 4, 5, 6, 7, 8] };
    let labels = [Label { label: "a\nb", class: 7, score: f32::NAN }];
    let list = [vec![OwnedValue::copy_of(&Value::Labels(&labels)).unwrap()], Vec::new()];
    let row = [Value::Tensor(view), Value::Labels(&labels), Value::List(&list)];
    let mut out = Vec::new();
    let info = ItemInfo { name: "a/ä.png", id: item(3), source: "s", parts: &[] };
    let concat = Concat { joining: None };
    concat.contribute(&info, &row, &mut out).unwrap();
    let Reduction::InOrder(in_order) = concat.reduction() else { panic!("it keeps its rows") };
    let back = in_order.row(&out).unwrap();
    assert_eq!(back.item, "a/ä.png");
    let whole: Vec<OwnedValue> = row.iter().map(|value| OwnedValue::copy_of(value).unwrap()).collect();
    assert_eq!(format!("{:?}", back.values), format!("{whole:?}"));
    assert!(in_order.row(&out[..out.len() - 1]).is_err());
}
