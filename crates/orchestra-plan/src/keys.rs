//! The keys of the tables that are no kinds, and of every source, stage and sink: declared once. Parsing, `check` and the pages of
//! docs/reference come from here.

use crate::kind::{Key, key};

/// What stands outside of all tables.
pub const TOP_LEVEL: [Key; 4] = [
    key("version", "integer", "required", "must be 1"),
    key("name", "text", "the file's name without its ending", "name of the workflow"),
    key(
        "include",
        "text or list",
        "none",
        "other files whose tables are added to those of this one, relative to its folder; what this file says goes first, then the last of them",
    ),
    key(
        "variables",
        "table",
        "none",
        "values for `${NAME}` in the texts of the file; `${NAME:-default}` is the environment's variable or the default, where it is not here",
    ),
];

/// `[models.NAME]`
pub const MODEL: [Key; 26] = [
    key("path", "text", "required", "the ONNX file"),
    key("labels", "text", "none", "class names: a text file with one per line, in the order of the classes"),
    key("devices", "text or list", "those of `[devices]`", "devices for this model only"),
    key(
        "workers",
        "integer, 1 to 256",
        "see [devices](../guide/devices.md)",
        "worker processes per stage and device; on a GPU no more than fit",
    ),
    key(
        "max_batch",
        "integer, 1 to 65536",
        "none",
        "no stage may ask for more; it is also the batch size of stages that ask for none",
    ),
    key(
        "memory",
        "memory",
        "what an earlier run or this one measures",
        "device memory of one worker, to work out how many fit on a GPU",
    ),
    key(
        "memory_limit",
        "memory",
        "none",
        "ceiling of the memory that each worker's session takes on its device, a GPU or the CPU; a batch that needs more is halved. It bounds ONNX Runtime's arena: what custom operators allocate by themselves [does not count](../security.md#what-is-not-promised)",
    ),
    key(
        "priority",
        "integer, 1 to 100",
        "10",
        "share of a device's workers, relative to other models on it; beside [tasks](../guide/tasks.md#priority) the highest of all models says which side has a device first",
    ),
    key("threads", "integer, 1 to 1024", "its share of the cores", "threads of each worker's session"),
    key(
        "streams",
        "integer, 1 to 8",
        "1",
        "batches that each worker [runs at once](../guide/devices.md) on its session",
    ),
    key("custom_ops", "text or list", "none", "libraries of custom operators"),
    key(
        "tf32",
        "true or false",
        "true",
        "products of f32 on a GPU may be rounded to TF32, which is faster; `false` forbids it to all of NVIDIA's libraries in the workers of the model: needed where answers must match the CPU within 1e-3",
    ),
    key(
        "shrink",
        "true or false",
        "false",
        "after every run a worker gives back the memory that the run left unused, which costs each run some time. Without it memory goes back after warm-up, and with the first run after one that did not fit",
    ),
    key(
        "cuda_graphs",
        "true or false",
        "false",
        "on a GPU each batch size is recorded once, during warm-up, and launched as a whole from then on: for small models, whose kernels take less time than it takes to launch them one by one. Every node has to run on CUDA and all outputs need a fixed shape; rows take one more copy on the device's side, and each size keeps memory of its own",
    ),
    key(
        "blocking_sync",
        "true or false",
        "false",
        "on a GPU, a worker sleeps until a batch is done; else it asks all the time, which keeps a core busy and learns of it some microseconds earlier: for machines with few cores beside their GPUs",
    ),
    key(
        "overlap",
        "true or false",
        "false",
        "on a GPU, the rows of the next batch are copied to it while it computes this one, which takes memory for them; for models with large inputs and `streams = 1`",
    ),
    key(
        "conv_search",
        "text",
        "\"heuristic\"",
        "on a GPU, how cuDNN finds the kernels of a convolution for a shape: `\"exhaustive\"` takes longer for each shape that is new and may find faster ones, `\"fallback\"` is quick and may find slow ones: where the size of batches changes all the time. ONNX Runtime calls them `HEURISTIC`, `EXHAUSTIVE` and `DEFAULT`",
    ),
    key(
        "provider",
        "text",
        "\"cuda\"",
        "`\"tensorrt\"`: on a GPU, TensorRT compiles the model, and CUDA runs what it does not take; see [devices](../guide/devices.md)",
    ),
    key(
        "allow_cpu_nodes",
        "true or false",
        "false",
        "on a GPU, load the model although more than a tenth of its nodes stay on the cores, because no provider of the GPU has them: rows then go back and forth between both. Nodes that compute shapes do not count",
    ),
    key(
        "tensorrt_fp16",
        "true or false",
        "false",
        "with `provider = \"tensorrt\"`: it may work in f16 where the model says f32, which is faster and less exact",
    ),
    key(
        "spare",
        "integer, 0 to 4",
        "1 on the CPU for a model of up to 64 MiB where memory allows, else 0",
        "workers per stage and device that stand by, loaded, and take over when one dies",
    ),
    key(
        "sandbox",
        "text",
        "that of `[limits]`",
        "`\"auto\"`, `\"require\"` or `\"off\"`: whether workers of the model are confined to what they need; see [security](../security.md)",
    ),
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
        "`{ batches = 100000, growth = \"2GiB\" }`: replace a healthy worker after so many batches, or when its memory has grown by so much since its first batch. Its successor is loaded first, or, on a GPU without memory for both, as soon as it is gone",
    ),
];

