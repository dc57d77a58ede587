//! A process that runs a model a few times on the CPU, says along which axis of each output the items of a batch lie, and ends. It serves nobody, and is
//! confined as workers are.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;

use bincode::{Decode, Encode};
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::onnx_file::ModelProto;
use orchestra_core::probing::{DOES_NOT_LOAD, Elements, ObservedOutput, ProbeRuns, replaced};
use orchestra_core::{
    DType, DeviceKind, Element, ProbedModel, ProbedOutput, SandboxMode, SizeLimit, TensorSpec, TextInput,
};
use orchestra_worker::exit_codes::EXIT_LOAD_FAILED;
use orchestra_worker::frames::{Load, RunErrorKind};
use orchestra_worker::program::{as_variable, of_variable};
use ort::memory::MemoryInfo;
use ort::session::Session;
use ort::value::{DynTensorValueType, DynValue};
use prost::Message as _;

use super::binding::{contents, output_values, run_binding, value_over};
use super::model::RowTensor;
use super::{check_digests, errors, library, session, text_inputs};
use crate::spec::OnnxSpec;

/// The variable that holds what a process shall probe: [`Probe::encode`].
pub const PROBE: &str = "ORCHESTRA_PROBE";

/// Sizes of batches that are tried where a model takes any.
const SIZES: [usize; 3] = [1, 2, 3];

/// Sizes that are tried where it runs none of these.
const LARGER_SIZES: [usize; 16] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 64];

/// A model, and what of it is to be found out.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Probe {
    /// The model as its file has it: without what a stage changes of it.
    pub spec: OnnxSpec,
    /// All inputs of the model but those of texts, with rows of the shape that they will have.
    pub inputs: Vec<TensorSpec>,
    /// Outputs to be judged, which are tensors of known types.
    pub outputs: Vec<String>,
    /// The only batch that the model takes, if there is one.
    pub batch: Option<usize>,
    /// Batches of one item say enough.
    pub is_alone: bool,
}

impl Probe {
    /// As [`PROBE`] holds it.
    pub fn encode(&self) -> Result<String, String> {
        as_variable(self).map_err(|error| format!("it cannot be told to a worker: {error}"))
    }
}

/// What this process shall probe, if it is started for that.
pub fn of_environment() -> Option<OsString> {
    std::env::var_os(PROBE)
}

/// Probes the model that [`PROBE`] holds, and prints what it finds as JSON.
pub fn main(text: &OsStr) -> ExitCode {
    let probe = of_variable::<Probe>(text)
        .ok_or_else(|| format!("`{PROBE}` is for orchestra's own use, and what it holds is no model"));
    let found = probe.and_then(|probe| probe.run());
    let printed = found.and_then(|found| {
        let json = serde_json::to_vec(&found).map_err(|error| error.to_string())?;
        std::io::stdout().write_all(&json).map_err(|error| error.to_string())
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(EXIT_LOAD_FAILED as u8)
        }
    }
}

struct LoadedModel {
    session: Session,
    /// For each input of texts some that it takes; none where any will do.
    words: Vec<Vec<String>>,
}

impl Probe {
    fn run(&self) -> Result<ProbedModel, String> {
        orchestra_worker::limits::no_core_file().map_err(|error| error.to_string())?;
        let sandbox = self.spec.sandbox(&DeviceKind::Cpu);
        if sandbox.mode != SandboxMode::Off {
            sandbox.enter().map_err(|error| error.error)?;
        }
        let model = self.open()?;
        let sizes = match self.batch {
            Some(batch) => vec![batch],
            None if self.is_alone => vec![1],
            None => SIZES.to_vec(),
        };
        let error = match self.judged(&model, &sizes) {
            Ok(outputs) => return Ok(ProbedModel { outputs, size_limit: None }),
            Err(error) => error,
        };
        let limit = self.size_limit(&model, &sizes).filter(|_| self.batch.is_none()).ok_or(error)?;
        let outputs = self.judged(&model, &[limit.runs]).unwrap_or_default();
        Ok(ProbedModel { outputs, size_limit: Some(limit) })
    }

