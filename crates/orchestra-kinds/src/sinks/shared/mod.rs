//! What several kinds of sinks write, read back or refuse. Nothing here is a kind.

pub mod column_names;
pub mod npy_file;
pub mod read_back;
pub mod record;

use orchestra_core::data::Column;
use orchestra_plan::{Fields, Input, Reported, list};

/// Reports a column that the sink cannot write.
pub fn cannot_write<T>(
    column: &Column,
    input: &Input,
    fields: &mut Fields<'_, '_>,
    help: &str,
) -> Result<T, Reported> {
    let message = format!("{} cannot write `{}` of stage `{}`", fields.what, column.name, input.name);
    fields.diags.error(input.span, message).label(format!("it is {}", column.ty)).help(help).fail()
}

/// The only column of a sink that takes one. `what` says of which kind, and `help` what to do where none of several `fits`.
pub fn only_column<'a>(
    input: &'a Input,
    fields: &mut Fields<'_, '_>,
    (what, help): (&str, &str),
    fits: impl Fn(&Column) -> bool,
) -> Result<&'a Column, Reported> {
    if let [column] = &input.gives.0[..] {
        return Ok(column);
    }
    let message = format!("{} takes one {what}, and `{}` gives {}", fields.what, input.name, input.gives);
    let fitting = input.gives.0.iter().filter(|column| fits(column));
    let help = match list(fitting.map(|column| column.name.as_str())) {
        names if names.is_empty() => help.to_owned(),
        names => format!("name one: from = \"stage.column\"; columns: {names}"),
    };
    fields.diags.error(input.span, message).help(help).fail()
}