/// Every stage that runs a program in workers of its own: how those are run.
pub const WORKERS: [Key; 11] = [
    key("devices", "text or list", "those of `[devices]`", "devices for this stage only"),
    key(
        "workers",
        "integer, 1 to 256",
        "its share of the cores, 1 on a GPU",
        "worker processes per device, each of which runs one batch at a time",
    ),
    key(
        "threads",
        "integer, 1 to 1024",
        "1",
        "threads of each worker: what the libraries of linear algebra are told to take",
    ),
    key(
        "memory",
        "memory",
        "what an earlier run or this one measures",
        "device memory of one worker, on a GPU",
    ),
    key(
        "priority",
        "integer, 1 to 100",
        "10",
        "share of a device's workers, relative to other stages on it; also beside [tasks](../guide/tasks.md#priority)",
    ),
    key(
        "spare",
        "integer, 0 to 4",
        "1 on the CPU where memory allows, else 0",
        "workers per device that stand by, loaded, and take over when one dies",
    ),
    key("recycle", "table", "none", "`{ batches = 100000, growth = \"2GiB\" }`: as for models"),
    key(
        "sandbox",
        "text",
        "that of `[limits]`",
        "`\"auto\"`, `\"require\"` or `\"off\"`: whether workers are confined to what they need; see [security](../security.md)",
    ),
    key(
        "sandbox_read",
        "text or list",
        "none",
        "files and folders that the code reads, besides its own folder",
    ),
    key("sandbox_write", "text or list", "none", "files and folders that the code writes"),
    key("sandbox_env", "text or list", "none", "variables of the environment that the code needs"),
];

/// `[devices]`
pub const DEVICES: [Key; 3] = [
    key(
        "use",
        "text or list",
        "\"auto\"",
        "`\"auto\"`: all GPUs, or, where none can be used, the CPU; the plan and the run say why. Or a list: `[\"cuda:0\", \"cuda:1\"]`, GPU UUIDs, `[\"cpu\"]`; `[\"cpu\", \"cpu\"]` is two CPU devices",
    ),
    key("headroom", "memory", "\"2GiB\"", "memory of each GPU that stays free for others"),
    key(
        "slots",
        "integer, 1 to 4096",
        "the number of cores",
        "how many [tasks](../guide/tasks.md) share the CPU at once, each with one of them",
    ),
];

