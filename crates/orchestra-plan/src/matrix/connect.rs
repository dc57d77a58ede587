//! What the stages of a matrix give: the one that makes its parts, and those that do with a part what its variant says.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::shapes::{MATRIX, Map, MatrixValue, Variant, VariantMap, VariantParts, map_of};
use orchestra_core::{DType, Dim, Fit, ImageSpec, TensorSpec};
use serde_json::json;

use super::{Matrix, text_of};
use crate::diagnostics::Reported;
use crate::fields::Fields;
use crate::kind::{Connect, Draft, Runs, StageConnected, StageContext, StageKind};
use crate::tree::{Toml, TomlNode};

/// The column with the place of a variant. No stage can name it.
const PLACE: &str = "[variant]";
/// The column with it, by its place.
const PLACE_COLUMN: usize = 0;

/// The kind of the stages that make the parts of matrices, which no table names.
pub(crate) struct MatrixKind;

impl StageKind for MatrixKind {
    fn name(&self) -> &'static str {
        MATRIX
    }

    fn about(&self) -> &'static str {
        "Makes a part of each row for each combination of values."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        None
    }
}

pub(crate) fn draft_of_parts(matrix: &Matrix) -> Draft {
    let mut gives =
        vec![Column { name: PLACE.to_owned(), ty: ColumnType::Tensor(fixed_tensor(PLACE, DType::I64, &[])) }];
    let mut parts = vec![Vec::new(); matrix.variants.len()];
    for (at, name) in matrix.names.iter().enumerate() {
        let values: Vec<&Toml> = matrix.variants.iter().map(|values| &values[at].value).collect();
        let (ty, values) = column(name, &values);
        gives.push(Column { name: name.clone(), ty });
        parts.iter_mut().zip(values).for_each(|(part, value)| part.push(value));
    }
    let label = |values: &Vec<TomlNode>| {
        super::label(matrix.names.iter().zip(values.iter().map(|value| &value.value)))
    };
    let labels = matrix.variants.iter().map(label).collect();
    Draft::Stage(Box::new(PartsDraft {
        gives: Schema(gives),
        map: map_of(MATRIX, VariantParts(parts), Some(8)),
        labels,
    }))
}

/// A value of a matrix as a column: numbers and lists of as many are tensors, all else is text.
fn column(name: &str, values: &[&Toml]) -> (ColumnType, Vec<MatrixValue>) {
    let shape = |value: &Toml| match value {
        Toml::Array(items) => vec![items.len()],
        _ => Vec::new(),
    };
    let numbers = |value: &Toml| -> Option<Vec<Toml>> {
        let items = match value {
            Toml::Array(items) => items.iter().map(|item| item.value.clone()).collect(),
            value => vec![value.clone()],
        };
        items.iter().all(|item| matches!(item, Toml::Integer(_) | Toml::Float(_))).then_some(items)
    };
    let row = shape(values[0]);
    let all = values.iter().map(|value| numbers(value).filter(|_| shape(value) == row));
    let Some(all) = all.collect::<Option<Vec<_>>>() else {
        let text = |value: &&Toml| MatrixValue::Text(text_of(value).unwrap_or_default());
        return (ColumnType::Text, values.iter().map(text).collect());
    };
    let is_whole = all.iter().flatten().all(|number| matches!(number, Toml::Integer(_)));
    let dtype = if is_whole { DType::I64 } else { DType::F64 };
    let bytes = |number: &Toml| match number {
        Toml::Integer(n) if is_whole => n.to_ne_bytes(),
        Toml::Integer(n) => (*n as f64).to_ne_bytes(),
        Toml::Float(n) => n.to_ne_bytes(),
        _ => [0; 8],
    };
    let value = |numbers: &Vec<Toml>| MatrixValue::Tensor {
        name: name.to_owned(),
        dtype,
        shape: row.clone(),
        data: numbers.iter().flat_map(bytes).collect(),
    };
    (ColumnType::Tensor(fixed_tensor(name, dtype, &row)), all.iter().map(value).collect())
}

#[derive(Debug)]
struct PartsDraft {
    gives: Schema,
    map: Arc<dyn Map>,
    labels: Vec<String>,
}

impl Connect for PartsDraft {
    fn connect(&self, _: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let n = self.labels.len();
        Ok(StageConnected {
            gives: self.gives.clone(),
            reads: Vec::new(),
            settings: json!({ "variants": self.labels }),
            details: self.labels.clone(),
            about: format!("{n} parts of each row: {}", self.labels.join("; ")),
            runs: Runs::Map(Arc::clone(&self.map)),
        })
    }
}

/// The draft of a stage that depends on matrices with so many variants each: of all combinations a label and a draft.
pub(crate) fn draft_of_variants(drafts: Vec<(String, Box<dyn Connect>)>, counts: Vec<usize>) -> Draft {
    let pixels = drafts.iter().map(|(_, draft)| draft.pixels().cloned()).collect::<Option<Vec<_>>>();
    let pixels = pixels.and_then(|specs| pixels_of_all(&specs));
    Draft::Stage(Box::new(VariantsDraft { drafts, counts, pixels }))
}

/// The rows of pictures of all variants: where these differ in size, rows of the largest, of which a model computes what is there.
fn pixels_of_all(specs: &[ImageSpec]) -> Option<ImageSpec> {
    let (first, more) = specs.split_first()?;
    if more.iter().all(|spec| spec.size == first.size) {
        return Some(first.clone());
    }
    let largest = |axis: usize| specs.iter().map(|spec| spec.size[axis]).max().unwrap_or(0);
    Some(ImageSpec { size: [largest(0), largest(1)], fit: Fit::Corner, trim: Some(1), ..first.clone() })
}

