//! Which column feeds a model, and what makes the tensor that it takes of columns that do not fit.

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{TensorSpec, TextInput};

use super::feeds::is_same_row;
use super::{Wiring, gives};
use crate::diagnostics::Reported;
use crate::kind::Input;
use crate::nearest::toml_key;
use crate::workflow::Link;

impl Wiring<'_, '_> {
    /// The column that a link means: a tensor.
    pub(super) fn tensor_of(
        &mut self,
        reader: &str,
        input: &Input,
        want: &TensorSpec,
        link: &Link,
    ) -> Result<usize, Reported> {
        let mut tensors = input.gives.0.iter().filter_map(|column| column.ty.tensor());
        if input.column.is_none()
            && let (Some(first), Some(_)) = (tensors.next(), tensors.next())
            && is_list_of(want, first).is_some_and(|n| n > 1)
            && let Some(help) = self.remedy(link, first, want)
        {
            let message = format!("{reader} feeds `{}`, {want}, by one tensor", want.name);
            return self
                .cx
                .error(link.span, message)
                .label(format!("it gives {}", input.gives))
                .help(help)
                .fail();
        }
        let has_pictures = input.gives.0.iter().any(|column| column.ty == ColumnType::Picture);
        let mut what = "a tensor".to_owned();
        if input.is_source && has_pictures {
            what += ": put an image stage in between: [stages.pixels], kind = \"image\", from = \"";
            what += &format!("{}\", size = [..]", input.name);
        }
        let is_tensor = |column: &Column| column.ty.tensor().is_some();
        input.column(reader, &what, is_tensor, &mut self.cx.diags)
    }

    /// The column of texts that a link means: the one that is named, that of the name of the model's input, or the only one.
    pub(super) fn texts_of(
        &mut self,
        reader: &str,
        input: &Input,
        want: &TextInput,
    ) -> Result<usize, Reported> {
        let fits = |column: &Column| are_texts(&column.ty, want);
        let own = input.gives.position(&want.name).filter(|_| input.column.is_none());
        if let Some(own) = own.filter(|place| fits(&input.gives.0[*place])) {
            return Ok(own);
        }
        let name = &want.name;
        let what = match want.n_texts() {
            1 => format!(
                "a text for `{name}`, {want}: columns = {{ {} = \"text\" }} of CSV and JSON lines reads any number as one, and a Python stage makes one of other columns",
                toml_key(input.column.as_ref().unwrap_or(name))
            ),
            n => format!(
                "a list of {n} texts for `{name}`, {want}: a select stage makes one, columns = {{ {} = \"[FIRST, SECOND, ..]\" }}, and a Python stage, outputs={{\"{name}\": {{\"text\": \"text\"}}}}",
                toml_key(name)
            ),
        };
        input.column(reader, &what, fits, &mut self.cx.diags)
    }

    /// The select stage that makes what a model takes of what is given.
    pub(super) fn remedy(&self, link: &Link, give: &TensorSpec, want: &TensorSpec) -> Option<String> {
        let columns = &gives(self.workflow, link.target)?.0;
        let equal = columns.iter().filter_map(|column| column.ty.tensor()).filter(|of| of.row == give.row);
        let equal: Vec<&TensorSpec> = equal.collect();
        let names = |of: &[&TensorSpec]| of.iter().map(|of| &*of.name).collect::<Vec<_>>().join(", ");
        let (of, all) = match is_list_of(want, give) {
            _ if is_same_row(want, give) => (give.name.clone(), &[give][..]),
            Some(1) => (format!("[{}]", give.name), &[give][..]),
            Some(n) if n == equal.len() => (format!("[{}]", names(&equal)), &equal[..]),
            Some(_) => (format!("[{}, ..]", give.name), &[give][..]),
            None => return None,
        };
        let fits = all.iter().all(|of| of.dtype.goes_into(want.dtype));
        let made = if fits { of } else { format!("{}({of})", want.dtype) };
        let (key, made) = (toml_key(&want.name), serde_json::Value::from(made));
        let from = self.workflow.name_of(link.target);
        Some(format!(
            "a select stage makes it: kind = \"select\", from = \"{from}\", columns = {{ {key} = {made} }}"
        ))
    }
}

/// Whether values of this type are the texts that an item feeds the input: one, or a list of as many as a row of it has.
fn are_texts(ty: &ColumnType, want: &TextInput) -> bool {
    match ty.required() {
        ColumnType::Text => want.n_texts() == 1,
        ColumnType::List(Schema(columns)) => {
            let is_text = matches!(&columns[..], [Column { ty: ColumnType::Text, .. }]);
            is_text && want.row.iter().all(|dim| dim.fixed().is_some())
        }
        _ => false,
    }
}

/// How many of `give` one behind the other are what a model takes, if any are.
fn is_list_of(want: &TensorSpec, give: &TensorSpec) -> Option<usize> {
    let (first, rest) = want.row.split_first()?;
    let of = TensorSpec { row: rest.to_vec(), ..want.clone() };
    is_same_row(&of, give).then_some(first.fixed().unwrap_or(1))
}