/// `[tasks.NAME]`
pub const TASK: [Key; 24] = [
    key(
        "command",
        "list or text",
        "required",
        "the program and its arguments, or a text for `/bin/sh`; values in the text are quoted for it",
    ),
    key("cwd", "text", "the folder of the file", "where it runs, relative to that folder"),
    key(
        "snapshot",
        "true or false",
        "false",
        "it runs in a copy of `cwd` as it was when the run began: of a git repository what git does not ignore, else all of it; 1 GiB at most",
    ),
    key("env", "table", "none", "variables in addition to those of the run: `{ SEED = \"{seed}\" }`"),
    key(
        "pass_env",
        "list",
        "none",
        "credentials of the run that it gets, by their names or as `AWS_*`: else it gets [none](../security.md#what-a-worker-may-do) of those of stores and of the collector",
    ),
    key(
        "device",
        "text or number",
        "\"auto\"",
        "`\"auto\"`: a GPU to itself, or a slot of the CPU where there is none; a number of GPUs; a share of one such as `0.5`; `\"none\"`: a slot of the CPU, also where there are GPUs; or a device such as `\"cuda:0\"`",
    ),
    key(
        "priority",
        "integer, 1 to 100",
        "10",
        "the higher one has a device first, of [commands and models](../guide/tasks.md#priority), and starts first, of commands",
    ),
    key(
        "gpu_memory",
        "memory",
        "none",
        "what it takes of its GPU: shares of a GPU run together only as far as its free memory holds them",
    ),
    key(
        "after",
        "text or list",
        "none",
        "tasks that must have ended well before: all of a table, or one by its id; `\"sinks.NAME\"`: a sink whose items must all have ended",
    ),
    key(
        "matrix",
        "table of lists",
        "none",
        "a task for every combination of these values: `{ lr = [0.1, 0.01], seed = [1, 2, 3] }`",
    ),
    key(
        "zip",
        "table of lists",
        "none",
        "a task for the first values of all lists, one for the second, and so on",
    ),
    key("for_each", "text", "none", "a task for each row of this csv, tsv or jsonl file"),
    key("timeout", "duration", "none", "how long an attempt may take before it is ended"),
    key(
        "retries",
        "integer or table",
        "0",
        "how often it is tried again: after every failure, or by its class, `{ out_of_memory = 2, device_lost = 3, timeout = 1, code = 0, signal = 1, pause = \"10s\" }`",
    ),
    key(
        "stop_signal",
        "text",
        "\"SIGTERM\"",
        "what asks it to end: `\"SIGTERM\"`, `\"SIGINT\"`, `\"SIGHUP\"`, `\"SIGQUIT\"`, `\"SIGUSR1\"`, `\"SIGUSR2\"` or `\"SIGKILL\"`",
    ),
    key(
        "grace",
        "duration",
        "\"10s\"",
        "how long it has to end then; what is left of it and of all that it has started is killed",
    ),
    key(
        "on_run_death",
        "text",
        "\"end\"",
        "what becomes of it where the run is killed: `\"end\"`: it ends, too; `\"keep\"`: it goes on, and the next start goes on with it",
    ),
    key(
        "memory",
        "memory",
        "none",
        "what all of its processes may have together, or each of them: see the [guide](../guide/tasks.md#limits); 16 MiB at least",
    ),
    key(
        "cpus",
        "integer, 1 to 4096",
        "none",
        "cores that it is kept on, of which each takes a slot of the CPU",
    ),
    key(
        "inputs",
        "text or list",
        "none",
        "files and folders that it reads, relative to `cwd`; it runs again when one has changed",
    ),
    key(
        "outputs",
        "text, list or table",
        "none",
        "files and folders that it must leave, relative to `cwd`; `{output}` is a folder of its own. A table gives them names: with `{ model = \"{output}/model.onnx\" }`, `{tasks.NAME.model}` is that file",
    ),
    key(
        "metrics",
        "list",
        "none",
        "numbers that are read from its lines: `\"loss\"` is a key of lines that are JSON objects, `{ name = \"epoch\", regex = 'epoch ([0-9]+)' }` the first group of an expression, in any line",
    ),
    key(
        "best",
        "table",
        "none",
        "what its tasks are compared by: `{ metric = \"loss\", goal = \"min\" }`, or `\"max\"`; later tasks may use `{tasks.NAME.best.output}`",
    ),
    key(
        "stop_early",
        "table",
        "none",
        "which attempts are asked to end because others are better: `{ rule = \"median\", min_tasks = 5 }` or `{ rule = \"asha\", eta = 3 }`, with `step`, a metric that counts steps (values of the metric of `best` are counted without it), and `warmup`, the first step at which one is (1)",
    ),
];

/// `[limits]`
pub const LIMITS: [Key; 10] = [
    key(
        "max_failed",
        "integer or percent",
        "none",
        "stop the run when more items than this have failed: `100`, or `\"1%\"` of all items",
    ),
    key("item_timeout", "duration", "\"30s\"", "how long reading and decoding one item may take"),
    key(
        "batch_timeout",
        "duration",
        "\"60s\"",
        "how long a batch may run in a worker, or several that [go together](../guide/devices.md#batches-that-go-together)",
    ),
    key(
        "load_timeout",
        "duration",
        "\"10min\"",
        "how long a worker may take to load its model and to warm up, what TensorRT compiles for it or for another worker included",
    ),
    key(
        "grace",
        "duration",
        "\"25s\"",
        "how long the run may take to finish what is in flight when a signal stops it",
    ),
    key(
        "max_pixels",
        "integer",
        "268435456",
        "a picture that claims more pixels fails as `too_large`, before memory is taken",
    ),
    key(
        "max_items",
        "integer",
        "100000000",
        "a source of `tensors` or `parquet` whose files claim more items is refused, before they are listed",
    ),
    key(
        "memory",
        "memory",
        "half of the machine's",
        "what the batch slots of all stages may take together; loaders get half as much again for decoding, and pictures that are [carried](../guide/devices.md#memory) up to a quarter",
    ),
    key(
        "loaders",
        "integer, 1 to 1024",
        "the number of cores",
        "processes that read and decode, over all sources",
    ),
    key(
        "sandbox",
        "text",
        "\"auto\"",
        "whether loaders and workers are [confined](../security.md) to what they need: `\"auto\"`, as far as the kernel can; `\"require\"`, or they do not start; `\"off\"`",
    ),
];

