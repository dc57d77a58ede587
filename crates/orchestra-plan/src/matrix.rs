//! `matrix` of stages: which variants there are, and which stages depend on them. A stage with a matrix stands behind one that makes a part of each row
//! for each variant; it and all stages that use its values do with a part what its variant says. So the stages behind them, their workers too, are
//! there once. What a variant does at run time is in `orchestra-core`.

mod connect;

use std::collections::{BTreeMap, BTreeSet};

use orchestra_core::shapes::MATRIX;

pub(crate) use self::connect::{MatrixKind, draft_of_parts, draft_of_variants};
use crate::diagnostics::{Diagnostics, Reported, Span};
use crate::fields::{Fields, Spanned};
use crate::keys;
use crate::plan::task_names;
use crate::tasks::product;
use crate::template::{TemplatePart, parts};
use crate::tree::{Table, Toml, TomlNode};
use crate::workflow::value_lists;

/// Most variants of a stage: each is a part of every row.
const MOST_VARIANTS: usize = 256;
/// Keys of a stage that are the same for all variants.
const OF_ALL: [&str; 4] = ["kind", "from", "inputs", MATRIX];

/// The matrices of a file, and which of them each stage depends on.
#[derive(Debug, Default)]
pub(crate) struct Matrices {
    all: Vec<Matrix>,
    /// Their places, in order, by the stage.
    used: BTreeMap<String, Vec<usize>>,
    /// Stages of which a use of a value was reported.
    broken: BTreeSet<String>,
}

/// `matrix` of a stage.
#[derive(Debug)]
pub(crate) struct Matrix {
    /// The stage that has it.
    stage: String,
    /// The stage that makes its parts: `pixels[scale]`.
    pub name: Spanned<String>,
    pub names: Vec<String>,
    /// For each variant a value for each name.
    pub variants: Vec<Vec<TomlNode>>,
}

/// A stage as a variant has it.
pub(crate) struct StageVariant {
    /// `scale=0.5`
    pub label: String,
    /// `pixels[scale=0.5]`
    pub name: String,
    pub table: Table,
}

impl Matrices {
    pub fn read(root: &Table, diags: &mut Diagnostics) -> Self {
        let Some(Toml::Table(stages)) = root.get("stages").map(|entry| &entry.node.value) else {
            return Self::default();
        };
        let stages: Vec<(&String, &Table)> = (stages.entries.iter())
            .filter_map(|entry| match &entry.node.value {
                Toml::Table(table) => Some((&entry.key, table)),
                _ => None,
            })
            .collect();
        let read = stages.iter().filter_map(|(name, table)| Matrix::read(name, table, diags));
        let mut matrices = Self { all: read.collect(), ..Self::default() };
        if !matrices.all.is_empty() {
            let graph = StageGraph::of(&stages);
            for (at, (name, table)) in stages.iter().enumerate() {
                match matrices.used_by(at, name, table, &graph, diags) {
                    Ok(used) if used.is_empty() => {}
                    Ok(used) => _ = matrices.used.insert((*name).clone(), used),
                    Err(Reported) => _ = matrices.broken.insert((*name).clone()),
                }
            }
        }
        matrices
    }

    pub fn of(&self, stage: &str) -> Option<&Matrix> {
        self.all.iter().find(|matrix| matrix.stage == stage)
    }

    /// Whether the stage uses a value that it cannot have, which was reported.
    pub fn is_broken(&self, stage: &str) -> bool {
        self.broken.contains(stage)
    }

    /// Those that a stage depends on.
    pub fn used(&self, stage: &str) -> impl ExactSizeIterator<Item = &Matrix> + Clone {
        self.used.get(stage).map_or(&[][..], Vec::as_slice).iter().map(|at| &self.all[*at])
    }

    /// The stage as each combination of their variants has it, in the order of these. One without a matrix has none.
    pub fn variants(&self, stage: &str, table: &Table) -> Vec<StageVariant> {
        let used = self.used(stage);
        if used.len() == 0 {
            return Vec::new();
        }
        let pairs = |matrix: &Matrix, values: &[TomlNode]| -> Vec<(String, TomlNode)> {
            matrix.names.iter().cloned().zip(values.iter().cloned()).collect()
        };
        let axes = used.map(|matrix| matrix.variants.iter().map(|values| pairs(matrix, values)).collect());
        let variant = |values: Vec<(String, TomlNode)>| {
            let mut table = table.clone();
            for entry in table.entries.iter_mut().filter(|entry| !OF_ALL.contains(&&*entry.key)) {
                fill(&mut entry.node, &values);
            }
            let label = label(values.iter().map(|(name, value)| (name, &value.value)));
            StageVariant { name: format!("{stage}[{label}]"), label, table }
        };
        product(&axes.collect::<Vec<Vec<_>>>()).into_iter().map(variant).collect()
    }

