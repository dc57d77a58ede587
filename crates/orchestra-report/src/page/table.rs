//! Tables that a script sorts and filters, and that are whole without it.

use maud::{Markup, html};

/// A cell, and the number that it is sorted by where it is one.
pub struct Cell {
    body: Markup,
    number: Option<f64>,
}

pub fn text(text: impl AsRef<str>) -> Cell {
    Cell { body: html! { (text.as_ref()) }, number: None }
}

pub fn number(value: f64, text: impl AsRef<str>) -> Cell {
    Cell { body: html! { (text.as_ref()) }, number: Some(value) }
}

pub fn count(n: u64) -> Cell {
    number(n as f64, crate::human::count(n))
}

pub fn markup(body: Markup) -> Cell {
    Cell { body, number: None }
}

/// A table with a head for each column.
pub fn table(caption: &str, heads: &[&str], rows: Vec<Vec<Cell>>) -> Markup {
    html! {
        div.table {
            table {
                caption { (caption) }
                thead { tr { @for (at, head) in heads.iter().enumerate() {
                    th.n[is_number(&rows, at)] scope="col" { (head) }
                } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for cell in row {
                                @match cell.number {
                                    Some(number) => td data-n=(super::chart::short(number)) { (cell.body) },
                                    None => td { (cell.body) },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a column has numbers: its head stands above them.
fn is_number(rows: &[Vec<Cell>], column: usize) -> bool {
    rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.number.is_some())
}