/// `[pipelines.NAME]`
pub const PIPELINE: [Key; 6] = [
    key(
        "max_failed",
        "integer or percent",
        "none",
        "stop this pipeline, and no other one, when more of its items than this have failed: `100`, or `\"1%\"` of its items",
    ),
    key(
        "item_timeout",
        "duration",
        "that of `[limits]`",
        "how long reading and decoding one of its items may take",
    ),
    key(
        "batch_timeout",
        "duration",
        "that of `[limits]`",
        "how long a batch of its stages may run in a worker",
    ),
    key(
        "load_timeout",
        "duration",
        "that of `[limits]`",
        "how long a worker of its stages may take to load its model and to warm up",
    ),
    key(
        "memory",
        "memory",
        "none",
        "of `limits.memory`, what the batch slots of its stages may take together; the other pipelines have the rest",
    ),
    key(
        "loaders",
        "integer, 1 to 1024",
        "an equal share",
        "of the processes of `limits.loaders`, how many read its items; the other pipelines share the rest, and have one at least",
    ),
];

/// `[telemetry]`
pub const TELEMETRY: [Key; 7] = [
    key("otlp", "text", "none", "address of an OTLP collector: `\"http://localhost:4318\"`"),
    key("protocol", "text", "by the port", "`\"http/protobuf\"`, or `\"grpc\"` in a build that has it"),
    key(
        "sample",
        "number, 0 to 1",
        "0.01",
        "share of the items that get a trace; those that failed, were tried again or were slow get one always",
    ),
    key("slow", "duration", "ten times the median", "an item that takes longer is traced"),
    key(
        "flush_timeout",
        "duration",
        "\"3s\"",
        "how long the end of the run waits for spans that are not made yet, and again for those that are not sent",
    ),
    key("metrics", "text", "none", "where the page of metrics is served: `\"127.0.0.1:9464\"`"),
    key("log_format", "text", "\"text\"", "lines of the log files: `\"text\"` or `\"json\"`"),
];

/// Every source, beside `kind`.
pub const SOURCE: [Key; 7] = [
    key(
        "paths",
        "text or list",
        "none",
        "files, folders (with all below them) and globs; or [objects](../guide/workflow-file.md#objects) of a store",
    ),
    key(
        "manifest",
        "text",
        "none",
        "instead of `paths`: a list of files, or of [objects](../guide/workflow-file.md#objects): `.csv`, `.tsv`, `.jsonl`, `.ndjson`, or one path per line; it may be an object itself, and `\"-\"` is standard input",
    ),
    key(
        "root",
        "text",
        "the manifest's folder",
        "only with `manifest`: what relative paths in it are relative to; `\"s3://bucket/pages\"` where they are keys of objects",
    ),
    key(
        "watch",
        "true or false",
        "false",
        "new files or objects of `paths` are [taken as they appear](../guide/workflow-file.md#watching-folders), each path once, until the run is stopped",
    ),
    key(
        "watch_settle",
        "duration",
        "\"2s\"",
        "only with `watch`: for so long, size and time of change of a new file are the same before it is taken; a bucket is listed at intervals of it",
    ),
    key(
        "watch_idle",
        "duration",
        "none",
        "only with `watch`: after so long without a new one the run is complete; at least twice `watch_settle`",
    ),
    key(
        "sandbox_read",
        "text or list",
        "none",
        "files and folders that its loaders may read beside [those of its items](../security.md#what-a-loader-may-do): where records name pictures that lie elsewhere",
    ),
];

/// Every stage, beside `kind`.
pub const STAGE: [Key; 1] = [key(
    "from",
    "text or list",
    "required",
    "what it reads from: the name of a source or a stage, or `name.column` for one of its columns",
)];

/// Every sink, beside `kind`.
pub const SINK: [Key; 4] = [
    key(
        "from",
        "text or list",
        "required",
        "the stages whose results are written, or `stage.column` for one of their columns; or `failures`: those of the run",
    ),
    key(
        "path",
        "text",
        "the name of the table, with the ending of the kind",
        "the file or folder, in the output folder; or a [prefix of a bucket](../guide/running.md#buckets), `s3://bucket/results/`",
    ),
    key(
        "rows_per_file",
        "integer, 1 to 100000000",
        "100000; of `tar` 10000",
        "only of part files, which `parquet` and `tar` write, and all kinds to a bucket: one is made once so many rows wait for it, or 64 MiB of them; it has more where one commit brings more",
    ),
    key("ordered", "true or false", "false", "records in the order of the source"),
];

/// The names of some keys, in their order.
pub(crate) fn names<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<&'static str> {
    keys.into_iter().map(|key| key.name).collect()
}
