//! A kind of stage that does in a loader process what the trap operator does in a worker: it passes pictures on, but for those with a certain
//! first pixel, which do harm.

use std::time::Duration;

use crate::trap_operator::{GOT_THROUGH, Trap, attempts, bloat, scribble, start_threads};
use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, FailureKind};
use orchestra_plan::{
    Connect, Kinds, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings,
};

/// How often memory is written over before the process aborts, so that others are at work meanwhile.
const PASSES: usize = 64;

/// All kinds, and this one, `trap`: for `f32` pixels.
pub fn kinds() -> Kinds {
    orchestra_kinds::builtin().with_typed_stage::<TrapStage>()
}

settings! {
    #[derive(Debug, Encode, Decode)]
    pub struct TrapStage {}
}

impl TypedStage for TrapStage {
    const NAME: &'static str = "trap";
    const ABOUT: &'static str = "A stage of a test, which does harm over certain pictures.";
    type Work = Self;
}

impl Connect for TrapStage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let column = stage.column(0, "pixels", |column| column.ty.tensor().is_some())?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor().ok_or(Reported)?.clone();
        assert_eq!(tensor.dtype, DType::F32, "the stage is for f32 pixels");
        Ok(StageConnected {
            gives: Schema::of(&tensor.name.clone(), ColumnType::Tensor(tensor)),
            reads: vec![(0, column)],
            runs: Runs::map::<Self>(Self {}, None),
            settings: self.json(),
            details: Vec::new(),
            about: "trap".to_owned(),
        })
    }
}

impl RowWork for TrapStage {
    type Scratch = ();

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let first = tensor.data.first_chunk().map_or(0.0, |bytes| f32::from_ne_bytes(*bytes));
            spring(first)?;
            emit.row(&[Value::Tensor(*tensor)])
        })
    }
}

fn spring(first: f32) -> Result<(), ItemError> {
    match Trap::of(first) {
        None | Some(Trap::Fork | Trap::BloatInCpp) => Ok(()),
        Some(Trap::Bloat) => {
            bloat();
            Err(ItemError::result("the test stage took gigabytes, and was not refused"))
        }
        Some(Trap::Threads) => {
            start_threads();
            Err(ItemError::result("the test stage started thousands of threads, and lived"))
        }
        // As a decoder that asks first, and is told that there is none.
        Some(Trap::OutOfMemory) => Err(ItemError {
            kind: FailureKind::OutOfMemory,
            error: "the test stage found no memory".to_owned(),
        }),
        Some(Trap::Abort) => std::process::abort(),
        Some(Trap::Scribble) => {
            scribble(PASSES);
            std::process::abort()
        }
        Some(Trap::Segfault) => {
            // Not null: a debug build checks for that and would abort instead.
            let nowhere = std::ptr::without_provenance_mut::<u8>(1);
            // SAFETY: there is none; the fault is the purpose.
            unsafe { nowhere.write_volatile(1) };
            Ok(())
        }
        Some(Trap::Hang) => loop {
            std::thread::park_timeout(Duration::from_secs(3600));
        },
        Some(Trap::Exit) => std::process::exit(0),
        Some(Trap::Fail) => Err(ItemError::result("the test stage was asked to fail")),
        Some(Trap::Intrude) => Err(ItemError::result(format!("{GOT_THROUGH} {}.", attempts().join(", ")))),
    }
}
