//! The keys of models, and of stages that run a program: what their workers are told.

use orchestra_core::{Choice as _, ConvSearch, SandboxMode};

use crate::choices;
use crate::key::{Key, key};

choices! {
    /// `provider` of a model.
    pub enum ProviderName {
        /// ONNX Runtime's own kernels
        Cuda = "cuda",
        /// TensorRT compiles the model, and CUDA runs what it does not take
        TensorRt = "tensorrt",
    }
}

/// `[models.NAME]`. No more than 8 streams: each takes memory of its own, and a GPU is busy with fewer.
pub const MODEL: [Key; 20] = [
    key("path", "text", "required", "the ONNX file"),
    key("labels", "text", "none", "class names: a text file with one per line, in the order of the classes"),
    key("devices", "text or list", "those of `[devices]`", "devices for this model only"),
    key(
        "workers",
        "integer",
        "see [devices](../guide/devices.md)",
        "worker processes per stage and device; on a GPU no more than fit",
    ).from_to(1, 256),
    key(
        "max_batch",
        "integer",
        "none",
        "no stage may ask for more; it is also the batch size of stages that ask for none",
    ).from_to(1, 65536),
    key(
        "memory",
        "memory",
        "what the first worker of a run takes",
        "device memory of one worker, to work out how many fit on a GPU",
    ),
    key(
        "memory_limit",
        "memory",
        "none",
        "ceiling of the memory that each worker's session takes on its device, a GPU or the CPU; a batch that needs more is halved. On the CPU it also bounds [the whole process](../guide/devices.md#memory); on a GPU what custom operators allocate by themselves does not count",
    ),
    key(
        "priority",
        "integer",
        "10",
        "share of a device's workers, relative to other models on it; beside [tasks](../guide/tasks.md#priority) the highest of all models says which side has a device first",
    ).from_to(1, 100),
    key("threads", "integer", "its share of the cores", "threads of each worker's session").from_to(1, 1024),
    key(
        "streams",
        "integer",
        "1",
        "batches that each worker [runs at once](../guide/devices.md) on its session",
    ).from_to(1, 8),
    key("custom_ops", "text or list", "none", "libraries of custom operators"),
    key(
        "tf32",
        "true or false",
        "true",
        "products of f32 on a GPU may be rounded to TF32, which is faster; `false` forbids it to all of NVIDIA's libraries in the workers of the model: needed where answers must match the CPU within 1e-3",
    ),
    key(
        "conv_search",
        "text",
        "\"heuristic\"",
        "on a GPU, how cuDNN finds the kernels of a convolution for a shape; ONNX Runtime calls the ways `HEURISTIC` and `EXHAUSTIVE`",
    )
    .one_of(ConvSearch::WORDS),
    key(
        "provider",
        "text",
        "\"cuda\"",
        "what runs the model on a GPU; see [devices](../guide/devices.md)",
    )
    .one_of(ProviderName::WORDS),
    key(
        "tensorrt_fp16",
        "true or false",
        "false",
        "with `provider = \"tensorrt\"`: it may work in f16 where the model says f32, which is faster and less exact",
    ),
    key(
        "sandbox",
        "text",
        "that of `[limits]`",
        "whether workers of the model are confined to what they need; see [security](../security.md)",
    )
    .one_of(SandboxMode::WORDS),
    key("sandbox_read", "text or list", "none", "files and folders that libraries of `custom_ops` read"),
    key("sandbox_write", "text or list", "none", "files and folders that libraries of `custom_ops` write"),
    key(
        "sandbox_env",
        "text or list",
        "none",
        "variables of the environment that libraries of `custom_ops` need",
    ),
    key(
        "recycle",
        "table",
        "none",
        "when a healthy worker is replaced. Its successor is loaded first, or, on a GPU without memory for both, as soon as it is gone",
    )
    .of(&RECYCLE),
];

/// `recycle` of a model or of a stage that runs a program.
pub const RECYCLE: [Key; 2] = [
    key("batches", "integer", "none", "after so many batches").from_to(1, u64::MAX >> 1),
    key("growth", "memory", "none", "when its memory has grown by so much since its first batch"),
];

/// Every stage that runs a program in workers of its own: how those are run. A kernel has all but the last.
pub const WORKERS: [Key; 10] = [
    key("devices", "text or list", "those of `[devices]`", "devices for this stage only"),
    key(
        "workers",
        "integer",
        "its share of the cores; on a GPU 1, or up to 4 with MPS",
        "worker processes per device, each of which runs one batch at a time",
    ).from_to(1, 256),
    key(
        "memory",
        "memory",
        "what the first worker of a run takes",
        "device memory of one worker, on a GPU",
    ),
    key(
        "priority",
        "integer",
        "10",
        "share of a device's workers, relative to other stages on it; also beside [tasks](../guide/tasks.md#priority)",
    ).from_to(1, 100),
    key("recycle", "table", "none", "as for models").of(&RECYCLE),
    key(
        "sandbox",
        "text",
        "that of `[limits]`",
        "whether workers are confined to what they need; see [security](../security.md)",
    )
    .one_of(SandboxMode::WORDS),
    key(
        "sandbox_read",
        "text or list",
        "none",
        "files and folders that the code reads, besides its own folder",
    ),
    key("sandbox_write", "text or list", "none", "files and folders that the code writes"),
    key("sandbox_env", "text or list", "none", "variables of the environment that the code needs"),
    key(
        "threads",
        "integer",
        "1",
        "threads of each worker: what the libraries of linear algebra are told to take",
    ).from_to(1, 1024),
];
