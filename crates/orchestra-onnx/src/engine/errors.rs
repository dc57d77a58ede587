//! What ONNX Runtime's error texts mean, and the words of them that are for users. It reads texts only: the runtime gives `GenericFailure` for nearly
//! everything.

use crate::session_names::output_of;
use orchestra_core::ErrorClass;
use orchestra_worker::frames::RunErrorKind;

use orchestra_worker::engine::EngineRunError;
use orchestra_worker::load_error::LoadError;

/// Memory ran out, on the device or in the process. Checked first: CUDA reports it as a failure of the device, too.
const OUT_OF_MEMORY: [&str; 9] = [
    "out of memory",
    "failed to allocate memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
    "allocation_failed", // cuDNN 9: "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    "available memory of", // BFCArena: "Available memory of 1048576 is smaller than requested bytes of 4194304"
    "bad_alloc",
    "bad allocation",
];

/// The device, its driver or a library of the provider failed. Such errors stick to the process: after an illegal address, a failed
/// launch or a memory error that cannot be corrected, every later call of CUDA gives the same error. All calls of the provider report
/// as "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=.. ; file=.. ; line=.. ; expr=..", with the
/// library's name in front; the words behind the number stand here too, because other parts report them alone.
const DEVICE: [&str; 26] = [
    "cuda failure",
    "cuda error",
    "cudaerror",
    "cuda_error_",
    "cublas failure",
    "cublas_status",
    "cublaslt failure",
    "cudnn failure",
    "cudnn_fe failure",
    "cudnn frontend",
    "cudnn_status",
    "cudnn_backend_",
    "cufft failure",
    "cufft_",
    "curand failure",
    "nvrtc_error",
    "cuda driver",
    "no cuda-capable device",
    "illegal memory access",
    "illegal instruction was encountered",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "hardware stack error",
    "uncorrectable ecc error",
    "gpu is lost",
];

/// A library of the device has nothing for this node. It speaks against the model, though it bears the library's name. cuDNN's frontend says by
/// its own codes that it finds no plan (8: `HEURISTIC_QUERY_FAILED`) or that none can be built (11: `CUDNN_BACKEND_API_FAILED`), before anything
/// runs. It gives 11 for a plan that fails while it runs, too: the expression that ONNX Runtime adds tells the two apart.
const NOT_FOR_THIS_DEVICE: [&str; 4] = [
    "not supported by cudnn frontend",
    "cudnn_fe failure 8:",
    "cudnn_fe failure 11:",
    "cudnn_status_not_supported",
];

/// What CUDA itself says stands, whatever a library makes of it; and a plan that runs was built for this device.
const NOT_OF_THE_MODEL: [&str; 4] = ["cuda failure", "cuda error", "cudaerror", "->execute("];

/// A node gives another shape than that of the memory for the rows of an output. Checked last: it stands for the model alone.
const NOT_THE_SHAPE: [&str; 2] =
    ["the output ortvalue provided for output", "ortvalue shape verification failed"];

pub fn run_kind(text: &str) -> RunErrorKind {
    let text = text.to_ascii_lowercase();
    let says = |patterns: &[&str]| patterns.iter().any(|p| text.contains(p));
    if says(&OUT_OF_MEMORY) {
        RunErrorKind::OutOfMemory
    } else if says(&DEVICE) && (says(&NOT_OF_THE_MODEL) || !says(&NOT_FOR_THIS_DEVICE)) {
        RunErrorKind::Device
    } else if says(&NOT_THE_SHAPE) {
        RunErrorKind::Shape
    } else {
        RunErrorKind::Model
    }
}

/// Whether a library of the device has nothing for a node at this shape. That depends on no value of the rows.
pub fn is_refusal(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    run_kind(text) == RunErrorKind::Model && NOT_FOR_THIS_DEVICE.iter().any(|p| lower.contains(p))
}

/// Where the sources lie that its builds are made of.
const SOURCES: &str = "/onnxruntime_src/";

/// An error without the places in the sources of ONNX Runtime: paths with their lines, and the functions behind them.
pub fn words(error: impl ToString) -> String {
    let text = error.to_string();
    let (mut words, mut rest) = (String::with_capacity(text.len()), &*text);
    while let Some((before, path)) = rest.split_once(SOURCES) {
        let behind = &path[path.find(char::is_whitespace).unwrap_or(path.len())..];
        if let Some(before) = before.strip_suffix("file=") {
            words += before.trim_end_matches([' ', ';']);
            let line = behind.strip_prefix(" ; line=");
            rest = line.map_or(behind, |line| line.trim_start_matches(|c: char| c.is_ascii_digit()));
            continue;
        }
        words += before;
        if !words.is_empty() && !words.ends_with(char::is_whitespace) {
            words.push(' ');
        }
        rest = behind_signature(behind.trim_start());
    }
    words += rest;
    words
}

