//! The part of a `Load` frame that only the ONNX engine reads. The parent makes it; frames and runtime pass it on as bytes.

use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use orchestra_core::iteration::LoopInput;
use orchestra_core::{
    DeviceKind, InputConstant, Iteration, PixelInput, Provider, ReadOutput, SandboxRules, SessionTuning,
    TensorRt, TensorSpec, TextInput, Trim, wire,
};

use crate::engine::axis_graph;
use crate::session_names::{of_largest, of_rows};
use orchestra_worker::Sandbox;
use orchestra_worker::engine::decode_spec;
use orchestra_worker::load_error::LoadError;

/// Variables that a worker process needs before its first instruction. Since 1.29 the official builds of ONNX Runtime report every session to
/// their maker; what they are told through their API (the engine does that) comes after their first message and after a file in the folder
/// for temporary files.
pub const ENVIRONMENT: [(&str, &str); 1] = [("ORT_DISABLE_TELEMETRY", "1")];

/// A model, and how ONNX Runtime is to run it: [`Load::spec`](orchestra_worker::frames::Load) of an ONNX worker.
#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub struct OnnxSpec {
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// Libraries to load by full path and keep, in this order, before the CUDA provider is made. Empty on the CPU.
    pub preload: Vec<PathBuf>,
    pub model: PathBuf,
    /// SHA-256 of the model file that was planned for. A worker that finds another digest refuses to load.
    pub digest: [u8; 32],
    /// Its files of external weights, and their SHA-256 as they were planned with: as for the model.
    pub weights: Vec<(PathBuf, [u8; 32])>,
    /// Ceiling of the session's memory arena in bytes: that of the device that the worker is for.
    pub memory_limit: Option<u64>,
    /// Whether f32 products may be rounded to TF32 (CUDA only).
    pub tf32: bool,
    /// What else the model asks of its session.
    pub tuning: SessionTuning,
    /// Libraries of custom operators to register with the session, and their SHA-256 as they were planned with: as for the model.
    pub custom_ops: Vec<(PathBuf, [u8; 32])>,
    /// What the worker may do.
    pub sandbox: SandboxRules,
    /// Per model input, where its rows are pixels as they are (u8 `[height, width, channels]` in the layout): what the graph makes of
    /// them. As long as the inputs of the layout.
    pub pixel_inputs: Vec<Option<PixelInput>>,
    /// The inputs that take texts. They have no place in the layout: each row of a run has, for each of them, a text or a list of texts among its values.
    pub text_inputs: Vec<TextInput>,
    /// The inputs of the layout whose items lie along another axis than the first in the model, as they lie in slots, and the axis.
    pub batch_axes: Vec<(TensorSpec, usize)>,
    /// The inputs that are the same for all items. Neither the layout nor `text_inputs` has them.
    pub constants: Vec<InputConstant>,
    /// The outputs that are read, in the order of the layout.
    pub outputs: Vec<ReadOutput>,
    /// Outputs of which the model is to give the largest numbers along the last dimension and their places alone (f32 `[.., 2]` in the layout:
    /// place, number).
    pub largest_outputs: Vec<String>,
    /// How the model runs on its own outputs, if it does. The layout then has an output more, the rounds of a row, and of an output that is collected no rows.
    pub iteration: Option<Iteration>,
    /// The inputs of the loop that the layout does not have.
    pub loop_inputs: Vec<LoopInput>,
    /// The input of which the session computes no more than pictures fill. The layout then has an input more, a
    /// [`Placement`](orchestra_core::Placement) for each row, and all rows of a run are trimmed alike.
    pub trim: Option<Trim>,
}

impl OnnxSpec {
    /// As it travels in a `Load` frame.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        wire::encode(self).map_err(|error| {
            let model = self.model.display();
            format!("model `{model}` cannot be told to a worker: {error}; its path and those of its libraries must be UTF-8")
        })
    }

    /// What a worker on `device` needs: its libraries and what they load from their own folders, the model with the weights beside it, and
    /// what its file allows. On a GPU it writes what TensorRT compiled.
    pub(crate) fn sandbox(&self, device: &DeviceKind) -> Sandbox {
        let gpu = matches!(device, DeviceKind::Cuda { .. });
        // Where the file is said to be, and where it is: the kernel asks about the latter.
        let folders_of = |file: &PathBuf| {
            let real = file.canonicalize().ok();
            [Some(file), real.as_ref()].map(|file| file?.parent().map(Path::to_owned)).into_iter().flatten()
        };
        let libraries = [&self.library]
            .into_iter()
            .chain(&self.preload)
            .chain(self.custom_ops.iter().map(|(file, _)| file));
        let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let mut read: Vec<PathBuf> = libraries.chain([&self.model]).flat_map(folders_of).collect();
        read.extend(std::env::split_paths(&searched).filter_map(|folder| std::path::absolute(folder).ok()));
        read.extend(self.sandbox.read.iter().cloned());
        let mut write = self.sandbox.write.clone();
        if let (true, Provider::TensorRt(TensorRt { engines: Some(folder), .. })) =
            (gpu, &self.tuning.provider)
        {
            write.push(folder.clone());
        }
        Sandbox { mode: self.sandbox.mode, read, write, gpu, network: false, decodes: false, becomes: false }
    }

    /// How the session names an input that takes numbers, unless these are pixels or trimmed.
    pub(crate) fn input_name(&self, input: &str) -> String {
        match self.batch_axes.iter().any(|(tensor, _)| tensor.name == input) {
            true => axis_graph::session_name(input),
            false => input.to_owned(),
        }
    }

    /// How the session names what stands for an output, before the largest numbers of it are taken.
    pub(crate) fn rows_name(&self, output: &str) -> String {
        let read = self.outputs.iter().find(|read| read.tensor.name == output);
        match read.is_some_and(ReadOutput::needs_nodes) {
            true => of_rows(output),
            false => output.to_owned(),
        }
    }

    /// How the session names what is read of an output.
    pub(crate) fn session_name(&self, output: &str) -> String {
        let rows = self.rows_name(output);
        let is_largest = self.largest_outputs.iter().any(|largest| largest == output);
        if is_largest { of_largest(&rows) } else { rows }
    }

    /// Out of a `Load` frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, LoadError> {
        decode_spec::<_, { 1 << 20 }>(bytes)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::ErrorClass;

    use super::*;

    #[test]
    fn what_was_told_is_read_and_anything_else_is_refused() {
        let spec = OnnxSpec { model: "/m.onnx".into(), pixel_inputs: vec![None], ..OnnxSpec::default() };
        let bytes = spec.encode().unwrap();
        assert_eq!(OnnxSpec::decode(&bytes), Ok(spec));
        for cut in 0..bytes.len() {
            let refused = OnnxSpec::decode(&bytes[..cut]).unwrap_err();
            assert_eq!(refused.class, ErrorClass::Permanent);
        }
        let refused = OnnxSpec::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert!(refused.error.contains("bytes are used"), "{refused}");
        assert!(OnnxSpec::decode(&[0xff; 64]).is_err());
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_named() {
        use std::os::unix::ffi::OsStringExt as _;
        let model = std::ffi::OsString::from_vec(vec![b'/', 0xff]).into();
        let why = OnnxSpec { model, ..OnnxSpec::default() }.encode().unwrap_err();
        assert!(why.contains("must be UTF-8"), "{why}");
    }
}