    /// Those whose values the table of a stage uses, beside its own. A value that is no stage's before it is reported.
    fn used_by(
        &self,
        at: usize,
        name: &str,
        table: &Table,
        graph: &StageGraph<'_>,
        diags: &mut Diagnostics,
    ) -> Result<Vec<usize>, Reported> {
        let own = self.all.iter().position(|matrix| matrix.stage == name);
        let mut used: BTreeSet<usize> = own.into_iter().collect();
        let (mut texts, mut is_fine) = (Vec::new(), Ok(()));
        for entry in &table.entries {
            named(&entry.node, &mut |text, span| texts.push((&entry.key, text, span)));
        }
        let has = |matrix: &usize, value: &str| self.all[*matrix].names.iter().any(|name| name == value);
        let before = match texts.iter().any(|(_, value, _)| (0..self.all.len()).any(|m| has(&m, value))) {
            true => graph.before(at),
            false => return Ok(used.into_iter().collect()),
        };
        for (key, value, span) in texts {
            let of_file: Vec<usize> = (0..self.all.len()).filter(|matrix| has(matrix, value)).collect();
            let reached =
                |matrix: &&usize| Some(**matrix) == own || before.contains(&*self.all[**matrix].stage);
            let of: Vec<usize> = match own.filter(|own| has(own, value)) {
                Some(own) => vec![own],
                None => of_file.iter().filter(reached).copied().collect(),
            };
            let stages = |of: &[usize]| {
                of.iter()
                    .map(|matrix| format!("`{}`", self.all[*matrix].stage))
                    .collect::<Vec<_>>()
                    .join(" and ")
            };
            let (message, help) = match (&of[..], &of_file[..]) {
                (_, []) => continue,
                ([_], _) if !OF_ALL.contains(&&**key) => {
                    used.extend(of);
                    continue;
                }
                ([_], _) => (
                    format!("`{key}` of stage `{name}` cannot use `{{{value}}}`"),
                    "a stage reads the same for all variants; write a stage for each way".to_owned(),
                ),
                ([], all) => (
                    format!("stage `{name}` uses `{{{value}}}`, and reads nothing that has it"),
                    format!(
                        "it is a value of the matrix of {}: read from there, or write the value itself",
                        stages(all)
                    ),
                ),
                (several, _) => (
                    format!("`{{{value}}}` of stage `{name}` could be that of {}", stages(several)),
                    "give one of them another name".to_owned(),
                ),
            };
            is_fine = diags.error(span, message).help(help).fail();
        }
        is_fine.map(|()| used.into_iter().collect())
    }
}

impl Matrix {
    fn read(stage: &str, table: &Table, diags: &mut Diagnostics) -> Option<Self> {
        let entry = table.get(MATRIX)?;
        let what = format!("stage `{stage}`");
        let mut fields = Fields::again(what, entry.key_span, table, keys::STAGE, diags);
        let lists = value_lists(&mut fields, "lists of texts, numbers or lists of numbers", |value| {
            text_of(&value.value).map(|_| value.clone())
        })?;
        let is_name =
            |name: &str| matches!(&parts(&format!("{{{name}}}"))[..], [TemplatePart::Name(n)] if *n == name);
        for (name, _) in &lists {
            if !is_name(&name.value) || name.value.contains(['.', '[']) {
                let message = format!("`{}` is no name for a value of {}", name.value, fields.what);
                return diags
                    .error(name.span, message)
                    .help("names are made of letters, digits, `_` and `-`")
                    .none();
            }
        }
        let axes: Vec<Vec<Vec<TomlNode>>> = lists
            .iter()
            .map(|(_, values)| values.iter().map(|value| vec![value.clone()]).collect())
            .collect();
        let n =
            axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.len()).filter(|n| *n <= MOST_VARIANTS));
        if n.is_none() || axes.is_empty() {
            let reason = match n {
                None => format!("has more than {MOST_VARIANTS} combinations of values"),
                Some(_) => "names no values".to_owned(),
            };
            return fields
                .bad(MATRIX, entry.node.span, &reason)
                .help("each makes a part of every row")
                .none();
        }
        let names: Vec<String> = lists.into_iter().map(|(name, _)| name.value).collect();
        let name = Spanned::new(format!("{stage}[{}]", names.join(",")), entry.key_span);
        let variants = product(&axes);
        let mut seen = BTreeSet::new();
        for values in &variants {
            let label = label(names.iter().zip(values.iter().map(|value| &value.value)));
            if !seen.insert(label.clone()) {
                let reason = format!("has `{label}` twice");
                return fields.bad(MATRIX, entry.node.span, &reason).help("values must differ").none();
            }
        }
        Some(Self { stage: stage.to_owned(), name, names, variants })
    }
}