    /// What batches of these sizes say of the outputs.
    fn judged(&self, model: &LoadedModel, sizes: &[usize]) -> Result<Vec<ProbedOutput>, String> {
        let last = *sizes.last().unwrap_or(&1);
        let mut runs: Vec<Vec<(usize, Vec<usize>)>> = vec![Vec::new(); self.outputs.len()];
        let mut of_noise = Vec::new();
        for values in [Values::Zeros, Values::Noise] {
            of_noise.clear();
            for size in sizes {
                let outputs = self.observe(model, *size, values)?;
                for (of, run) in runs.iter_mut().zip(&outputs) {
                    of.push((*size, run.shape.clone()));
                }
                of_noise.push(outputs);
            }
        }
        let alone = match sizes.contains(&1) {
            true => Some((of_noise[0].clone(), self.observe(model, 1, Values::Noise)?)),
            false => None,
        };
        let alone = |output: usize| {
            alone.as_ref().map(|(once, again)| [&once[output], &again[output]].map(ObservedOutput::clone))
        };
        let before = of_noise.pop().unwrap_or_default();
        let fewer = |output: usize| of_noise.iter().map(|outputs| outputs[output].clone()).collect();
        let mut others: Vec<Vec<(usize, ObservedOutput)>> = vec![Vec::new(); self.outputs.len()];
        for item in replaced(last) {
            // A number as large as a pixel may be no place in a table.
            let outputs = self
                .observe(model, last, Values::Loud(item))
                .or_else(|_| self.observe(model, last, Values::Replaced(item)))?;
            others.iter_mut().zip(outputs).for_each(|(of, output)| of.push((item, output)));
        }
        // What is random shows by being another at the second time.
        let again = self.observe(model, last, Values::Noise)?;
        let same = self.observe(model, last, Values::Same)?;
        let all = runs.into_iter().zip(before).zip(others).zip(again).zip(same);
        let judged = all.zip(&self.outputs).enumerate().map(
            |(output, (((((all, before), replaced), again), same), name))| {
                let (fewer, alone) = (fewer(output), alone(output));
                ProbeRuns { all, before, replaced, again, same, fewer, alone }.judge(name)
            },
        );
        Ok(judged.collect())
    }

    /// One of these sizes with which the model fails, and another that it runs. All items of these batches are equal, so nothing but the size makes a
    /// difference.
    fn size_limit(&self, model: &LoadedModel, sizes: &[usize]) -> Option<SizeLimit> {
        for values in [Values::Zeros, Values::Same] {
            let error = |size: usize| self.observe(model, size, values).err();
            let Some((fails, error_of)) = sizes.iter().find_map(|size| Some((*size, error(*size)?))) else {
                continue;
            };
            if errors::run_kind(&error_of) == RunErrorKind::OutOfMemory {
                return None;
            }
            if let Some(runs) = SIZES.into_iter().chain(LARGER_SIZES).find(|size| error(*size).is_none()) {
                return Some(SizeLimit { runs, fails, error: error_of });
            }
        }
        None
    }

    fn open(&self) -> Result<LoadedModel, String> {
        let environment = library::environment(&self.spec.library, None).map_err(|error| error.error)?;
        check_digests(&self.spec).map_err(|error| error.error)?;
        let layout = BatchLayout::new(&[], &[], 1, 1).map_err(|error| error.to_string())?;
        let load = Load {
            spec: Vec::new(),
            device: DeviceKind::Cpu,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            streams: 1,
            padded_to: None,
            layout,
            answer_bytes: 0,
        };
        let session = session::open(&environment, &load, &self.spec, None)
            .map_err(|error| format!("{DOES_NOT_LOAD}: {}", error.error))?;
        Ok(LoadedModel { session, words: self.words() })
    }

    /// For each input of texts those that the nodes which take it know, such as categories. A model may refuse all others.
    fn words(&self) -> Vec<Vec<String>> {
        let inputs = &self.spec.text_inputs;
        let file = if inputs.is_empty() { None } else { std::fs::read(&self.spec.model).ok() };
        let nodes = file
            .and_then(|file| ModelProto::decode(&*file).ok()?.graph)
            .map_or(Vec::new(), |graph| graph.node);
        let of = |input: &TextInput| {
            let takes = nodes.iter().filter(|node| node.input.first() == Some(&input.name));
            let words = takes.flat_map(|node| node.attribute.iter().flat_map(|attribute| &attribute.strings));
            words.filter_map(|word| String::from_utf8(word.to_vec()).ok()).collect()
        };
        inputs.iter().map(of).collect()
    }

    /// What the outputs are for a batch of this size.
    fn observe(
        &self,
        model: &LoadedModel,
        batch: usize,
        values: Values,
    ) -> Result<Vec<ObservedOutput>, String> {
        let mut memory: Vec<Vec<u8>> =
            self.inputs.iter().map(|input| values.batch(input, batch)).collect::<Option<_>>().ok_or_else(
                || {
                    "an input has a dimension that is not known, or needs more memory than there is"
                        .to_owned()
                },
            )?;
        let inputs = self.spec.text_inputs.iter().zip(&model.words);
        let texts: Vec<Vec<String>> =
            inputs.map(|(input, words)| values.texts(input, batch, words)).collect();
        let observed = self.outputs_of(model, batch, &mut memory, &texts);
        observed.map_err(|error| format!("it does not run a batch of {batch}: {}", errors::words(error)))
    }

    fn outputs_of(
        &self,
        model: &LoadedModel,
        batch: usize,
        memory: &mut [Vec<u8>],
        texts: &[Vec<String>],
    ) -> ort::Result<Vec<ObservedOutput>> {
        let cpu = MemoryInfo::default();
        let mut binding = model.session.create_binding()?;
        for (input, bytes) in self.inputs.iter().zip(memory) {
            let row = input.fixed_row().unwrap_or_default().into_iter().map(|n| n as i64).collect();
            let tensor =
                RowTensor { dtype: input.dtype, row, row_bytes: input.row_bytes().unwrap_or_default() };
            // SAFETY: the bytes are as many as the shape says, and outlive the binding.
            let value = unsafe { value_over(&cpu, &tensor, batch, bytes.as_mut_ptr(), bytes.len()) }?;
            binding.bind_input(self.spec.input_name(&input.name), &value)?;
        }
        for (input, texts) in self.spec.text_inputs.iter().zip(texts) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            binding.bind_input(&input.name, &text_inputs::value(input, batch, &texts)?)?;
        }
        for output in &self.outputs {
            binding.bind_output_to_device(output, &cpu)?;
        }
        run_binding(&model.session, &binding, None)?;
        let values = output_values(&binding)?.into_iter().zip(&self.outputs);
        values.map(|(value, name)| observed(value, name, batch)).collect()
    }
}

