//! `kind = "cuda"`: launches a kernel in CUDA C++ over batches of rows, in workers on GPUs that compile it themselves. What it takes follows from
//! what feeds it, what it gives is written in the file; that the kernel agrees is checked by the compiler.

use std::path::Path;
use std::sync::Arc;

use orchestra_core::kernel::{Grid, Scalar};
use orchestra_core::{Code, DType, Element, Kernel, TensorSpec};
use orchestra_plan::keys::WORKERS;
use orchestra_plan::tree::{Toml, TomlNode};
use orchestra_plan::{
    Draft, Drafted, Fields, FileKind, Files, Key, ProgramContext, ProgramDraft, Reported, ResolvedProgram,
    Setting, Settings, Spanned, TypedStage, Upstreams, joined, keys, settings,
};

use super::shared::batches::{BatchSettings, InputTable, upstreams_of_program};
use super::shared::user_code::{DeclaredOutputs, column_of, file_name};

/// What the input of a stage with `from` is called.
const ONLY_INPUT: &str = "input";
/// Most threads of a block, on every device.
const MOST_THREADS: u64 = 1024;
/// Most bytes of a source with what it includes: all of it is told to workers.
const MOST_TEXT: usize = 512 << 10;

settings! {
    pub struct Cuda {
        /// the file with the kernel, in CUDA C++
        #[missing("name the file with the kernel: source = \"kernel.cu\"")]
        source: Spanned<String>,
        /// the function, which is `__global__` and takes what [CUDA](../guide/cuda.md#arguments) says: `vadd`, `scale<float>`
        #[missing("name the function: kernel = \"vadd\"")]
        kernel: String,
        /// instead of `from`, for several inputs: `{ a = "stage" }` or `"stage.tensor"`; the kernel takes them in this order
        inputs: InputTable,
        /// `{ sum = { dtype = "f32", shape = [3] } }`: what it gives for a row; the kernel takes them behind the inputs, in this order
        #[missing("say what it gives for a row: outputs = { sum = { dtype = \"f32\", shape = [3] } }")]
        outputs: DeclaredOutputs,
        /// `{ alpha = { dtype = "f32", value = 0.5 } }`: what the kernel takes behind the number of rows, in this order
        arguments: Option<Arguments>,
        /// threads of a block
        #[range(1, MOST_THREADS)]
        block: u32 = 256,
        /// how many threads a launch has
        grid: Grid = "elements",
        /// options of NVRTC, the compiler: `["--use_fast_math"]`
        options: Option<Vec<Spanned<String>>>,
        /// how rows become batches, of which each is a launch; memory of the GPU is taken once, for the most rows
        batch: BatchSettings,
    }
}

/// All but the threads of workers.
const KEYS: [Key; <Cuda as Settings>::KEYS.len() + WORKERS.len() - 1] =
    joined([<Cuda as Settings>::KEYS, WORKERS]);

impl TypedStage for Cuda {
    const NAME: &'static str = "cuda";
    const ABOUT: &'static str = "Launches a kernel in CUDA C++ over batches of rows, in workers on GPUs that compile it when they start. It gives what `outputs` says. \
         See [CUDA](../guide/cuda.md).";
    type Work = ();
    const ALL_KEYS: &'static [Key] = &KEYS;

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_program(f)
    }
}

impl Drafted for Cuda {
    fn draft(self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        f.entry("arguments").is_none_or(|_| self.arguments.is_some()).then_some(())?;
        let scalars = self.arguments.map(|Arguments(scalars)| scalars).unwrap_or_default();
        let DeclaredOutputs(outputs) = self.outputs;
        if let (Some(open), Some(entry)) =
            (outputs.iter().find(|output| output.row_bytes().is_none()), f.entry("outputs"))
        {
            return f.bad("outputs", entry.node.span, &format!("leaves the shape of `{}` open", open.name))
                .help("memory of the GPU is taken before the kernel runs: give every size, and lay a length beside it as an output of its own").none();
        }
        let options = options(f, self.options.unwrap_or_default())?;
        let inputs = inputs(f);
        let names = inputs.iter().chain(outputs.iter().map(|output| &output.name));
        if !are_arguments(f, names.chain(scalars.iter().map(|scalar| &scalar.name))) {
            return None;
        }
        let model = file_name(&self.source);
        let kernel = Kernel {
            file: model.value.clone(),
            function: self.kernel,
            scalars,
            block: self.block,
            grid: self.grid,
            options,
            source: String::new(),
            headers: Vec::new(),
            compilers: Ok(Vec::new()),
        };
        let mut draft = self.batch.of(model);
        draft.program = Some(Arc::new(Unread { source: self.source, inputs, outputs, kernel }));
        Some(Draft::Batch(draft))
    }
}

