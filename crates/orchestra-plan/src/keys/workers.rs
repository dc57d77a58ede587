//! The keys of models, and of stages that run a program: what their workers are told.

use std::num::NonZeroU64;

use orchestra_core::{Choice as _, ConvSearch, SandboxMode};

use crate::fields::{Fields, Spanned};
use crate::key::Key;
use crate::plan::Recycle;
use crate::settings::Settings as _;
use crate::{choices, keys, settings};

choices! {
    /// `provider` of a model.
    pub enum ProviderName {
        /// ONNX Runtime's own kernels
        Cuda = "cuda",
        /// TensorRT compiles the model, and CUDA runs what it does not take
        TensorRt = "tensorrt",
    }
}

keys! {
    /// `[models.NAME]`. No more than 8 streams: each takes memory of its own, and a GPU is busy with fewer.
    pub const MODEL {
        /// the ONNX file
        path: "text" = "required",
        /// class names: a text file with one per line, in the order of the classes
        labels: "text" = "none",
        /// `{ input = 1 }`: the [axis along which items lie](../guide/workflow-file.md#inputs) in an input, from 0
        batch_axis: "table" = "by the names of dimensions",
        /// devices for this model only
        devices: "text or list" = "those of `[devices]`",
        /// worker processes per stage and device; on a GPU no more than fit
        #[range(1, 256)]
        workers: "integer" = "see [devices](../guide/devices.md)",
        /// no stage may ask for more; it is also the batch size of stages that ask for none
        #[range(1, 65536)]
        max_batch: "integer" = "none",
        /// device memory of one worker, to work out how many fit on a GPU
        memory: "memory" = "what the first worker of a run takes",
        /// ceiling of the memory that each worker's session takes on its device, a GPU or the CPU; a batch that needs more is halved. On the CPU it also bounds [the whole process](../guide/devices.md#memory); on a GPU what custom operators allocate by themselves does not count
        memory_limit: "memory" = "none",
        /// share of a device's workers, relative to other models on it; beside [tasks](../guide/tasks.md#priority) the highest of all models says which side has a device first
        #[range(1, 100)]
        priority: "integer" = "10",
        /// threads of each worker's session
        #[range(1, 1024)]
        threads: "integer" = "its share of the cores",
        /// batches that each worker [runs at once](../guide/devices.md) on its session
        #[range(1, 8)]
        streams: "integer" = "1",
        /// libraries of custom operators
        custom_ops: "text or list" = "none",
        /// products of f32 on a GPU may be rounded to TF32, which is faster; `false` forbids it to all of NVIDIA's libraries in the workers of the model: needed where answers must match the CPU within 1e-3
        tf32: "true or false" = "true",
        /// on a GPU, how cuDNN finds the kernels of a convolution for a shape; ONNX Runtime calls the ways `HEURISTIC` and `EXHAUSTIVE`
        #[words(ConvSearch::WORDS)]
        conv_search: "text" = "\"heuristic\"",
        /// what runs the model on a GPU; see [devices](../guide/devices.md)
        #[words(ProviderName::WORDS)]
        provider: "text" = "\"cuda\"",
        /// with `provider = "tensorrt"`: it may work in f16 where the model says f32, which is faster and less exact
        tensorrt_fp16: "true or false" = "false",
        /// whether workers of the model are confined to what they need; see [security](../security.md)
        #[words(SandboxMode::WORDS)]
        sandbox: "text" = "that of `[limits]`",
        /// files and folders that libraries of `custom_ops` read
        sandbox_read: "text or list" = "none",
        /// files and folders that libraries of `custom_ops` write
        sandbox_write: "text or list" = "none",
        /// variables of the environment that libraries of `custom_ops` need
        sandbox_env: "text or list" = "none",
        /// when a healthy worker is replaced. Its successor is loaded first, or, on a GPU without memory for both, as soon as it is gone
        #[table(Recycle::KEYS)]
        recycle: "table" = "none",
    }
}

settings! {
    /// Every stage that runs a program in workers of its own: how those are run. A kernel has all but the last.
    #[derive(Debug, Default)]
    pub struct AskedWorkers {
        /// devices for this stage only
        devices: Option<DeviceNames> => "those of `[devices]`",
        /// worker processes per device, each of which runs one batch at a time
        #[range(1, 256)]
        workers: Option<Spanned<u64>> => "its share of the cores; on a GPU 1, or up to 4 with MPS",
        /// device memory of one worker, on a GPU
        memory: Option<Spanned<NonZeroU64>> => "what the first worker of a run takes",
        /// share of a device's workers, relative to other stages on it; also beside [tasks](../guide/tasks.md#priority)
        #[range(1, 100)]
        priority: Option<u32> => "10",
        /// as for models
        recycle: Recycle => "none",
        /// whether workers are confined to what they need; see [security](../security.md)
        sandbox: Option<SandboxMode> => "that of `[limits]`",
        /// files and folders that the code reads, besides its own folder
        sandbox_read: Vec<Spanned<String>> => "none",
        /// files and folders that the code writes
        sandbox_write: Vec<Spanned<String>> => "none",
        /// variables of the environment that the code needs
        sandbox_env: Vec<Spanned<String>> => "none",
        /// threads of each worker: what the libraries of linear algebra are told to take
        #[range(1, 1024)]
        threads: Option<usize> => "1",
    }
}

impl AskedWorkers {
    /// A stage of a kind that has no such key, too, has a share.
    pub fn priority(&self) -> u32 {
        self.priority.unwrap_or(10)
    }
}

pub const WORKERS: &[Key] = AskedWorkers::KEYS;

/// Devices by their names, one at least.
#[derive(Debug)]
pub struct DeviceNames(pub Vec<Spanned<String>>);

/// `"auto"` is as good as none.
impl settings::Setting for DeviceNames {
    const TYPE: &'static str = "text or list";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let names = f.strings(key).filter(|names| !matches!(&names[..], [one] if one.value == "auto"))?;
        if let ([], Some(entry)) = (&names[..], f.entry(key)) {
            f.bad(key, entry.node.span, "names no device").help("leave the key out to use all devices");
        }
        Some(Self(names))
    }
}

impl settings::Setting for Recycle {
    const TYPE: &'static str = "table";
    const TABLE: &'static [Key] = <Self as settings::Settings>::KEYS;

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let mut f = f.table(key)?;
        if f.entry("batches").is_none() && f.entry("growth").is_none() {
            let message = format!("{} has no effect: it has neither `batches` nor `growth`", f.what);
            f.diags.warning(f.span, message).help("leave it out, or say when a worker is to be replaced");
        }
        <Self as settings::Settings>::read(&mut f)
    }

    fn of_default(_: &str, _: &Fields<'_, '_>) -> Option<Self> {
        Some(Self::default())
    }
}
