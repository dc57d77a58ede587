//! Constants that a stage writes for inputs of its model: what they are, and whether they fit. Loads nothing.

use orchestra_core::iteration::{FirstRound, LoopInput};
use orchestra_core::{ConstantElements, DType, Dim, Element, InputConstant, TensorSpec};

use super::Wiring;
use crate::diagnostics::Reported;
use crate::fields::Spanned;
use crate::kind::BatchDraft;
use crate::nearest::{suggestion, toml_key};
use crate::plan::ModelPlan;
use crate::tree::{Toml, TomlNode};
use crate::workflow::KnownModel;

/// What a constant is for.
struct ConstantInput<'a> {
    name: &'a str,
    /// `None`: texts.
    dtype: Option<DType>,
    /// All of its dimensions, and which of them counts items; of a single value there are none.
    dims: Vec<Dim>,
    axis: usize,
}

/// The numbers or texts of a constant, in the order in which they are written.
struct WrittenConstant<'a> {
    dims: Vec<usize>,
    elements: Vec<&'a TomlNode>,
}

pub(super) struct StageConstants {
    /// In the order of the file.
    pub all: Vec<InputConstant>,
    /// The places of those that a loop feeds from its second round on.
    pub of_first_round: Vec<usize>,
}

impl StageConstants {
    pub fn of(all: Vec<InputConstant>, draft: &BatchDraft, known: &KnownModel) -> Self {
        let is_fed =
            |constant: &InputConstant| match draft.iteration.as_ref().map(|iteration| &iteration.feed) {
                Some(Some(feed)) => feed.iter().any(|(input, _)| input.value == constant.input),
                Some(None) if draft.iteration.as_ref().is_some_and(|iteration| iteration.each.is_empty()) => {
                    known.declared.iter().any(|output| output.name == constant.input)
                }
                Some(None) => false,
                None => false,
            };
        let of_first_round = (0..all.len()).filter(|at| is_fed(&all[*at])).collect();
        Self { all, of_first_round }
    }

    /// Those that the graph of the model holds.
    pub fn in_graph(&self) -> Vec<InputConstant> {
        let all = self.all.iter().enumerate().filter(|(at, _)| !self.of_first_round.contains(at));
        all.map(|(_, constant)| constant.clone()).collect()
    }
}

impl Wiring<'_, '_> {
    /// What the first round of a loop takes of its constants.
    pub(super) fn first_round(
        &mut self,
        constants: &StageConstants,
        draft: &BatchDraft,
        model: &ModelPlan,
    ) -> Result<Vec<LoopInput>, Reported> {
        let mut found = Vec::new();
        for name in draft.iteration.iter().flat_map(|iteration| &iteration.each) {
            self.steps_through_rows(name, constants, draft, model)?;
        }
        for at in &constants.of_first_round {
            let (constant, (name, _)) = (&constants.all[*at], &draft.constants[*at]);
            let ConstantElements::Numbers(dtype, elements) = &constant.elements else { return Err(Reported) };
            let input = model.inputs.iter().find(|input| input.name == constant.input);
            let axis = model.batch_axis(&constant.input);
            let of_row =
                |at: usize, n: &Option<usize>| (at != axis).then_some(n.map_or(Dim::Dynamic, Dim::Fixed));
            let row = constant.shape.iter().enumerate().filter_map(|(at, n)| of_row(at, n)).collect();
            let tensor = input.map(|input| TensorSpec { row, ..input.clone() });
            let fits = |tensor: &TensorSpec| {
                [Some(dtype.size_bytes()), tensor.row_bytes()].contains(&Some(elements.len()))
            };
            match tensor.filter(fits) {
                Some(tensor) => {
                    found.push(LoopInput { tensor, first: FirstRound::Constant(elements.clone()) });
                }
                None => {
                    let message = format!(
                        "the constant for input `{}` of model `{}` is no row: a loop feeds the input from its second round on",
                        name.value, model.name
                    );
                    let help = format!("write a single value, which fills it: {} = 0", toml_key(&name.value));
                    return self.cx.error(name.span, message).help(help).fail();
                }
            }
        }
        Ok(found)
    }

    /// Whether an input can step through what a row has.
    fn steps_through_rows(
        &mut self,
        name: &Spanned<String>,
        constants: &StageConstants,
        draft: &BatchDraft,
        model: &ModelPlan,
    ) -> Result<(), Reported> {
        let (input, model_name) = (&name.value, &model.name);
        let (message, help) = match constants.all.iter().position(|constant| constant.input == *input) {
            Some(at) => {
                let is_fed = constants.of_first_round.contains(&at);
                let why = if is_fed { "it takes an output of the round before" } else { "it is a constant" };
                (
                    format!("input `{input}` of model `{model_name}` cannot step through a row: {why}"),
                    format!("name the stage that feeds it: {} = \"stage\"", toml_key(input)),
                )
            }
            None if draft.program.is_some() || model.inputs.iter().any(|of| of.name == *input) => {
                return Ok(());
            }
            None => (
                format!("model `{model_name}` has no input `{input}` that can step through a row"),
                suggestion("inputs", input, model.inputs.iter().map(|of| &*of.name)),
            ),
        };
        self.cx.error(name.span, message).help(help).fail()
    }

