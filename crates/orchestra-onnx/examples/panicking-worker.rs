//! A worker whose engine panics, for the test that a panic ends the process. It loads nothing.

use std::process::ExitCode;

use orchestra_core::SandboxMode;
use orchestra_worker::arena::WorkerArena;
use orchestra_worker::frames::{BatchRun, DynamicOutput, Load, RunTiming};
use orchestra_worker::{Engine, EngineRunError, LoadError, Loaded, Sandbox, Stream};

struct Panics;

impl Engine for Panics {
    fn sandbox(&self, _: &Load) -> Result<Sandbox, LoadError> {
        Ok(Sandbox { mode: SandboxMode::Off, ..Sandbox::default() })
    }

    fn load(&mut self, _: &Load, _: WorkerArena) -> Result<Loaded, LoadError> {
        panic!("an engine that panics, as asked");
    }

    fn run(
        &mut self,
        _: &BatchRun,
        _: &[u8],
        _: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        Ok(Vec::new())
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        vec![]
    }
}

fn main() -> ExitCode {
    orchestra_worker::run_with(&mut Panics)
}
