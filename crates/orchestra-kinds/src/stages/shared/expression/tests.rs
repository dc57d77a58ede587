//! Expressions over hand-made rows.

use orchestra_core::data::{Column, ColumnType, Label, OwnedRow, Schema, TensorView, fixed_tensor};
use orchestra_core::{DType, wire};
use proptest::prelude::*;

use super::*;

/// Columns as models and stages give them: `495` and `out/logits-1` are names.
fn schema() -> Schema {
    let tensor = |name: &str, dtype, row: &[usize]| Column {
        name: name.into(),
        ty: ColumnType::Tensor(fixed_tensor(name, dtype, row)),
    };
    Schema(vec![
        Column { name: "classes".into(), ty: ColumnType::Labels },
        Column { name: "text".into(), ty: ColumnType::Text },
        Column { name: "parts".into(), ty: ColumnType::List(Schema::default()) },
        tensor("495", DType::F32, &[1]),
        tensor("out/logits-1", DType::F32, &[2]),
        tensor("id", DType::I64, &[]),
        tensor("flag", DType::Bool, &[1, 1]),
    ])
}

fn with_row<R>(labels: &[Label<'_>], read: impl FnOnce(&[Value<'_>]) -> R) -> R {
    let floats: Vec<u8> = [2.5_f32, -4.0, 8.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
    let id = (i64::MAX - 1).to_ne_bytes();
    let view = |name, dtype, shape, data| Value::Tensor(TensorView { name, dtype, shape, data });
    let parts: [OwnedRow; 3] = [vec![], vec![], vec![]];
    read(&[
        Value::Labels(labels),
        Value::Text("Ünsal, 3"),
        Value::List(&parts),
        view("495", DType::F32, &[1], &floats[..4]),
        view("out/logits-1", DType::F32, &[2], &floats[4..]),
        view("id", DType::I64, &[], &id),
        view("flag", DType::Bool, &[1, 1], &[1]),
    ])
}

const CAT: [Label<'static>; 1] = [Label { label: "cat", class: 3, score: 0.5 }];

#[track_caller]
fn parsed(text: &str) -> Expression {
    parse(&schema(), &|_| None, text).unwrap_or_else(|wrong| panic!("{text}: {wrong:?}"))
}

#[track_caller]
fn holds(text: &str, labels: &[Label<'_>]) -> bool {
    let expression = parsed(text);
    assert_eq!(expression.ty(), Type::Truth, "{text}");
    with_row(labels, |row| expression.truth(row).unwrap())
}

#[test]
fn conditions_of_earlier_versions_mean_what_they_meant() {
    for (keep, expected) in [
        ("score >= 0.5", true),
        ("score > 0.5", false),
        ("score<=0.5 and class==3", true),
        ("score <= 0.5 and class != 3", false),
        ("label == 'cat'", true),
        ("label != 'cat'", false),
        ("label == 'a and b' and score > 0", false),
        ("classes.score >= .5 and count == 3 and parts.count < 4", true),
        ("495 > 2 and 495 > -2.5e0 and 495 != 495", true),
        ("out/logits-1[0] == -4 and out/logits-1[1]>=8.", true),
        ("flag == 1 and flag != 0", true),
    ] {
        assert_eq!(holds(keep, &CAT), expected, "{keep}");
    }
    assert!(!holds("label == 'cat'", &[]) && holds("label != 'cat'", &[]) && !holds("class < 9", &[]));
}

#[test]
fn operators_bind_as_usual_and_no_value_passes_no_comparison() {
    for (text, expected) in [
        ("true or true and false", true),
        ("(true or true) and false", false),
        ("not label == 'dog' and flag", true),
        ("not (label == 'dog' or score < 1)", false),
        ("1 + 2 * 3 == 7 and (1 + 2) * 3 == 9", true),
        ("7 - 2 - 1 == 4 and 8 / 4 / 2 == 1", true),
        ("-score*2 == -1 and - -3 == 3", true),
        ("1 / 2 == 0.5", true),
        ("lower(text) == 'ünsal, 3' and len(text) == 8 and upper('a') == 'A'", true),
        ("starts_with(text, 'Ün') and ends_with(text,'3') and contains(text, ', ')", true),
        ("contains(text, 'x') or starts_with(label, 'do')", false),
        ("id == 9223372036854775806 and id != 9223372036854775807", true),
        ("out/logits-1[0]/2 == -2", true),
        ("flag == true", true),
    ] {
        assert_eq!(holds(text, &CAT), expected, "{text}");
    }
    for text in
        ["class == class", "class + 1 > 0", "starts_with(label, '')", "len(label) < 9", "score / 0 > 0"]
    {
        assert!(!holds(text, &[]), "{text}");
    }
    assert!(holds("class != class and score != 0", &[]));
}

/// One optional number, text, and number with a fraction.
fn with_optional<R>(row: [Value<'_>; 3], text: &str, read: impl FnOnce(&Expression, &[Value<'_>]) -> R) -> R {
    let optional = |ty| ColumnType::Optional(Box::new(ty));
    let number = |dtype| optional(ColumnType::Tensor(fixed_tensor("n", dtype, &[])));
    let columns = [("n", number(DType::I64)), ("t", optional(ColumnType::Text)), ("x", number(DType::F64))];
    let schema = Schema(columns.map(|(name, ty)| Column { name: name.into(), ty }).into());
    let parsed = parse(&schema, &|_| None, text).unwrap_or_else(|wrong| panic!("{text}: {wrong:?}"));
    read(&parsed, &row)
}

#[test]
fn what_is_no_number_or_missing_fails_the_row_that_does_not_ask_for_it() {
    let (nan, id) = (f64::NAN.to_ne_bytes(), (1_i64 << 53 | 1).to_ne_bytes());
    let view = |name, dtype, data| Value::Tensor(TensorView { name, dtype, shape: &[], data });
    let there = [view("n", DType::I64, &id), Value::Text("a"), view("x", DType::F64, &nan)];
    let missing = ["n", "t", "x"].map(Value::Missing);
    for (text, of_there, of_missing) in [
        ("is_missing(n) or is_missing(t)", Ok(false), Ok(true)),
        ("is_nan(x)", Ok(true), Ok(false)),
        ("is_nan(n)", Ok(false), Ok(false)),
        ("or_else(n, 3) == 3", Ok(false), Ok(true)),
        ("or_else(t, 'none') == 'none'", Ok(false), Ok(true)),
        ("or_else(x, 1) == 1", Err("`x` holds no number at place 0"), Ok(true)),
        ("x > 0", Err("`x` holds no number at place 0"), Err("`x` is missing")),
        ("x != x", Err("it is NaN"), Err("`x` is missing")),
        ("t == 'a'", Ok(true), Err("`t` is missing")),
        ("n > 1", Ok(true), Err("`n` is missing")),
        ("n > 1.5", Err("9007199254740993 would be rounded"), Err("`n` is missing")),
        ("n * n > 1", Err("beyond what 64 bits hold"), Err("`n` is missing")),
        ("0 / 0 == 1", Err("it is NaN"), Err("it is NaN")),
        ("n == 9007199254740993", Ok(true), Err("`n` is missing")),
    ] {
        for (row, expected) in [(there, of_there), (missing, of_missing)] {
            let found = with_optional(row, text, |expression, row| expression.truth(row));
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{text}"),
                (Err(item_error), Err(why)) => {
                    assert!(item_error.error.contains(why), "{text}: {}", item_error.error)
                }
                _ => panic!("{text}: {found:?}, expected {expected:?}"),
            }
        }
    }
}

/// The type, the shape and the elements of a column `y`.
type Made = (DType, Vec<usize>, Vec<f64>);

fn made(schema: &Schema, row: &[Value<'_>], text: &str) -> Result<Made, String> {
    let tensor = match parse_column(schema, &|_| None, text) {
        Ok(ColumnExpression::Tensor(tensor)) => tensor,
        Err(Wrong::Form(why)) => return Err(why),
        other => return Err(format!("{other:?}")),
    };
    let mut data = Vec::new();
    tensor.append("y", row, &mut data).map_err(|item_error| item_error.error)?;
    let elements = data.chunks_exact(tensor.dtype.size_bytes());
    let numbers = elements.map(|bytes| orchestra_core::Element::read(tensor.dtype, bytes).to_f64());
    Ok((tensor.dtype, tensor.shape, numbers.collect()))
}

#[test]
fn lists_are_tensors_in_the_written_order_and_casts_give_their_type() {
    use DType::{Bool, F16, F32, F64, I16, I64, U8};
    for (text, dtype, shape, expected) in [
        ("[score, class, 1]", F64, &[3][..], &[0.5, 3.0, 1.0][..]),
        ("[class, 7]", I64, &[2], &[3.0, 7.0]),
        ("[ [1, 2] , [class,-4] ]", I64, &[2, 2], &[1.0, 2.0, 3.0, -4.0]),
        ("[out/logits-1, [score * 2, class]]", F64, &[2, 2], &[-4.0, 8.0, 1.0, 3.0]),
        ("[out/logits-1, out/logits-1]", F32, &[2, 2], &[-4.0, 8.0, -4.0, 8.0]),
        ("[out/logits-1[1], out/logits-1[0]]", F64, &[2], &[8.0, -4.0]),
        ("f32([class / 2, out/logits-1[1]])", F32, &[2], &[1.5, 8.0]),
        ("[u8(class), i16(len('abcd'))]", I16, &[2], &[3.0, 4.0]),
        ("[u8(class), f32(0.5)]", F64, &[2], &[3.0, 0.5]),
        ("[score > 1, flag == true]", Bool, &[2], &[0.0, 1.0]),
        ("[f32(label == 'cat'), f32(label == 'dog')]", F32, &[2], &[1.0, 0.0]),
        ("i64(flag)", I64, &[1, 1], &[1.0]),
        ("bool([0, 1])", Bool, &[2], &[0.0, 1.0]),
        ("f64(f16(0.1))", F64, &[], &[0.0999755859375]),
        ("f16(score)", F16, &[], &[0.5]),
        ("u8(255)", U8, &[], &[255.0]),
        ("0", I64, &[], &[0.0]),
    ] {
        let found = with_row(&CAT, |row| made(&schema(), row, text));
        assert_eq!(found, Ok((dtype, shape.to_vec(), expected.to_vec())), "{text}");
    }
}

#[test]
fn what_is_no_tensor_is_refused_with_the_reason_and_so_is_a_value_that_has_no_place() {
    let deep = "[".repeat(100);
    for (text, why) in [
        ("[text, 1]", "a list holds texts or numbers, and `1` is no text"),
        ("[text", "a list is not closed"),
        ("[label, text] == 'a'", "nothing is computed of a cast or a list"),
        ("f32([text])", "known shape, and `text` is text"),
        ("[1, label]", "`label` is a text"),
        ("[1, parts]", "known shape, and `parts` is list"),
        ("[out/logits-1, class]", "one shape: `out/logits-1` is f32[batch, 2] and `class` is i64[batch]"),
        ("[495, class]", "`495` is a column, and can be read otherwise, too"),
        ("i32(495)", "write it with the name of what gives it, `NAME.495`"),
        ("class + 495", "`NAME.495`"),
        (
            "[1, flag == true]",
            "f32(..) makes 1 or 0 of it: `1` is i64[batch] and `flag == true` is bool[batch]",
        ),
        ("f32(class) + 1", "as in f32(a + 1), not f32(a) + 1"),
        ("1 + f32(class)", "as in f32(a + 1), not f32(a) + 1"),
        ("[1] + 1", "as in f32(a + 1), not f32(a) + 1"),
        ("9223372036854775808 - 1", "beyond integers of 64 bits, which end at 9223372036854775807"),
        ("[1, 2", "a list is not closed"),
        ("[1 2]", "expected `,` or `]`, found `2]`"),
        ("[]", "`]` stands where a value is expected"),
        ("[high]", "Field(\"high\")"),
        ("[out/logits-1[2], 1]", "Field(\"out/logits-1[2]\")"),
        (&deep, "nested deeper than 32"),
        // Of a row.
        ("u8(id)", "`y` cannot be made: u8 cannot hold 9223372036854775806"),
        ("[i64(score), 1]", "`y` cannot be made: i64 cannot hold 0.5"),
        ("[id, 0.5]", "f64 would round 9223372036854775806"),
        ("bool(class)", "bool cannot hold 3"),
    ] {
        let found = with_row(&CAT, |row| made(&schema(), row, text)).unwrap_err();
        assert!(found.contains(why), "{text}: {found}");
    }
    let found = with_row(&[], |row| made(&schema(), row, "[class, 1]")).unwrap_err();
    assert!(found.contains("there is no class"), "{found}");
}

#[test]
fn a_list_keeps_nan_of_columns_and_names_what_is_missing() {
    let tensor = |name: &str| Column {
        name: name.into(),
        ty: ColumnType::Tensor(fixed_tensor(name, DType::F32, &[])),
    };
    let optional = Column { ty: ColumnType::Optional(Box::new(tensor("o").ty)), ..tensor("o") };
    // The longest name that stands at a place is the column, whatever signs are in it.
    let schema = Schema(vec![tensor("a"), tensor("x, y"), tensor("first name"), tensor("[c]"), optional]);
    let data = [1_f32, 2.0, f32::NAN, 4.0].map(f32::to_ne_bytes);
    let view =
        |at: usize| Value::Tensor(TensorView { name: "x", dtype: DType::F32, shape: &[], data: &data[at] });
    let row = [view(0), view(1), view(2), view(3), Value::Missing("o")];
    let (dtype, shape, numbers) = made(&schema, &row, "[[c], x, y, first name,a ]").unwrap();
    assert_eq!((dtype, &shape[..]), (DType::F32, &[4][..]));
    assert!(numbers[..2] == [4.0, 2.0] && numbers[2].is_nan() && numbers[3] == 1.0, "{numbers:?}");
    let wide = made(&schema, &row, "f64(first name)").unwrap().2;
    assert!(wide[0].is_nan(), "{wide:?}");
    for (text, why) in [
        ("[a, o]", "`o` is missing"),
        ("f64([a, o])", "`o` is missing"),
        ("i64(first name)", "i64 cannot hold NaN"),
        ("[a, b]", "`a, b` is a column, and can be read otherwise, too"),
    ] {
        let schema =
            Schema(schema.0.iter().cloned().chain(text.contains('b').then(|| tensor("a, b"))).collect());
        let found = made(&schema, &row, text).unwrap_err();
        assert!(found.contains(why), "{text}: {found}");
    }
    assert_eq!(made(&schema, &row, "[a, or_else(o, 9)]").unwrap().2, [1.0, 9.0]);
}

#[test]
fn what_is_no_expression_is_refused_with_the_reason() {
    for (text, why) in [
        ("score >=", "ends where a value is expected"),
        ("score >= 3abc", "`3abc` is no number"),
        ("score > 1e999", "`1e999` is no number"),
        (">= 3", "`>=` stands where a value is expected"),
        ("label > 'a'", "can be == or != to `label`, not >"),
        ("label == 'a", "no closing quote"),
        ("class == 1 andb == 2", "expected `and`, `or` or a sign, found `andb`"),
        ("class = 1", "write `==`"),
        ("class == 1 && flag", "write `and`"),
        ("(class == 1", "not closed"),
        ("class == 1)", "found `)`"),
        ("1 < class < 3", "joined by `and`"),
        ("label == 3", "`label` is a text and `3` is a number"),
        ("score == 'a'", "`'a'` is a text and `score` is a number"),
        ("score and flag", "`and` takes comparisons, and `score` is a number"),
        ("not label", "`not` takes comparisons, and `label` is a text"),
        ("label + 1 == 2", "`+` takes numbers, and `label` is a text"),
        ("-label == 2", "`-` takes numbers, and `label` is a text"),
        ("len(score) == 1", "`len` takes texts, and `score` is a number"),
        ("contains(label)", "`contains` takes two texts, not 1"),
        ("length(label) == 1", "no function `length`"),
        ("is_missing(1 + 1)", "`is_missing` takes a field"),
        ("or_else(label) == 'a'", "takes a field and what stands for it, not 1"),
        ("or_else(label, 1) == 'a'", "`or_else` takes two of one type"),
    ] {
        match parse(&schema(), &|_| None, text) {
            Err(Wrong::Form(found)) => assert!(found.contains(why), "{text}: {found}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    for (text, name) in [
        ("score >= high", "high"),
        ("scor*2 > 1", "scor"),
        ("out/logits-1 > 1", "out/logits-1"),
        ("out/logits-1[2] > 1", "out/logits-1[2]"),
    ] {
        assert_eq!(parse(&schema(), &|_| None, text), Err(Wrong::Field(name.into())), "{text}");
    }
}

#[test]
fn depth_is_bounded_and_long_chains_of_conditions_are_not_deep() {
    let deep = format!("{}1{} == 1", "(".repeat(100), ")".repeat(100));
    assert!(matches!(parse(&schema(), &|_| None, &deep), Err(Wrong::Form(why)) if why.contains("nested")));
    let signs = format!("{}1 == 1", "1 + ".repeat(1000));
    assert!(matches!(parse(&schema(), &|_| None, &signs), Err(Wrong::Form(why)) if why.contains("256")));
    assert!(holds(&vec!["label != 'x'"; 5000].join(" and "), &CAT));
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z0-9 ()'.,<>=!+*/\\[\\]ü-]{0,40}", words in prop::collection::vec(
        prop::sample::select(vec!["not", "and", "or", "(", ")", "-", "+", "*", "/", "score", "label", "'a'", "3", "==", "<", "len(", "id", ",", "[", "]", "f32("]), 0..12,
    )) {
        for text in [text, words.join(" ")] {
            with_row(&CAT, |row| made(&schema(), row, &text)).ok();
            if let Ok(expression) = parse(&schema(), &|_| None, &text) {
                let bytes = wire::encode(&expression).unwrap();
                let again: Expression = wire::decode(&bytes).unwrap();
                with_row(&CAT, |row| {
                    let all = |of: &Expression| {
                        format!("{:?} {:?} {:?} {:?}", of.truth(row), of.number(row), of.integer(row), of.text(row))
                    };
                    assert_eq!(all(&expression), all(&again));
                });
            }
        }
    }
}
