//! What a kind reads: a source or a stage, and which of its columns is meant.

use std::collections::BTreeMap;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};

use crate::diagnostics::{Diagnostics, Reported, Span};
use crate::fields::Spanned;
use crate::nearest::suggestion;
use crate::outputs::UnreadableOutput;

/// A source or stage that is read.
#[derive(Debug, Clone, Default)]
pub struct Input {
    pub name: String,
    pub kind: &'static str,
    pub is_source: bool,
    pub span: Span,
    /// `paths` of a source, as written; empty for a manifest and for a stage.
    pub paths: Vec<String>,
    /// All columns that it gives. Behind them, where its rows were made of a picture, a [`ColumnType::Placement`] that says how, even if an
    /// earlier stage gives it.
    pub gives: Schema,
    /// Outputs of its model that no stage can read.
    pub unreadable: Vec<UnreadableOutput>,
    /// The one column that is meant, where the file says so (`from = "stage.column"`).
    pub column: Option<String>,
    /// Other names of its columns, by what they begin with, and what the names in `gives` begin with instead: `stage.column` is always understood.
    pub aliases: Vec<(String, String)>,
    /// The labels of its model, if it runs one that has some.
    pub labels: Option<Spanned<Vec<String>>>,
    /// What the file of its model says about itself beside inputs and outputs; empty where it runs none.
    pub metadata: Arc<BTreeMap<String, String>>,
    /// For each output of its model the operator that makes its numbers, where the file tells.
    pub made_by: Arc<BTreeMap<String, String>>,
}

impl Input {
    /// What a name is called in [`Input::gives`], where it is another one of a column there.
    pub fn resolved(&self, name: &str) -> Option<String> {
        let is_whole =
            |to: &str, rest: &str| to.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']);
        self.aliases.iter().find_map(|(from, to)| {
            let rest = name.strip_prefix(from.as_str()).filter(|rest| is_whole(to, rest))?;
            Some(format!("{to}{rest}"))
        })
    }

    /// "infer stage `boxes`"
    pub fn described(&self) -> String {
        match self.is_source {
            true => format!("source `{}`", self.name),
            false => format!("{} stage `{}`", self.kind, self.name),
        }
    }

    /// Reports that an output of its model is read that cannot be.
    fn refuse(&self, output: &UnreadableOutput, diags: &mut Diagnostics) {
        let UnreadableOutput { name, what, remedy } = output;
        let message = format!("output `{name}` of {} cannot be read: it is {what}", self.described());
        let others = self.gives.names().next();
        let others =
            others.map(|other| format!("; or read other outputs alone, as in \"{}.{other}\"", self.name));
        diags.error(self.span, message).help(format!("{remedy}{}", others.unwrap_or_default()));
    }

    /// The place of a column; that there is none of that name is reported.
    fn place_of(&self, name: &str, diags: &mut Diagnostics) -> Result<usize, Reported> {
        if let Some(output) = self.unreadable.iter().find(|output| output.name == name) {
            self.refuse(output, diags);
            return Err(Reported);
        }
        self.gives.position(name).ok_or(Reported).or_else(|Reported| {
            let kind = if self.is_source { "source" } else { "stage" };
            let help = suggestion("outputs", name, self.gives.names().collect::<Vec<_>>());
            let message = format!("{kind} `{}` has no output `{name}`", self.name);
            diags.error(self.span, message).help(help).fail()
        })
    }

    /// The place of the column that is meant: the one that is named, or the only one that `fits`. `what` completes "takes ..".
    pub(crate) fn column(
        &self,
        reader: &str,
        what: &str,
        fits: impl Fn(&Column) -> bool,
        diags: &mut Diagnostics,
    ) -> Result<usize, Reported> {
        let columns = &self.gives.0;
        if let Some(name) = &self.column {
            let place = self.place_of(name, diags)?;
            if fits(&columns[place]) {
                return Ok(place);
            }
            return diags
                .error(self.span, format!("{reader} cannot take `{}.{name}`", self.name))
                .label(format!("it is {}", columns[place].ty))
                .help(format!("it takes {what}"))
                .fail();
        }
        let fitting: Vec<usize> = (0..columns.len()).filter(|place| fits(&columns[*place])).collect();
        match fitting[..] {
            [only] => Ok(only),
            [] if !self.unreadable.is_empty() => {
                self.unreadable.iter().for_each(|output| self.refuse(output, diags));
                Err(Reported)
            }
            [] => diags
                .error(self.span, format!("{reader} cannot read from {}", self.described()))
                .label(format!("it gives {}", self.gives))
                .help(format!("it takes {what}"))
                .fail(),
            _ => {
                let named = fitting.iter().map(|place| format!("\"{}.{}\"", self.name, columns[*place].name));
                let (names, which) = (named.collect::<Vec<_>>().join(" or "), self.described());
                diags
                    .error(self.span, format!("{reader} must say which of the outputs of {which} it reads"))
                    .help(format!("write {names}"))
                    .fail()
            }
        }
    }
}

/// Columns of inputs: which input, and which of its columns.
pub type InputColumns = Vec<(usize, usize)>;

/// What is read of all inputs, as one row. A single input gives its columns as they are named there; of several, a column is called as the
/// `from` that names it, or `stage`, or `stage.column` where the stage gives several. `reader` is "stage `x`".
pub(crate) fn whole_row(
    reader: &str,
    inputs: &[Input],
    diags: &mut Diagnostics,
) -> Result<(Input, InputColumns), Reported> {
    let (first, several) = (inputs.first().ok_or(Reported)?, inputs.len() > 1);
    let mut columns: Vec<Column> = Vec::new();
    let mut reads = Vec::new();
    let mut aliases = Vec::new();
    if !several {
        aliases.push((format!("{}.", first.name), String::new()));
    }
    for (at, input) in inputs.iter().enumerate() {
        let all = &input.gives.0;
        if let (None, [_, ..]) = (&input.column, &input.unreadable[..]) {
            input.unreadable.iter().for_each(|output| input.refuse(output, diags));
            return Err(Reported);
        }
        let named = match &input.column {
            Some(name) => {
                let place = input.place_of(name, diags)?;
                place..place + 1
            }
            None => 0..all.len(),
        };
        let dotted = input.column.is_some() || input.gives.whole().count() > 1;
        for place in named.filter(|place| all[*place].ty != ColumnType::Placement) {
            let name = match (several, dotted) {
                (false, _) => all[place].name.clone(),
                (true, false) => {
                    aliases.push((format!("{}.{}", input.name, all[place].name), input.name.clone()));
                    input.name.clone()
                }
                (true, true) => format!("{}.{}", input.name, all[place].name),
            };
            if columns.iter().any(|column| column.name == name) {
                return diags
                    .error(input.span, format!("{reader} reads `{name}` twice"))
                    .help("name it once")
                    .fail();
            }
            columns.push(Column { name, ty: all[place].ty.clone() });
            reads.push((at, place));
        }
    }
    let name = inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join("`, `");
    let labels = first.labels.clone().filter(|_| !several);
    let metadata = if several { Arc::default() } else { Arc::clone(&first.metadata) };
    let made_by = if several { Arc::default() } else { Arc::clone(&first.made_by) };
    let whole = Input {
        name,
        gives: Schema(columns),
        column: None,
        aliases,
        labels,
        metadata,
        made_by,
        ..first.clone()
    };
    Ok((whole, reads))
}