fn observed(value: DynValue, name: &str, batch: usize) -> ort::Result<ObservedOutput> {
    let tensor = value.downcast::<DynTensorValueType>()?;
    if let Ok((shape, texts)) = tensor.try_extract_strings() {
        let shape = shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
        return Ok(ObservedOutput { batch, shape, elements: Elements::Texts(texts) });
    }
    let (dtype, shape, data) = contents(name, &tensor).map_err(|error| ort::Error::new(error.error))?;
    Ok(ObservedOutput { batch, shape, elements: Elements::Numbers(dtype, data) })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    Zeros,
    /// The same noise at every time: fractions of one, bytes, and zeros and ones, which are indices nearly everywhere.
    Noise,
    /// The same, but for this item.
    Replaced(usize),
    /// Likewise, and every second float of it is as large as pixels are, of both signs: what a model asks of small ones may be no for all.
    Loud(usize),
    /// That of the first item in each.
    Same,
}

impl Values {
    /// The rows of an input; `None` where there is no room for them.
    fn batch(self, input: &TensorSpec, batch: usize) -> Option<Vec<u8>> {
        let elements = input.row_len()?;
        let size = input.dtype.size_bytes();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(input.row_bytes()?.checked_mul(batch)?).ok()?;
        self.elements(&input.name, elements, batch, |made| match made {
            None => bytes.resize(bytes.len() + size, 0),
            Some((bits, change)) => put(&mut bytes, input.dtype, bits, change),
        });
        Some(bytes)
    }

    /// The texts of an input: some of these `words`. Without any they are numbers, because some models make numbers of texts.
    fn texts(self, input: &TextInput, batch: usize, words: &[String]) -> Vec<String> {
        let mut texts = Vec::new();
        self.elements(&input.name, input.n_texts(), batch, |made| {
            let (bits, change) = made.unwrap_or((0, Perturbation::None));
            let of_words = (bits as usize).wrapping_add(usize::from(change != Perturbation::None));
            texts.push(match (of_words.checked_rem(words.len()), change) {
                (Some(word), _) => words[word].clone(),
                (None, Perturbation::None) => (bits % 1000).to_string(),
                (None, Perturbation::Small) => (999 - bits % 1000).to_string(),
                (None, Perturbation::Large) => format!("{} and {bits}", bits % 100),
            });
        });
        texts
    }

    /// Makes the elements of an input, item by item: `None` is a zero, else it is made of these bits.
    fn elements(
        self,
        name: &str,
        per_item: usize,
        batch: usize,
        mut make: impl FnMut(Option<(u64, Perturbation)>),
    ) {
        // Any seed would do, as long as inputs of a model are unlike each other.
        let name = name.bytes();
        let seed = name.fold(0x5eed_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut noise = Noise(seed);
        for item in 0..batch {
            if self == Values::Same {
                noise = Noise(seed);
            }
            let change = match self {
                Values::Replaced(other) if other == item => Perturbation::Small,
                Values::Loud(other) if other == item => Perturbation::Large,
                _ => Perturbation::None,
            };
            for _ in 0..per_item {
                make((self != Values::Zeros).then(|| (noise.next(), change)));
            }
        }
    }
}

/// How an item differs from that of the same noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Perturbation {
    None,
    Small,
    Large,
}

/// Puts an element behind the others: that of these bits, or another one.
fn put(bytes: &mut Vec<u8>, dtype: DType, bits: u64, change: Perturbation) {
    let fraction = (bits >> 40) as f32 / (1 << 24) as f32;
    let is_other = change != Perturbation::None;
    let bit = (bits >> 63) ^ u64::from(is_other);
    let value = match change {
        Perturbation::None => fraction,
        Perturbation::Large if bits & 1 == 1 => 510.0 * fraction - 255.0,
        Perturbation::Small | Perturbation::Large => 1.0 - fraction,
    };
    match dtype {
        DType::F32 | DType::F64 | DType::F16 => {
            Element::Float(value).append(dtype, bytes).expect("every float holds numbers up to 255");
        }
        DType::I64 => bytes.extend_from_slice(&bit.to_ne_bytes()),
        DType::I16 => bytes.extend_from_slice(&(bit as u16).to_ne_bytes()),
        DType::I32 => bytes.extend_from_slice(&(bit as u32).to_ne_bytes()),
        DType::U8 => bytes.push((bits >> 56) as u8 ^ if is_other { 0xff } else { 0 }),
        DType::Bool => bytes.push(bit as u8),
    }
}

/// Vigna's SplitMix64.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
