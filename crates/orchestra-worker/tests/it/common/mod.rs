//! Arbitrary frames, for property tests. It checks nothing itself.

use orchestra_core::batch_layout::{BatchLayout, TensorSpan};
use orchestra_core::{BatchId, DType, DeviceKind, Dim, ErrorClass, OutputSlotId, SlotId, TensorSpec};
use orchestra_worker::frames::{
    BatchRun, DynamicOutput, FromWorker, Load, RowError, RowsWithoutOutputs, RunErrorKind, RunTiming,
    ToWorker,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn dim() -> impl Strategy<Value = Dim> {
    prop_oneof![any::<usize>().prop_map(Dim::Fixed), Just(Dim::Dynamic)]
}

fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::ALL.to_vec())
}

fn tensor() -> impl Strategy<Value = TensorSpec> {
    (".{0,12}", dtype(), vec(dim(), 0..5), dim()).prop_map(|(name, dtype, row, batch)| TensorSpec {
        name,
        dtype,
        row,
        batch,
    })
}

fn span() -> impl Strategy<Value = TensorSpan> {
    (tensor(), any::<usize>(), any::<usize>()).prop_map(|(tensor, offset, row_bytes)| TensorSpan {
        tensor,
        offset,
        row_bytes,
    })
}

fn layout() -> impl Strategy<Value = BatchLayout> {
    let sizes = (any::<usize>(), any::<usize>(), any::<usize>(), any::<usize>());
    (sizes, vec(span(), 0..4), vec(option::of(span()), 0..4)).prop_map(
        |((slot_rows, slots, input_slot_bytes, output_slot_bytes), inputs, outputs)| BatchLayout {
            slot_rows,
            slots,
            inputs,
            outputs,
            input_slot_bytes,
            output_slot_bytes,
        },
    )
}

fn load() -> impl Strategy<Value = Load> {
    let device =
        prop_oneof![Just(DeviceKind::Cpu), "GPU-[0-9a-f]{8}".prop_map(|uuid| DeviceKind::Cuda { uuid })];
    (
        (vec(any::<u8>(), 0..64), device, any::<[usize; 2]>()),
        (option::of(any::<usize>()), layout(), any::<usize>()),
    )
        .prop_map(|((spec, device, [threads, streams]), (padded_to, layout, answer_bytes))| Load {
            spec,
            device,
            threads,
            streams,
            padded_to,
            layout,
            answer_bytes,
        })
}

fn run() -> impl Strategy<Value = BatchRun> {
    let place = (any::<u32>(), any::<u32>(), any::<usize>(), any::<usize>());
    (any::<u64>(), any::<u32>(), place).prop_map(|(batch, attempt, (slot, output_slot, first_row, rows))| {
        BatchRun {
            batch: BatchId(batch),
            attempt,
            slot: SlotId(slot),
            output_slot: OutputSlotId(output_slot),
            first_row,
            rows,
        }
    })
}

pub fn to_worker() -> impl Strategy<Value = ToWorker> {
    prop_oneof![
        load().prop_map(|l| ToWorker::Load(Box::new(l))),
        run().prop_map(ToWorker::Run),
        (run(), vec(any::<u8>(), 0..99)).prop_map(|(run, values)| ToWorker::RunWithValues(run, values)),
    ]
}

fn timing() -> impl Strategy<Value = RunTiming> {
    any::<[u64; 3]>().prop_map(|[bind_ns, run_ns, copy_out_ns]| RunTiming { bind_ns, run_ns, copy_out_ns })
}

fn dynamic() -> impl Strategy<Value = DynamicOutput> {
    (any::<usize>(), dtype(), vec(any::<usize>(), 0..5), vec(any::<u8>(), 0..300))
        .prop_map(|(output, dtype, shape, data)| DynamicOutput { output, dtype, shape, data })
}

fn class() -> impl Strategy<Value = ErrorClass> {
    use ErrorClass::{Input, Overload, Permanent, Shutdown, Transient};
    proptest::sample::select(vec![Input, Transient, Permanent, Overload, Shutdown])
}

fn error_kind() -> impl Strategy<Value = RunErrorKind> {
    use RunErrorKind::{Device, Model, OutOfMemory};
    proptest::sample::select(vec![OutOfMemory, Model, Device])
}

pub fn from_worker() -> impl Strategy<Value = FromWorker> {
    let hello = (any::<u32>(), ".{0,9}", any::<u32>(), option::of(".{0,40}")).prop_map(
        |(protocol, build, pid, visible_devices)| FromWorker::Hello { protocol, build, pid, visible_devices },
    );
    let providers = vec((".{0,30}", any::<u32>()), 0..3);
    let version = (".{0,9}", any::<usize>());
    let loaded = (providers, version, any::<u64>(), any::<u64>()).prop_map(
        |(providers, (runtime_version, warmed), load_ns, rss_bytes)| FromWorker::Loaded {
            providers,
            runtime_version,
            warmed,
            load_ns,
            rss_bytes,
        },
    );
    let failed =
        (0..300_usize, error_kind(), ".{0,80}").prop_map(|(row, kind, error)| RowError { row, kind, error });
    let without = (vec(0..300_usize, 0..4), vec(failed, 0..3))
        .prop_map(|(dropped, failed)| RowsWithoutOutputs { dropped, failed });
    let done = (any::<u64>(), vec(dynamic(), 0..3), without, timing(), any::<u64>()).prop_map(
        |(batch, dynamic, without, timing, rss_bytes)| FromWorker::Done {
            batch: BatchId(batch),
            dynamic,
            without,
            timing,
            rss_bytes,
        },
    );
    prop_oneof![
        hello,
        loaded,
        (class(), ".{0,80}").prop_map(|(class, error)| FromWorker::LoadFailed { class, error }),
        done,
        (any::<u64>(), error_kind(), ".{0,80}", timing()).prop_map(|(batch, kind, error, timing)| {
            FromWorker::Failed { batch: BatchId(batch), kind, error, timing }
        }),
        Just(FromWorker::Heartbeat),
        Just(FromWorker::Waiting),
    ]
}