    /// The constants of a stage in terms of its model.
    pub(super) fn constants(
        &mut self,
        draft: &BatchDraft,
        model: &ModelPlan,
    ) -> Result<Vec<InputConstant>, Reported> {
        let mut found: Result<Vec<InputConstant>, Reported> = Ok(Vec::new());
        for (name, written) in &draft.constants {
            let constant = self.constant(name, written, draft, model);
            found = found.and_then(|found| Ok([found, vec![constant?]].concat()));
        }
        let found = found?;
        let bytes: usize = found.iter().map(InputConstant::bytes).sum();
        if let Some((name, _)) = draft.constants.first().filter(|_| bytes > InputConstant::MOST_BYTES) {
            let most = InputConstant::MOST_BYTES;
            return self
                .cx
                .error(name.span, format!("constants for model `{}` have {bytes} bytes", model.name))
                .label(format!("all of a stage may have {most}"))
                .help("make a constant of the input in the model itself, and export it again")
                .fail();
        }
        Ok(found)
    }

    fn constant(
        &mut self,
        name: &Spanned<String>,
        written: &TomlNode,
        draft: &BatchDraft,
        model: &ModelPlan,
    ) -> Result<InputConstant, Reported> {
        let Some(input) = ConstantInput::of(&name.value, model) else {
            let message = format!("model `{}` has no input `{}`", model.name, name.value);
            let help = suggestion("inputs", &name.value, model.all_inputs());
            return self.cx.error(name.span, message).help(help).fail();
        };
        let mut constant = WrittenConstant { dims: Vec::new(), elements: Vec::new() };
        let shape = match constant.read(written, 0) {
            Ok(()) => input.shape(&constant.dims),
            Err(why) => Err(why),
        };
        if constant.dims.len() + 1 == input.dims.len() && !constant.dims.is_empty() {
            constant.dims.insert(input.axis, 1);
        }
        let shape = shape.or_else(|why| {
            let message = format!("the constant for input `{}` of model `{}` {why}", name.value, model.name);
            self.cx.error(written.span, message).label(input.label()).help(input.help()).fail()
        })?;
        let elements = self.elements(&input, &constant, model)?;
        let is_fed = |name: &str| draft.constants.iter().all(|(constant, _)| constant.value != name);
        let counted = shape.contains(&None).then(|| {
            let tensors = model.inputs.iter().map(|input| (&*input.name, model.batch_axis(&input.name)));
            let texts = model.text_inputs.iter().map(|input| (&*input.name, 0));
            let counted = tensors.chain(texts).find(|(name, _)| is_fed(name));
            counted.map(|(name, axis)| (name.to_owned(), axis))
        });
        let counted = counted.flatten();
        Ok(InputConstant { input: name.value.clone(), elements, dims: constant.dims, shape, counted })
    }

    fn elements(
        &mut self,
        input: &ConstantInput<'_>,
        constant: &WrittenConstant<'_>,
        model: &ModelPlan,
    ) -> Result<ConstantElements, Reported> {
        let name = input.name;
        let mut wrong = |node: &TomlNode, why: String| -> Reported {
            let message = format!("the constant for input `{name}` of model `{}` {why}", model.name);
            self.cx.error(node.span, message).label(input.label()).help(input.help());
            Reported
        };
        let Some(dtype) = input.dtype else {
            let text = |node: &&TomlNode| match &node.value {
                Toml::String(text) => Ok(text.clone()),
                _ => Err(wrong(node, format!("takes texts, and {} is none", node.found()))),
            };
            return constant.elements.iter().map(text).collect::<Result<_, _>>().map(ConstantElements::Texts);
        };
        let mut bytes = Vec::new();
        for node in &constant.elements {
            let number = match node.value {
                Toml::Integer(n) => Some(Element::Int(n)),
                Toml::Float(x) => Some(Element::Double(x)),
                Toml::Boolean(is) => Some(Element::Bool(is)),
                _ => None,
            };
            match number.map(|number| number.append(dtype, &mut bytes)) {
                Some(Ok(())) => {}
                Some(Err(why)) => return Err(wrong(node, format!("cannot be {}: {why}", node.found()))),
                None => return Err(wrong(node, format!("takes {dtype}, and {} is none", node.found()))),
            }
        }
        Ok(ConstantElements::Numbers(dtype, bytes))
    }
}

