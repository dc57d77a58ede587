//! The TensorRT provider: its options, and where it keeps the engines that it builds. Whether nodes really run on it is `session`'s
//! business.
//!
//! TensorRT compiles a model for one GPU and one range of shapes, which takes from seconds to many minutes. So engines are kept, and
//! built by one worker at a time: the others wait for it, and read what it has built.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::{DeviceKind, Provider, TensorRt};
use orchestra_worker::LoadWait;
use orchestra_worker::frames::Load;
use ort::ep;
use ort::ep::ExecutionProviderDispatch;
use sha2::{Digest, Sha256};

use super::{errors, library, pixel_graph};
use crate::spec::OnnxSpec;
use orchestra_worker::load_error::LoadError;

/// The provider as the runtime names it.
pub const NAME: &str = "TensorrtExecutionProvider";

/// Where engines of one model are kept. Other workers wait until this is dropped before they build theirs.
pub struct EngineCache {
    folder: PathBuf,
    _lock: File,
}

impl EngineCache {
    /// The folder for the engines of this model as this build of the runtime makes them; waits for a worker that is building there. `None`
    /// for a model that runs without TensorRT, and where none can be kept, which is said: then every worker builds its own.
    pub fn of(load: &Load, spec: &OnnxSpec) -> Option<EngineCache> {
        let (DeviceKind::Cuda { .. }, Provider::TensorRt(wanted)) = (&load.device, &spec.tuning.provider)
        else {
            return None;
        };
        let folder = wanted.engines.as_ref()?.join(key(load.layout.slot_rows, spec));
        match lock(&folder) {
            Ok(lock) => Some(EngineCache { folder, _lock: lock }),
            Err(why) => {
                eprintln!(
                    "worker: engines of TensorRT cannot be kept in `{}`, so each worker builds its own: {why}",
                    folder.display()
                );
                None
            }
        }
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    let lock = File::create(folder.join("lock"))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            // The deadline of the load is for what this worker builds itself; the other one has a deadline of its own, and its lock ends with it.
            let _waiting = LoadWait::begin();
            lock.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    Ok(lock)
}

/// What an engine depends on and TensorRT's own name for it does not tell: it leaves out the constants of a graph, such as those of the
/// nodes in front of inputs that take pixels. The GPU and the precision it does tell.
fn key(max_batch: usize, spec: &OnnxSpec) -> String {
    let OnnxSpec { pixel_inputs, largest_outputs, outputs, tf32, library, .. } = spec;
    let behind: Vec<_> = outputs.iter().filter(|output| output.needs_nodes()).collect();
    let version = library::version(library);
    let about =
        format!("{pixel_inputs:?} {largest_outputs:?} {behind:?} {max_batch:?} {version} tf32 {tf32}");
    format!("{:x}", Sha256::digest(about))[..16].to_owned()
}

/// Whether a library is one of TensorRT's, by its name.
pub fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libnvinfer") || name.starts_with("libnvonnxparser")
}

/// The provider for the one device that this process sees. What it does not take is left to the provider after it.
pub fn provider(
    load: &Load,
    spec: &OnnxSpec,
    wanted: &TensorRt,
    engines: Option<&EngineCache>,
) -> ExecutionProviderDispatch {
    // Without this a provider that does not load means a session on CUDA alone and nothing but a log line.
    options(load, spec, wanted, engines).build().error_on_failure()
}