/// What follows a function of C++ with its arguments, `void onnxruntime::f(int) const [with T = float]`; all of a text that begins with none.
fn behind_signature(text: &str) -> &str {
    let closed = |text: &str, [opens, closes]: [char; 2]| {
        let mut depth = 0;
        let end = text.char_indices().find(|(_, c)| {
            depth += i32::from(*c == opens) - i32::from(*c == closes);
            depth == 0 && *c == closes
        });
        end.map(|(at, c)| at + c.len_utf8())
    };
    let is_function = |head: &&str| head.contains("onnxruntime::") && !head.contains(": ");
    let Some(_) = text.split('(').next().filter(is_function) else { return text };
    let Some(end) = closed(text, ['(', ')']) else { return text };
    let rest = text[end..].strip_prefix(" const").unwrap_or(&text[end..]);
    let template = rest.strip_prefix(" [with ").and_then(|_| closed(rest, ['[', ']']));
    rest[template.unwrap_or(0)..].trim_start()
}

pub fn run(error: &ort::Error) -> EngineRunError {
    let error = words(error);
    let kind = run_kind(&error);
    match (kind, other_shape(&error)) {
        (RunErrorKind::Shape, Some(error)) => EngineRunError { kind, error },
        _ => EngineRunError { kind, error },
    }
}

/// Which output has another shape than the memory for its rows, out of the runtime's words.
fn other_shape(text: &str) -> Option<String> {
    let between = |before: &str, after: &str| Some(text.split_once(before)?.1.split_once(after)?.0);
    let output = between("provided for output '", "'")?;
    let (rows, found) = (between("has shape {", "}")?, between("for this run is {", "}")?);
    Some(no_rows(&output_of(output), found, &format!("`[{rows}]`, a row for each item,")))
}

/// That an output has no row for each item.
pub fn no_rows(output: &str, shape: &str, expected: &str) -> String {
    format!("its output `{output}` has the shape `[{shape}]` where {expected} is expected")
}

/// The worker's own memory is not enough for so many rows.
pub fn no_memory(rows: usize) -> EngineRunError {
    let error = format!("failed to allocate memory for `{rows}` rows outside of the batch slots");
    EngineRunError::out_of_memory(error)
}

pub fn load(error: impl ToString) -> LoadError {
    let error = words(error);
    EngineRunError { kind: run_kind(&error), error }.at_load()
}