impl<'a> WrittenConstant<'a> {
    /// Reads a value, which may be a list of lists; why it is no tensor.
    fn read(&mut self, node: &'a TomlNode, depth: usize) -> Result<(), String> {
        let node = match &node.value {
            Toml::Table(table) if depth == 0 => match &table.entries[..] {
                [entry] if entry.key == "value" => &entry.node,
                _ => return Err("is no table with `value` alone".to_owned()),
            },
            _ => node,
        };
        let Toml::Array(items) = &node.value else {
            if depth < self.dims.len() {
                return Err("is a list whose entries have several depths".to_owned());
            }
            self.elements.push(node);
            return Ok(());
        };
        if items.is_empty() {
            return Err("is an empty list".to_owned());
        }
        let is_first = self.elements.is_empty();
        match self.dims.get(depth) {
            None if is_first => self.dims.push(items.len()),
            None => return Err("is a list whose entries have several depths".to_owned()),
            Some(n) if *n == items.len() => {}
            Some(n) => return Err(format!("has lists of {n} and of {} beside each other", items.len())),
        }
        items.iter().try_for_each(|item| self.read(item, depth + 1))
    }
}

impl<'a> ConstantInput<'a> {
    fn of(name: &'a str, model: &ModelPlan) -> Option<Self> {
        if let Some(scalar) = model.scalars.iter().find(|scalar| scalar.name == name) {
            return Some(Self { name, dtype: scalar.dtype, dims: Vec::new(), axis: 0 });
        }
        let axis = model.batch_axis(name);
        let dims = |batch: Dim, row: &[Dim]| {
            let mut dims = row.to_vec();
            dims.insert(axis.min(row.len()), batch);
            dims
        };
        if let Some(TensorSpec { dtype, row, batch, .. }) =
            model.inputs.iter().find(|input| input.name == name)
        {
            return Some(Self { name, dtype: Some(*dtype), dims: dims(*batch, row), axis });
        }
        let texts = model.text_inputs.iter().find(|input| input.name == name)?;
        Some(Self { name, dtype: None, dims: dims(texts.batch, &texts.row), axis })
    }

    /// The dimensions of the input with a constant of `dims`: a single value fills it, a list as deep as the input has dimensions is all of it, and one less
    /// deep is what each item has.
    fn shape(&self, dims: &[usize]) -> Result<Vec<Option<usize>>, String> {
        let is_items = |at: usize| at == self.axis;
        if dims.is_empty() {
            let dim = |(at, dim): (usize, &Dim)| match dim {
                Dim::Fixed(n) => Ok(Some(*n)),
                Dim::Dynamic if is_items(at) => Ok(None),
                Dim::Dynamic => Err("must be a list: the input has an open dimension".to_owned()),
            };
            return self.dims.iter().enumerate().map(dim).collect();
        }
        let mut shape: Vec<Option<usize>> = dims.iter().copied().map(Some).collect();
        if dims.len() + 1 == self.dims.len() {
            shape.insert(self.axis, self.dims[self.axis].fixed());
        }
        let fits = |(n, dim): (&Option<usize>, &Dim)| dim.fixed().is_none_or(|fixed| *n == Some(fixed));
        match shape.len() == self.dims.len() && shape.iter().zip(&self.dims).all(fits) {
            true => Ok(shape),
            false => Err(format!("has the shape {dims:?}")),
        }
    }

    fn label(&self) -> String {
        format!("`{}` is {self}", self.name)
    }

    /// How to write one.
    fn help(&self) -> String {
        let key = toml_key(self.name);
        let one = match self.dtype {
            None => "\"text\"",
            Some(DType::Bool) => "true",
            Some(_) => "0",
        };
        let value = if self.dtype.is_none() { "{ value = \"text\" }" } else { one };
        let list = |dims: &[Dim]| {
            let wrap = |inner: String, dim: &Dim| match dim.fixed() {
                Some(1) => format!("[{inner}]"),
                _ => format!("[{inner}, ..]"),
            };
            dims.iter().rev().fold(one.to_owned(), wrap)
        };
        match self.dims.len() {
            0 => format!("write a single value: {key} = {value}"),
            1 => format!(
                "write a single value, which fills it, {key} = {value}, or a list of all, {key} = {}",
                list(&self.dims)
            ),
            _ => {
                let row: Vec<Dim> = self
                    .dims
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| *at != self.axis)
                    .map(|(_, dim)| *dim)
                    .collect();
                format!(
                    "write a single value, which fills it, {key} = {value}, or what each item has, {key} = {}",
                    list(&row)
                )
            }
        }
    }
}

impl std::fmt::Display for ConstantInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.dtype.map_or("text", DType::name);
        let dim = |(at, dim): (usize, &Dim)| match dim {
            Dim::Dynamic if at == self.axis => "batch".to_owned(),
            dim => dim.to_string(),
        };
        match &self.dims[..] {
            [] => write!(f, "a single value, {of}"),
            dims => write!(f, "{of}[{}]", dims.iter().enumerate().map(dim).collect::<Vec<_>>().join(", ")),
        }
    }
}