#[derive(Debug)]
struct VariantsDraft {
    drafts: Vec<(String, Box<dyn Connect>)>,
    counts: Vec<usize>,
    pixels: Option<ImageSpec>,
}

impl Connect for VariantsDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let (inputs, parts) = stage.inputs.split_at(stage.inputs.len() - self.counts.len());
        let (mut all, mut reads, mut maps) = (Vec::new(), Vec::new(), Vec::new());
        for (label, draft) in &self.drafts {
            let name = format!("{}[{label}]", stage.name);
            // A warning holds for all of them.
            let warned = stage.diags.all().len();
            let connected = draft.connect(&mut StageContext {
                name: &name,
                inputs,
                diags: &mut *stage.diags,
                ..*stage
            })?;
            stage.diags.forget_warnings(if all.is_empty() { usize::MAX } else { warned });
            let Runs::Map(map) = &connected.runs else {
                let message =
                    format!("stage `{}` brings rows together, which are of all variants", stage.name);
                return stage
                    .error(stage.span, message)
                    .help("`matrix` and its values belong to stages that work on each row by itself")
                    .fail();
            };
            let mut place = |read: &(usize, usize)| {
                let known = reads.iter().position(|of| of == read);
                known.unwrap_or_else(|| {
                    reads.push(*read);
                    reads.len() - 1
                })
            };
            let places = connected.reads.iter().map(&mut place).collect();
            maps.push(Variant { label: label.clone(), map: Arc::clone(map), reads: places });
            all.push(connected);
        }
        let (gives, padded) = self.gives(&all, stage)?;
        reads.extend((0..parts.len()).map(|at| (inputs.len() + at, PLACE_COLUMN)));
        let of_each = |value: fn(&StageConnected) -> serde_json::Value| -> serde_json::Value {
            self.drafts.iter().zip(&all).map(|((label, _), of)| (label.clone(), value(of))).collect()
        };
        let first = &all[0];
        let of_variant =
            |(of, (label, _)): (&StageConnected, &(String, _))| format!("\n{label}: {}", of.about);
        let about: String = match all.iter().all(|of| of.about == first.about) {
            true => first.about.clone(),
            false => {
                format!("{} variants", all.len())
                    + &all.iter().zip(&self.drafts).map(of_variant).collect::<String>()
            }
        };
        Ok(StageConnected {
            gives,
            reads,
            settings: json!({ "variants": of_each(|of| of.settings.clone()) }),
            details: first.details.clone(),
            about,
            runs: Runs::Map(Arc::new(VariantMap { maps, counts: self.counts.clone(), padded })),
        })
    }

    fn reads_largest(&self) -> bool {
        self.drafts.iter().all(|(_, draft)| draft.reads_largest())
    }

    fn pixels(&self) -> Option<&ImageSpec> {
        self.pixels.as_ref()
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        self.drafts[0].1.advice(name, want)
    }
}

impl VariantsDraft {
    /// The columns that all variants give, and those of them that smaller tensors are padded to.
    fn gives(
        &self,
        all: &[StageConnected],
        stage: &mut StageContext<'_>,
    ) -> Result<(Schema, Vec<Option<TensorSpec>>), Reported> {
        let largest = self.pixels.as_ref().map(ImageSpec::tensor);
        let padded_to = |column: &Column| match &column.ty {
            ColumnType::Tensor(tensor) => largest.clone().filter(|largest| {
                let fits = |(of, largest): (&Dim, &Dim)| of.fixed() <= largest.fixed();
                (&tensor.name, tensor.dtype) == (&largest.name, largest.dtype)
                    && tensor.row.len() == largest.row.len()
                    && tensor.row.iter().zip(&largest.row).all(fits)
            }),
            _ => None,
        };
        let first = &all[0].gives.0;
        let mut gives = Vec::new();
        for (at, column) in first.iter().enumerate() {
            let is_same = |of: &StageConnected| of.gives.0.get(at) == Some(column);
            let fits = |of: &StageConnected| of.gives.0.get(at).is_some_and(|of| padded_to(of).is_some());
            let padded = padded_to(column).filter(|_| !all.iter().all(is_same) && all.iter().all(fits));
            gives.push((column, padded));
        }
        let is_other = |of: &StageConnected| {
            let is_column =
                |((column, padded), of): (&(&Column, Option<_>), &Column)| padded.is_some() || *column == of;
            of.gives.0.len() != gives.len()
                || !gives.iter().zip(&of.gives.0).all(is_column)
                || of.runs.fan() != all[0].runs.fan()
        };
        if let Some(other) = all.iter().position(is_other) {
            let (a, b) = (&self.drafts[0].0, &self.drafts[other].0);
            let message = format!("the variants of stage `{}` give different columns", stage.name);
            return stage
                .error(stage.span, message)
                .label(format!("with {a} it gives {}, with {b} {}", all[0].gives, all[other].gives))
                .help("rows of pictures may differ in `size`, without `normalize = \"device\"`; all else must be the same for all values")
                .fail();
        }
        let schema = gives.iter().map(|(column, padded)| match padded {
            Some(tensor) => Column { name: column.name.clone(), ty: ColumnType::Tensor(tensor.clone()) },
            None => (*column).clone(),
        });
        Ok((Schema(schema.collect()), gives.into_iter().map(|(_, padded)| padded).collect()))
    }
}