/// A provider did not load. Where memory ran out, another time may do; whatever else it is, it stays.
pub fn provider(error: &ort::Error, in_words: impl FnOnce(&str) -> String) -> LoadError {
    let text = words(error);
    let class = match load(&text).class {
        ErrorClass::Overload => ErrorClass::Overload,
        _ => ErrorClass::Permanent,
    };
    LoadError { class, error: in_words(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As conv.cc of ONNX Runtime words them: a plan that cannot be made, one that cannot be built, and one that fails while it runs.
    const NO_PLAN: &str = "Non-zero status code returned while running Conv node. Name:'/f/Conv' Status Message: Failed to initialize CUDNN \
        Frontend/onnxruntime_src/onnxruntime/core/providers/cuda/cudnn_fe_call.cc:99 std::conditional_t<THRW, void, \
        onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const char*, int) \
        CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=h ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/nn/conv.cc ; \
        line=224 ; expr=s_.cudnn_fe_graph->build_operation_graph(handle); with the cudnn frontend json:\n{}";
    const NOT_SUPPORTED: &str = "Non-zero status code returned while running Conv node. Name:'/f/Conv' Status Message: OP not supported by \
        CUDNN Frontend/onnxruntime_src/onnxruntime/core/providers/cuda/cudnn_fe_call.cc:99 CUDNN_FE failure 6: \
        GRAPH_EXECUTION_PLAN_CREATION_FAILED ; GPU=0 ; hostname=h ; file=conv.cc ; line=236 ; \
        expr=s_.cudnn_fe_graph->build_plans(handle); with the cudnn frontend json:\n{}";
    const PLAN_FAILED: &str = "Non-zero status code returned while running Conv node. Name:'/f/Conv' Status Message: CUDNN_FE failure 11: \
        CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=h ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/nn/conv.cc ; line=471 ; \
        expr=s_.cudnn_fe_graph->execute(cudnn_handle, s_.variant_pack, ws.get()); ";

    #[test]
    fn known_texts_have_their_class() {
        use RunErrorKind::{Device, Model, OutOfMemory, Shape};
        let known = [
            (
                "Non-zero status code returned while running Conv node. Name:'/c' Status Message: CUDNN failure 4: \
              CUDNN_STATUS_INTERNAL_ERROR ; GPU=0",
                Device,
            ),
            ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", Device),
            ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0", Device),
            ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);", OutOfMemory),
            ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemory),
            (
                "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 77",
                OutOfMemory,
            ),
            (
                "bfc_arena.cc:342 Available memory of 1048576 is smaller than requested bytes of 4194304",
                OutOfMemory,
            ),
            ("std::bad_alloc", OutOfMemory),
            (NO_PLAN, Model),
            (&NO_PLAN.replace("11: CUDNN_BACKEND_API_FAILED", "8: HEURISTIC_QUERY_FAILED"), Model),
            (&NO_PLAN.replace("11: CUDNN_BACKEND_API_FAILED", "10: CUDA_API_FAILED"), Device),
            (NOT_SUPPORTED, Model),
            (PLAN_FAILED, Device),
            (&PLAN_FAILED.replace("11: CUDNN_BACKEND_API_FAILED", "10: CUDA_API_FAILED"), Device),
            ("CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED ; GPU=0", Model),
            ("CUDA failure 214: uncorrectable ECC error encountered ; GPU=0", Device),
            (
                "CUDA failure 719: unspecified launch failure ; GPU=0 ; expr=cudaStreamSynchronize(stream);",
                Device,
            ),
            ("CUDA failure 716: misaligned address ; GPU=0", Device),
            ("CUDA failure 710: device-side assert triggered ; GPU=0", Device),
            ("CUDA failure 100: no CUDA-capable device is detected ; GPU=-1", Device),
            ("CUDA failure 999: unknown error ; GPU=0", Device),
            (
                "parallel_for failed: cudaErrorIllegalAddress: an illegal memory access was encountered",
                Device,
            ),
            ("CUDA error executing cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice)", Device),
            ("CUDNN failure 4002: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; GPU=0", OutOfMemory),
            ("CUDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemory),
            ("Exception during initialization: CUDA failure 2: out of memory ; GPU=0", OutOfMemory),
            (
                "INVALID_ARGUMENT : The output OrtValue provided for output 'w' of node 'n' (Concat) has shape {1,4} but the computed \
                 output shape for this run is {2,4}. When calling Run() with pre-allocated output OrtValues",
                Shape,
            ),
            ("Got invalid dimensions for input: x for the following indices", Model),
            ("indices element out of data bounds, idx=9 must be within the inclusive range [-3,2]", Model),
        ];
        for (text, kind) in known {
            assert_eq!(run_kind(text), kind, "{text}");
        }
        for (text, refused) in
            [(NO_PLAN, true), (NOT_SUPPORTED, true), (PLAN_FAILED, false), ("std::bad_alloc", false)]
        {
            assert_eq!(is_refusal(text), refused, "{text}");
        }
        for text in [NO_PLAN, NOT_SUPPORTED, PLAN_FAILED] {
            assert_eq!(
                (run_kind(&words(text)), is_refusal(&words(text))),
                (run_kind(text), is_refusal(text))
            );
        }
        assert!(!is_refusal("indices element out of data bounds, idx=9"));
        assert_eq!(load("CUDA failure 2: out of memory").class, ErrorClass::Overload);
        assert_eq!(load("CUDA failure 46: all CUDA-capable devices are busy").class, ErrorClass::Transient);
        assert_eq!(load("Protobuf parsing failed.").class, ErrorClass::Permanent);
    }

    #[test]
    fn places_in_the_sources_of_onnx_runtime_are_no_words_for_users() {
        for (text, said) in [
            (
                "Non-zero status code returned while running Reshape node. Name:'r' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/\
                 tensor/reshape_helper.h:47 onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&, \
                 bool) input_shape_size == size was false. The input tensor cannot be reshaped to the requested shape. Input shape:{1,4}",
                "Non-zero status code returned while running Reshape node. Name:'r' Status Message: input_shape_size == size was false. The input \
                 tensor cannot be reshaped to the requested shape. Input shape:{1,4}",
            ),
            (
                "/onnxruntime_src/include/onnxruntime/core/framework/op_kernel_context.h:42 const T* \
                 onnxruntime::OpKernelContext::Input(int) const [with T = onnxruntime::Tensor] Missing Input: x (it)",
                "Missing Input: x (it)",
            ),
            (
                "/onnxruntime_src/onnxruntime/core/graph/model.cc:181 Unknown model file format (x)",
                "Unknown model file format (x)",
            ),
            (
                PLAN_FAILED,
                "Non-zero status code returned while running Conv node. Name:'/f/Conv' Status Message: CUDNN_FE failure 11: \
                 CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=h ; expr=s_.cudnn_fe_graph->execute(cudnn_handle, s_.variant_pack, ws.get()); ",
            ),
            ("no file of /onnxruntime_src/", "no file of "),
            ("indices element out of data bounds", "indices element out of data bounds"),
        ] {
            assert_eq!(words(text), said);
        }
        let no_plan = words(NO_PLAN);
        assert!(
            no_plan.contains("CUDNN Frontend CUDNN_FE failure 11") && !no_plan.contains("std::"),
            "{no_plan}"
        );
    }
}