/// The names of what the stage reads, as the kernel takes them.
fn inputs(f: &mut Fields<'_, '_>) -> Vec<String> {
    match f.entry("inputs").map(|entry| &entry.node.value) {
        Some(Toml::Table(table)) => table.entries.iter().map(|entry| entry.key.clone()).collect(),
        _ => vec![ONLY_INPUT.to_owned()],
    }
}

keys! {
    /// A table in `arguments`.
    const ARGUMENT {
        /// the type of the number
        #[words(DType::WORDS)]
        dtype: "text" = "required",
        /// the number, or `true` or `false`
        value: "number" = "required",
    }
}

/// What a kernel takes besides rows.
pub struct Arguments(Vec<Scalar>);

impl Setting for Arguments {
    const TYPE: &'static str = "table";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let node = &f.entry(key)?.node;
        scalars(f, node).map(Self)
    }
}

/// `None` after an error.
fn scalars(f: &mut Fields<'_, '_>, node: &TomlNode) -> Option<Vec<Scalar>> {
    const EXPECTED: &str = "a table: arguments = { alpha = { dtype = \"f32\", value = 0.5 } }";
    let Toml::Table(table) = &node.value else {
        return f.wrong("arguments", node, EXPECTED).none();
    };
    let mut scalars = Some(Vec::new());
    for argument in &table.entries {
        let Toml::Table(of) = &argument.node.value else {
            f.wrong(&format!("arguments.{}", argument.key), &argument.node, EXPECTED);
            scalars = None;
            continue;
        };
        let what = format!("argument `{}` of {}", argument.key, f.what);
        let mut of = Fields::new(what, argument.key_span, of, ARGUMENT, f.diags);
        let dtype = of.setting("dtype", "for example dtype = \"f32\"");
        let Some(value) = of.entry("value") else {
            of.missing("value", "for example value = 0.5");
            scalars = None;
            continue;
        };
        let bytes = dtype.and_then(|dtype| bytes_of(dtype, &value.node));
        match (dtype, bytes, &mut scalars) {
            (Some(dtype), Some(bytes), Some(scalars)) => {
                scalars.push(Scalar { name: argument.key.clone(), dtype, bytes });
            }
            (Some(dtype), None, _) => {
                of.wrong("value", &value.node, expected(dtype));
                scalars = None;
            }
            _ => scalars = None,
        }
    }
    scalars
}

/// The bytes of a number of this type; `None`: it is none.
fn bytes_of(dtype: DType, value: &TomlNode) -> Option<Vec<u8>> {
    match (dtype, &value.value) {
        (DType::F32 | DType::F64, Toml::Float(_) | Toml::Integer(_)) => {
            let number = match &value.value {
                Toml::Integer(n) => Element::Int(*n),
                Toml::Float(x) => Element::Double(*x),
                _ => return None,
            };
            let mut bytes = Vec::new();
            number.append(dtype, &mut bytes).ok()?;
            Some(bytes)
        }
        (DType::I16, Toml::Integer(n)) => Some(i16::try_from(*n).ok()?.to_ne_bytes().to_vec()),
        (DType::I64, Toml::Integer(n)) => Some(n.to_ne_bytes().to_vec()),
        (DType::I32, Toml::Integer(n)) => Some(i32::try_from(*n).ok()?.to_ne_bytes().to_vec()),
        (DType::U8, Toml::Integer(n)) => Some(vec![u8::try_from(*n).ok()?]),
        (DType::Bool, Toml::Boolean(is)) => Some(vec![u8::from(*is)]),
        _ => None,
    }
}

fn expected(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F64 => "a number",
        DType::F16 => "of another type: a kernel takes f16 in rows alone; pass f32, and convert it there",
        DType::I64 => "an integer",
        DType::I32 => "an integer of 32 bits",
        DType::I16 => "an integer of 16 bits",
        DType::U8 => "an integer from 0 to 255",
        DType::Bool => "true or false",
    }
}

