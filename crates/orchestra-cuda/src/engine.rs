//! The engine: compiles a kernel, and for each batch copies its rows to the device, launches the kernel, and copies the results back. It knows
//! frames and the arena, but neither sockets nor threads.

use std::time::Instant;

use orchestra_core::{DeviceKind, Kernel, TensorSpec};
use orchestra_worker::Sandbox;
use orchestra_worker::arena::WorkerArena;
use orchestra_worker::engine::{Engine, EngineRunError, Loaded, Stream, nanos};
use orchestra_worker::frames::{BatchRun, DynamicOutput, Load, RunTiming};
use orchestra_worker::load_error::LoadError;

use crate::arguments::values;
use crate::buffers::{DeviceBuffers, page_lock};
use crate::compile::compile;
use crate::errors;
use crate::ffi::driver::{Driver, Function, NoDriver};
use crate::spec::KernelSpec;

/// One kernel on one device over one arena.
#[derive(Default)]
pub struct KernelEngine {
    /// `None` until it is loaded.
    serving: Option<LoadedKernel>,
}

struct LoadedKernel {
    driver: Driver,
    function: Function,
    buffers: DeviceBuffers,
    arena: WorkerArena,
    kernel: Kernel,
    /// What the grid is made for.
    first_output: TensorSpec,
}

impl Engine for KernelEngine {
    fn sandbox(&self, load: &Load) -> Result<Sandbox, LoadError> {
        Ok(KernelSpec::decode(&load.spec)?.sandbox())
    }

    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        let spec = KernelSpec::decode(&load.spec)?;
        let DeviceKind::Cuda { uuid } = &load.device else {
            return Err(LoadError::permanent("a CUDA kernel runs on no CPU: name a GPU in `devices`"));
        };
        let layout = arena.layout();
        let inputs: Vec<TensorSpec> = layout.inputs.iter().map(|span| span.tensor.clone()).collect();
        let outputs = layout.outputs.iter().map(|span| Some(span.as_ref()?.tensor.clone()));
        let outputs: Option<Vec<TensorSpec>> = outputs.collect();
        let outputs = outputs.filter(|outputs| !outputs.is_empty());
        let outputs =
            outputs.ok_or_else(|| LoadError::permanent("outputs of a kernel have a fixed shape"))?;
        let driver = Driver::open().map_err(|why| no_driver(why, uuid))?;
        let version = driver.version().map_err(errors::load)?;
        let (compiled, compiler) = compile(&spec.kernel, (&inputs, &outputs), driver.capability, version)?;
        let function = driver.function(&compiled.image, &compiled.name).map_err(errors::load)?;
        page_lock(&driver, &arena);
        let buffers = DeviceBuffers::new(&driver, layout, layout.slot_rows).map_err(errors::load)?;
        let (warmed, first_output) = (buffers.rows, outputs[0].clone());
        let serving = LoadedKernel { driver, function, buffers, arena, kernel: spec.kernel, first_output };
        serving.warm_up()?;
        self.serving = Some(serving);
        Ok(Loaded {
            providers: Vec::new(),
            runtime_version: format!(
                "NVRTC {compiler}, driver for CUDA {}.{}",
                version / 1000,
                version % 1000 / 10
            ),
            warmed,
        })
    }

    fn run(
        &mut self,
        run: &BatchRun,
        _: &[u8],
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        match &self.serving {
            Some(serving) => serving.run(run, timing),
            None => Err(EngineRunError::of_model("no kernel is loaded".to_owned())),
        }
    }

    /// A kernel fills the device, so no stage asks for several at once.
    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        Vec::new()
    }
}

impl LoadedKernel {
    /// One block that is told of no row: what only a launch shows, such as a block that needs more registers than there are, shows before any
    /// batch. The memory holds zeros then, for a kernel that looks at some all the same.
    fn warm_up(&self) -> Result<(), LoadError> {
        self.buffers.zero(&self.driver).map_err(errors::load)?;
        self.launch(0).map_err(EngineRunError::at_load)
    }

    fn run(&self, run: &BatchRun, timing: &mut RunTiming) -> Result<Vec<DynamicOutput>, EngineRunError> {
        let begun = Instant::now();
        let copied = self.buffers.copy_in(&self.driver, &self.arena, run);
        timing.bind_ns = nanos(begun.elapsed());
        copied?;
        let begun = Instant::now();
        let ran = self.launch(run.rows);
        timing.run_ns = nanos(begun.elapsed());
        ran?;
        let begun = Instant::now();
        let copied = self.buffers.copy_out(&self.driver, &self.arena, run);
        timing.copy_out_ns = nanos(begun.elapsed());
        copied.map(|()| Vec::new())
    }

    /// Launches the kernel over the first `rows` rows on the device, and waits for its end.
    fn launch(&self, rows: usize) -> Result<(), EngineRunError> {
        let Kernel { file, function, block, grid, scalars, .. } = &self.kernel;
        let blocks = grid.blocks(rows, &self.first_output, *block).ok_or_else(|| {
            EngineRunError::out_of_memory(format!(
                "a batch of {rows} rows needs more blocks of {block} threads than CUDA launches at once"
            ))
        })?;
        let mut arguments = values(&self.buffers.inputs, &self.buffers.outputs, rows, scalars);
        let launched = self.driver.launch(self.function, (blocks, *block), &mut arguments);
        launched.and_then(|()| self.driver.wait()).map_err(|error| {
            let EngineRunError { kind, error } = errors::run(error);
            EngineRunError {
                kind,
                error: format!("`{function}` of `{file}`, {blocks} blocks of {block} threads: {error}"),
            }
        })
    }
}

fn no_driver(why: NoDriver, uuid: &str) -> LoadError {
    match why {
        NoDriver::Refuses(error) => errors::load(error),
        NoDriver::Library(why) => LoadError::permanent(format!(
            "the library of the NVIDIA driver cannot be used: {why}; install the driver, or give the container its `compute` capability \
             (`NVIDIA_DRIVER_CAPABILITIES=compute,utility`)"
        )),
        NoDriver::Devices(n) => LoadError::permanent(format!(
            "CUDA shows {n} devices to this worker, expected `{uuid}` alone; what starts the workers must leave `CUDA_VISIBLE_DEVICES` as it is"
        )),
    }
}