fn options(load: &Load, spec: &OnnxSpec, wanted: &TensorRt, engines: Option<&EngineCache>) -> ep::TensorRT {
    let shapes = |batch: &dyn Fn(&TensorSpan) -> usize| profile(load, spec, batch);
    let largest = |span: &TensorSpan| span.tensor.batch.fixed().unwrap_or(load.layout.slot_rows);
    let mut tensorrt = ep::TensorRT::default()
        .with_device_id(0)
        .with_fp16(wanted.fp16)
        // One engine for all sizes of a batch, at its best for full ones. Without it one is built anew for each size that is new.
        .with_profile_min_shapes(shapes(&|span| span.tensor.batch.fixed().unwrap_or(1)))
        .with_profile_opt_shapes(shapes(&largest))
        .with_profile_max_shapes(shapes(&largest));
    if let Some(limit) = spec.memory_limit {
        tensorrt = tensorrt.with_max_workspace_size(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    if let Some(engines) = engines {
        let folder = engines.folder.display();
        tensorrt = tensorrt
            .with_engine_cache(true)
            .with_engine_cache_path(&folder)
            .with_timing_cache(true)
            .with_timing_cache_path(&folder);
    }
    tensorrt
}

/// The shape of every input, as `name:1x3x224x224,other:1x8`.
fn profile(load: &Load, spec: &OnnxSpec, batch: &dyn Fn(&TensorSpan) -> usize) -> String {
    let inputs = load.layout.inputs.iter().zip(&spec.pixel_inputs).map(|(span, pixels)| {
        let name = match pixels {
            Some(_) => pixel_graph::session_name(&span.tensor.name),
            _ => span.tensor.name.clone(),
        };
        let dims = std::iter::once(batch(span)).chain(span.tensor.fixed_row().unwrap_or_default());
        let dims: Vec<String> = dims.map(|n| n.to_string()).collect();
        format!("{name}:{}", dims.join("x"))
    });
    inputs.collect::<Vec<_>>().join(",")
}

/// The provider's words for a model of which it takes parts that lie behind nodes it does not take: it is told the shapes of the model's
/// inputs, and asks for those of the parts.
pub fn is_refusal_of_parts(text: &str) -> bool {
    text.contains("User needs to provide all the dynamic shape inputs")
}

/// Why the provider did not load, and what to do.
pub fn not_usable(error: &ort::Error) -> LoadError {
    errors::provider(error, |text| {
        format!(
            "tensorrt cannot be used: {text}; `orchestra doctor` says what is missing, and without `provider = \"tensorrt\"` the model \
             runs on CUDA"
        )
    })
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim, Layout, PixelInput};

    use super::super::provider_options::{load, spec, tensor, told};
    use super::*;

    #[test]
    fn the_providers_words_for_a_model_that_it_takes_in_parts_are_known() {
        let words = "TensorRT EP failed to create engine: User needs to provide all the dynamic shape inputs with associated profiles \
            if they want to explicitly set profiles through provider options.";
        assert!(is_refusal_of_parts(words) && !is_refusal_of_parts("Protobuf parsing failed."));
    }

    fn with(wanted: &TensorRt, mut spec: OnnxSpec) -> OnnxSpec {
        spec.tuning.provider = Provider::TensorRt(wanted.clone());
        spec
    }

    fn pixels(factor: f32) -> PixelInput {
        PixelInput { layout: Layout::Nchw, dtype: DType::F32, factor: vec![factor], offset: vec![0.0] }
    }

    #[test]
    fn one_profile_holds_for_all_sizes_and_names_inputs_as_the_session_does() {
        let inputs = [tensor("image", Dim::Dynamic, &[3, 4, 5]), tensor("mask", Dim::Dynamic, &[])];
        let (load, mut spec) = (load(&inputs), spec(&inputs));
        assert_eq!(profile(&load, &spec, &|_| 8), "image:8x3x4x5,mask:8");
        spec.pixel_inputs[0] = Some(pixels(1.0));
        assert_eq!(profile(&load, &spec, &|_| 1), "orchestra.pixels.image:1x3x4x5,mask:1");
    }

    #[test]
    fn the_runtime_is_told_one_profile_the_precision_and_where_engines_are_kept() {
        let inputs = [tensor("image", Dim::Dynamic, &[3, 4, 5])];
        let root = tempfile::tempdir().unwrap();
        let wanted = TensorRt { fp16: true, engines: Some(root.path().to_owned()) };
        let (load, spec) = (load(&inputs), with(&wanted, spec(&inputs)));
        let engines = EngineCache::of(&load, &spec).unwrap();
        let folder = engines.folder.display().to_string();
        let workspace = (1u64 << 30).to_string();
        let bare = [
            ("device_id", "0"),
            ("trt_fp16_enable", "true"),
            ("trt_profile_min_shapes", "image:1x3x4x5"),
            ("trt_profile_opt_shapes", "image:8x3x4x5"),
            ("trt_profile_max_shapes", "image:8x3x4x5"),
            ("trt_max_workspace_size", workspace.as_str()),
        ];
        let kept = [
            ("trt_engine_cache_enable", "true"),
            ("trt_engine_cache_path", folder.as_str()),
            ("trt_timing_cache_enable", "true"),
            ("trt_timing_cache_path", folder.as_str()),
        ];
        assert!(told(&options(&load, &spec, &wanted, None), &bare));
        assert!(told(&options(&load, &spec, &wanted, Some(&engines)), &[&bare[..], &kept].concat()));
    }

    #[test]
    fn other_constants_in_the_graph_mean_other_engines() {
        let mut spec = spec(&[tensor("image", Dim::Dynamic, &[3, 4, 5])]);
        let plain = key(8, &spec);
        assert_eq!(plain, key(8, &spec.clone()));
        spec.pixel_inputs[0] = Some(pixels(1.0));
        let whole = key(8, &spec);
        spec.pixel_inputs[0] = Some(pixels(0.5));
        assert!(plain != whole && whole != key(8, &spec));
        assert_eq!(plain.len(), 16);
    }

    #[test]
    fn one_worker_compiles_while_the_others_wait() {
        let root = tempfile::tempdir().unwrap();
        let inputs = [tensor("image", Dim::Dynamic, &[3])];
        let wanted = TensorRt { fp16: false, engines: Some(root.path().join("new/folder")) };
        let engines = EngineCache::of(&load(&inputs), &with(&wanted, spec(&inputs))).unwrap();
        assert!(engines.folder.is_dir());
        let other = File::open(engines.folder.join("lock")).unwrap();
        assert!(other.try_lock().is_err());
        drop(engines);
        // A child that another test is just starting may hold it for a moment longer.
        other.lock().unwrap();
    }

    #[test]
    fn where_nothing_can_be_kept_the_model_is_compiled_all_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let inputs = [tensor("image", Dim::Dynamic, &[3])];
        let engines = Some(file.path().join("no-folder"));
        for wanted in [TensorRt { fp16: false, engines }, TensorRt::default()] {
            assert!(EngineCache::of(&load(&inputs), &with(&wanted, spec(&inputs))).is_none());
        }
    }

    #[test]
    fn its_libraries_are_known_by_their_names() {
        for (name, is_its) in [
            ("libnvinfer.so.10", true),
            ("libnvinfer_plugin.so.10", true),
            ("libnvonnxparser.so.10", true),
            ("libcudart.so.13", false),
        ] {
            assert_eq!(is_library(&Path::new("/x").join(name)), is_its, "{name}");
        }
    }
}