/// `None` after an error.
fn options(f: &mut Fields<'_, '_>, options: Vec<Spanned<String>>) -> Option<Vec<String>> {
    let is_arch = |option: &&Spanned<String>| {
        let name = option.value.trim_start_matches('-');
        ["arch", "gpu-architecture"].iter().any(|arch| name.split('=').next() == Some(arch))
    };
    if let Some(arch) = options.iter().find(is_arch) {
        return f
            .bad("options", arch.span, "names an architecture")
            .help("leave it out: each worker compiles for the GPU that it runs on")
            .none();
    }
    Some(options.into_iter().map(|option| option.value).collect())
}

/// Whether all can be names of arguments, each once; what is wrong is reported.
fn are_arguments<'a>(f: &mut Fields<'_, '_>, names: impl Iterator<Item = &'a String>) -> bool {
    let mut seen: Vec<&str> = vec!["rows"];
    for name in names {
        let is_word = !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
        let why = match (is_word && !name.is_empty(), seen.contains(&name.as_str())) {
            (false, _) => "is no name in C++: letters, digits and `_`, and no digit first",
            (true, true) => {
                "is the name of two arguments of the kernel (`rows` is that of the number of rows)"
            }
            (true, false) => {
                seen.push(name);
                continue;
            }
        };
        f.diags
            .error(f.span, format!("{}: `{name}` {why}", f.what))
            .help("rename the input, output or argument");
        return false;
    }
    true
}

/// A kernel whose source is not read yet.
#[derive(Debug)]
struct Unread {
    source: Spanned<String>,
    inputs: Vec<String>,
    outputs: Vec<TensorSpec>,
    kernel: Kernel,
}

impl ProgramDraft for Unread {
    fn resolve(&self, context: &mut ProgramContext<'_>) -> Result<ResolvedProgram, Reported> {
        let host = context.host;
        let path = host.resolve(&context.folder.join(&self.source.value));
        let text = match host.file_kind(&path) {
            FileKind::Missing => Err("there is none".to_owned()),
            _ => read(host, &path),
        };
        let read = text.and_then(|text| {
            let headers = headers(host, path.parent().unwrap_or(Path::new("/")), &text);
            let bytes = headers.iter().map(|(_, header)| header.len()).sum::<usize>() + text.len();
            match bytes {
                0..=MOST_TEXT => Ok((text, headers)),
                _ => Err(format!("with what it includes it is larger than {} KiB", MOST_TEXT >> 10)),
            }
        });
        let (source, headers) = read.or_else(|why| {
            let why = format!("source `{}` cannot be read: {why}", self.source.value);
            context.no_file(self.source.span, &path, why).fail()
        })?;
        let kernel = Kernel { source, headers, compilers: host.compilers(), ..self.kernel.clone() };
        Ok(ResolvedProgram {
            path,
            identity: serde_json::json!([&kernel, &kernel.source, &kernel.headers, &self.outputs])
                .to_string(),
            inputs: self.inputs.iter().map(|input| (input.clone(), None)).collect(),
            outputs: self.outputs.iter().map(column_of).collect(),
            max_batch: None,
            gpu: true,
            drops: false,
            code: Code::Kernel(kernel),
        })
    }
}

fn read(host: &dyn Files, path: &Path) -> Result<String, String> {
    let bytes = host.read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is no UTF-8 text".to_owned())
}

/// What a source includes from its folder, and what that includes, by the names that they use. What is not there is for the compiler to name,
/// which looks into the folders of `options`, too.
fn headers(host: &dyn Files, folder: &Path, source: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut next = 0;
    let mut text = source.to_owned();
    loop {
        for name in text.lines().filter_map(included) {
            if !found.iter().any(|(known, _)| known == name)
                && let Ok(header) = read(host, &host.resolve(&folder.join(name)))
            {
                found.push((name.to_owned(), header));
            }
        }
        let Some((_, header)) = found.get(next) else { return found };
        text.clone_from(header);
        next += 1;
    }
}

/// `x.cuh` of `#include "x.cuh"`.
fn included(line: &str) -> Option<&str> {
    let name = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    Some(name.trim_start().strip_prefix('"')?.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_includes_by_name_is_found_in_its_lines() {
        assert_eq!(included("#include \"a.cuh\" // why"), Some("a.cuh"));
        assert_eq!(included("  # include \"b/c.h\""), Some("b/c.h"));
        assert_eq!(included("#include <cuda_fp16.h>"), None);
        assert_eq!(included("// #include \"a.cuh\""), None);
    }
}
