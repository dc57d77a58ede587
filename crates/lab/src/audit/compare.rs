//! Whether two records of one item say the same. A run cuts batches where it likes, and the same row in a batch of another size may come
//! out with other low bits: so fractions may differ a little, and nothing else may differ at all.

use serde_json::Value;

/// Fractions are equal that differ by at most this part of the larger one.
const RELATIVE: f64 = 1e-4;
/// Fractions near 0, such as probabilities of other classes, are equal that differ by at most this much.
const ABSOLUTE: f64 = 1e-6;
/// Two probabilities that are equal are no larger than this: a class with a better one has no tie.
const BEST_TIE: f64 = 0.5;

/// Whether the lines are the same bytes or say the same.
pub fn same_record(a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    let (Ok(a), Ok(b)) = (serde_json::from_slice(a), serde_json::from_slice(b)) else { return false };
    alike(&a, &b)
}

/// Whether two failures of an item say the same: the stage and the kind. The words and the number of attempts depend on what died.
pub fn same_failure(a: &[u8], b: &[u8]) -> bool {
    let (Ok(a), Ok(b)) = (serde_json::from_slice::<Value>(a), serde_json::from_slice::<Value>(b)) else {
        return false;
    };
    ["item", "index", "source", "stage", "kind"].iter().all(|key| a.get(key) == b.get(key))
}

fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            // Whole numbers count something and have no low bits; they are written without a point.
            let fractions = (x.as_f64().filter(|_| x.is_f64())).zip(y.as_f64().filter(|_| y.is_f64()));
            x == y || fractions.is_some_and(|(x, y)| near(x, y))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && (x.iter().zip(y).all(|(x, y)| alike(x, y)) || same_classes(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| alike(x, y)))
        }
        _ => a == b,
    }
}

fn near(x: f64, y: f64) -> bool {
    (x - y).abs() <= (RELATIVE * x.abs().max(y.abs())).max(ABSOLUTE)
}

/// Whether two lists of classes, best first, are the same but for the order of classes whose scores are as good as equal. Among
/// those at the end of the list, one class may stand for another that is as good as equal to it and was cut off.
fn same_classes(a: &[Value], b: &[Value]) -> bool {
    // What has a score and no class is no list of classes.
    let score = |v: &Value| v.get("class").and_then(|_| v.get("score")?.as_f64());
    let scores = |list: &[Value]| list.iter().map(score).collect::<Option<Vec<f64>>>();
    let (Some(x), Some(y)) = (scores(a), scores(b)) else { return false };
    if x.len() != y.len() || !x.iter().zip(&y).all(|(x, y)| near(*x, *y)) {
        return false;
    }
    let mut left: Vec<usize> = (0..a.len()).collect();
    let mut foreign = Vec::new();
    for (place, v) in b.iter().enumerate() {
        match left.iter().position(|i| same_class(&a[*i], v)) {
            Some(i) if near(x[left.swap_remove(i)], y[place]) => {}
            Some(_) => return false,
            None if a.iter().any(|w| same_class(w, v)) => return false, // It comes twice.
            None => foreign.push(place),
        }
    }
    let ties_with_last = |scores: &[f64], place: usize| {
        scores[place] <= BEST_TIE && scores.last().is_some_and(|last| near(scores[place], *last))
    };
    match (left.as_slice(), foreign.as_slice()) {
        ([], []) => true,
        ([gone], [came]) => ties_with_last(&x, *gone) && ties_with_last(&y, *came),
        _ => false,
    }
}

