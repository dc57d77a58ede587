use super::*;

#[test]
fn a_bound_is_met_by_numbers_alone() {
    let until = |or_equal| Until { output: 0, below: 0.5, or_equal };
    assert!(until(false).is_met(0.25) && !until(false).is_met(0.5) && until(true).is_met(0.5));
    assert!(
        until(true).is_met(f64::NEG_INFINITY)
            && !until(true).is_met(f64::NAN)
            && !until(false).is_met(f64::INFINITY)
    );
    let met = |dtype, bytes: &[u8]| until(false).is_met_by(dtype, bytes);
    assert!(met(DType::F32, &0.49_f32.to_ne_bytes()) && !met(DType::F32, &f32::NAN.to_ne_bytes()));
    assert!(
        met(DType::F16, &half::f16::from_f32(0.25).to_ne_bytes())
            && !met(DType::F16, &half::f16::NAN.to_ne_bytes())
    );
    assert!(met(DType::I64, &(-3_i64).to_ne_bytes()) && met(DType::I32, &0_i32.to_ne_bytes()));
    assert!(
        met(DType::Bool, &[0]) && !met(DType::U8, &[1]) && !met(DType::F32, &[0; 3]),
        "and by whole ones"
    );
}

#[test]
fn a_row_ends_in_the_round_that_meets_its_bound_or_in_the_last_one_and_not_again() {
    let feed = vec![Feed { output: 0, input: 0 }];
    let of = Iteration { rounds: 4, feed, each: Vec::new(), collect: Vec::new(), until: None };
    let mut rows = RowRounds::new(&of, &[u32::MAX; 3]);
    assert_eq!(rows.round(|row| row == 1), [1]);
    assert_eq!(rows.round(|row| row == 1), [0; 0]);
    assert_eq!(rows.round(|row| row == 2), [2]);
    assert_eq!(rows.all(), None);
    assert_eq!(rows.round(|_| false), [0]);
    assert_eq!(rows.all(), Some(vec![4, 1, 3]));
    // With parts a row ends with its last one.
    let mut rows = RowRounds::new(&of, &[2, 9, 1]);
    assert_eq!(rows.round(|_| false), [2]);
    assert_eq!(rows.living().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        [rows.round(|_| false), rows.round(|_| false), rows.round(|_| false)],
        [vec![0], vec![], vec![1]]
    );
    assert_eq!(rows.all(), Some(vec![2, 4, 1]));
}

#[test]
fn stretches_are_the_rows_again() {
    assert_eq!(stretches([0, 1, 2, 5, 7, 8].map(|row| (row, row))), [(0, 0, 3), (5, 5, 1), (7, 7, 2)]);
    assert_eq!(stretches([(0, 4), (1, 5), (2, 3), (3, 0), (4, 1)]), [(0, 4, 2), (2, 3, 1), (3, 0, 2)]);
    assert_eq!(stretches([]), []);
}
