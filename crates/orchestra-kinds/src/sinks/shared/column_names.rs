//! Names of columns where a record is a row: those of its item come first, and no name is there twice. Knows no format.

use std::collections::HashSet;

use orchestra_core::data::{Column, Schema};

/// The columns that each record begins with.
pub const OF_ITEM: [&str; 3] = ["item", "index", "source"];

/// For each column the names that `derive` makes of what it is called: its own name, with `result_` in front as often as one of them is taken.
pub fn unique(schema: &Schema, derive: impl Fn(&Column, &str) -> Vec<String>) -> Vec<Vec<String>> {
    let mut taken: HashSet<String> = OF_ITEM.map(str::to_owned).into();
    let mut take = |column: &Column, called: &str| {
        let names = derive(column, called);
        let is_free = !names.iter().any(|name| taken.contains(name));
        is_free.then(|| {
            taken.extend(names.iter().cloned());
            names
        })
    };
    // A column that can keep its name does, also one that stands behind a column that gets another.
    let kept: Vec<_> = schema.0.iter().map(|column| take(column, &column.name)).collect();
    let renamed = schema.0.iter().zip(kept).map(|(column, kept)| {
        kept.unwrap_or_else(|| {
            let mut called = column.name.clone();
            loop {
                called.insert_str(0, "result_");
                if let Some(names) = take(column, &called) {
                    return names;
                }
            }
        })
    });
    renamed.collect()
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::ColumnType;

    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_a_prefix_and_no_other_column_loses_its_own() {
        let of = |names: &[&str]| -> Vec<String> {
            let column = |name: &&str| Column { name: (*name).to_owned(), ty: ColumnType::Text };
            // `y` is the first and second of two numbers.
            let derive = |column: &Column, called: &str| match &*column.name {
                "y" => vec![format!("{called}.0"), format!("{called}.1")],
                _ => vec![called.to_owned()],
            };
            unique(&Schema(names.iter().map(column).collect()), derive).concat()
        };
        assert_eq!(of(&["index", "a"]), ["result_index", "a"]);
        assert_eq!(of(&["item", "result_item"]), ["result_result_item", "result_item"]);
        assert_eq!(of(&["y", "y.1", "y.2"]), ["y.0", "y.1", "result_y.1", "y.2"]);
        assert_eq!(
            of(&["y.0", "y", "result_y.0"]),
            ["y.0", "result_result_y.0", "result_result_y.1", "result_y.0"]
        );
    }
}