/// The stages by the names that they read from, as written.
struct StageGraph<'a> {
    names: Vec<&'a str>,
    reads: Vec<Vec<usize>>,
}

impl<'a> StageGraph<'a> {
    fn of(stages: &[(&'a String, &'a Table)]) -> Self {
        let names: Vec<&str> = stages.iter().map(|(name, _)| &***name).collect();
        let places: BTreeMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let reads = |table: &Table| {
            let mut reads = Vec::new();
            for key in ["from", "inputs"].iter().filter_map(|key| table.get(key)) {
                texts(&key.node, &mut |text, _| {
                    let name = text.split_once('.').map_or(text, |(name, _)| name);
                    reads.extend(places.get(name));
                });
            }
            reads
        };
        Self { reads: stages.iter().map(|(_, table)| reads(table)).collect(), names }
    }

    /// The stages that lead to this one.
    fn before(&self, stage: usize) -> BTreeSet<&'a str> {
        let (mut seen, mut open) = (vec![false; self.names.len()], self.reads[stage].clone());
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                open.extend(&self.reads[at]);
            }
        }
        self.names.iter().zip(seen).filter(|(_, seen)| *seen).map(|(name, _)| *name).collect()
    }
}

/// The stage that a name means: `pixels` of `pixels[scale]`, the stage that makes its parts.
pub(crate) fn owner_of(name: &str) -> &str {
    name.split_once('[').map_or(name, |(stage, _)| stage)
}

/// The values of a matrix by the name of the stage that makes its parts.
pub(crate) fn values_of(name: &str) -> impl Iterator<Item = &str> {
    let names = name.split_once('[').and_then(|(_, names)| names.strip_suffix(']'));
    names.into_iter().flat_map(|names| names.split(','))
}

/// `scale=0.5,size=48x64`
fn label<'a>(values: impl Iterator<Item = (&'a String, &'a Toml)>) -> String {
    let values: Vec<(String, String)> =
        values.map(|(name, value)| (name.clone(), text_of(value).unwrap_or_default())).collect();
    let (id, _) = task_names("", &values);
    id.strip_prefix('[').and_then(|id| id.strip_suffix(']')).unwrap_or(&id).to_owned()
}

/// A value as a part of a text; `None` where no variant can have it.
fn text_of(value: &Toml) -> Option<String> {
    match value {
        Toml::Array(items) if !items.is_empty() => {
            let is_number = |item: &TomlNode| matches!(item.value, Toml::Integer(_) | Toml::Float(_));
            let texts = items.iter().map(|item| item.value.to_text().filter(|_| is_number(item)));
            texts.collect::<Option<Vec<_>>>().map(|texts| texts.join("x"))
        }
        value => value.to_text(),
    }
}

/// Puts values in the place of their names in braces; a text that is nothing but such a name becomes what the value is.
fn fill(node: &mut TomlNode, values: &[(String, TomlNode)]) {
    let value = |name: &str| values.iter().rfind(|(own, _)| own == name).map(|(_, value)| &value.value);
    match &mut node.value {
        Toml::Array(items) => items.iter_mut().for_each(|item| fill(item, values)),
        Toml::Table(table) => table.entries.iter_mut().for_each(|entry| fill(&mut entry.node, values)),
        Toml::String(text) => {
            let parts = parts(text);
            let named =
                |part: &TemplatePart<'_>| matches!(part, TemplatePart::Name(name) if value(name).is_some());
            if let [TemplatePart::Name(name)] = parts[..] {
                node.value = value(name).cloned().unwrap_or_else(|| node.value.clone());
            } else if parts.iter().any(named) {
                let part = |part: &TemplatePart<'_>| match part {
                    TemplatePart::Text(text) => (*text).to_owned(),
                    TemplatePart::Name(name) => {
                        value(name).and_then(text_of).unwrap_or_else(|| format!("{{{name}}}"))
                    }
                };
                node.value = Toml::String(parts.iter().map(part).collect());
            }
        }
        _ => {}
    }
}

/// The names in braces in the texts of a value.
fn named<'a>(node: &'a TomlNode, each: &mut impl FnMut(&'a str, Span)) {
    texts(node, &mut |text, span| {
        for part in parts(text) {
            if let TemplatePart::Name(name) = part {
                each(name, span);
            }
        }
    });
}

fn texts<'a>(node: &'a TomlNode, each: &mut dyn FnMut(&'a str, Span)) {
    match &node.value {
        Toml::String(text) => each(text, node.span),
        Toml::Array(items) => items.iter().for_each(|item| texts(item, each)),
        Toml::Table(table) => table.entries.iter().for_each(|entry| texts(&entry.node, each)),
        _ => {}
    }
}