/// Whether two entries say the same of all but the score.
fn same_class(v: &Value, w: &Value) -> bool {
    let (Value::Object(v), Value::Object(w)) = (v, w) else { return false };
    v.len() == w.len() && v.iter().all(|(key, value)| key == "score" || w.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        same_record(a.as_bytes(), b.as_bytes())
    }

    fn classes(list: &[(u32, f64)]) -> String {
        let entry = |(class, score): &(u32, f64)| {
            format!(r#"{{"label":"l{class}","class":{class},"score":{score}}}"#)
        };
        let entries: Vec<String> = list.iter().map(entry).collect();
        format!(r#"{{"item":"a","index":3,"source":"s","result":[{}]}}"#, entries.join(","))
    }

    #[test]
    fn low_bits_may_differ_and_nothing_else() {
        let record = |index: u32, item: &str, shape: &str, value: &str| {
            format!(
                r#"{{"item":"{item}","index":{index},"source":"s","result":{{"y":{{"dtype":"f32","shape":[{shape}],"data":[{value}]}}}}}}"#
            )
        };
        let a = record(1, "a", "2", "1.0,null");
        assert!(same(&a, &a));
        assert!(same(&a, &record(1, "a", "2", "1.00005,null")));
        assert!(!same(&a, &record(1, "a", "2", "1.001,null")));
        assert!(!same(&a, &record(1, "a", "2", "1.0,0.0")));
        assert!(!same(&a, &record(1, "a", "2", "1.0")));
        assert!(!same(&a, &record(1, "b", "2", "1.0,null")));
        assert!(!same(&record(1_000_000, "a", "2", "1.0"), &record(1_000_001, "a", "2", "1.0")));
        assert!(!same(&record(1, "a", "1000000", "1.0"), &record(1, "a", "1000001", "1.0")));
        assert!(!same(&a, "no record"));
    }

    #[test]
    fn classes_may_change_places_only_where_their_scores_are_as_good_as_equal() {
        let a = classes(&[(7, 0.9), (1, 0.05), (2, 0.05)]);
        assert!(same(&a, &classes(&[(7, 0.90001), (2, 0.05), (1, 0.05)])));
        assert!(same(&a, &classes(&[(7, 0.9), (1, 0.05), (3, 0.05)])), "equal at the end of the list");
        assert!(!same(&a, &classes(&[(1, 0.9), (7, 0.05), (2, 0.05)])));
        assert!(!same(&a, &classes(&[(8, 0.9), (1, 0.05), (2, 0.05)])));
        assert!(!same(&a, &classes(&[(7, 0.9), (1, 0.05)])));
        assert!(!same(&classes(&[(7, 0.9)]), &classes(&[(7, 0.8)])));
    }

    #[test]
    fn another_best_class_is_another_result_however_near_its_score() {
        let one = |class, score| classes(&[(class, score)]);
        assert!(!same(&one(3, 0.99998), &one(7, 0.99999)));
        assert!(!same(&one(3, 0.50001), &one(7, 0.50001)), "both cannot have more than half");
        assert!(same(&one(3, 0.50001), &one(3, 0.50002)));
        assert!(same(&one(3, 0.499_99), &one(7, 0.5)), "a tie of the two best");
        assert!(!same(&one(3, 0.4), &one(7, 0.41)));
        assert!(!same(&classes(&[(1, 0.3), (2, 0.2)]), &classes(&[(3, 0.3), (2, 0.2)])), "not at the end");
    }

    #[test]
    fn one_class_may_stand_for_another_and_not_two_and_none_may_come_twice() {
        let a = classes(&[(7, 0.4), (1, 0.2), (2, 0.2)]);
        assert!(same(&a, &classes(&[(7, 0.4), (3, 0.2), (1, 0.2)])));
        assert!(!same(&a, &classes(&[(7, 0.4), (3, 0.2), (4, 0.2)])));
        assert!(!same(&a, &classes(&[(7, 0.4), (1, 0.2), (1, 0.2)])));
    }

    #[test]
    fn what_is_said_beside_the_score_must_be_the_same() {
        let boxes =
            |at: u32| format!(r#"{{"result":[{{"score":0.3,"box":[{at}]}},{{"score":0.3,"box":[2]}}]}}"#);
        assert!(same(&boxes(1), &boxes(1)));
        assert!(!same(&boxes(1), &boxes(3)), "no list of classes");
        let a = classes(&[(1, 0.3), (2, 0.3)]);
        let b = classes(&[(2, 0.3), (1, 0.3)]);
        assert!(same(&a, &b));
        assert!(!same(&a, &b.replace("l1", "x").replace("l2", "y")), "other labels");
    }

    #[test]
    fn failures_agree_in_stage_and_kind_whatever_their_words() {
        let failure = |kind: &str, attempts: u32| {
            format!(
                r#"{{"item":"a","index":0,"source":"s","stage":"m","kind":"{kind}","error":"e{attempts}","attempts":{attempts}}}"#
            )
        };
        let same = |a: String, b: String| same_failure(a.as_bytes(), b.as_bytes());
        assert!(same(failure("crash", 3), failure("crash", 9)));
        assert!(!same(failure("crash", 3), failure("timeout", 3)));
    }
}
