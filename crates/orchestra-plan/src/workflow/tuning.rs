//! What a model asks of its sessions. Knows what ONNX Runtime can do.

use orchestra_core::{ConvSearch, Provider, SessionTuning, TensorRt};

use crate::diagnostics::Span;
use crate::fields::{Fields, Spanned};
use crate::keys::ProviderName;

/// How reports name a wish for TensorRT.
const TENSORRT: &str = "provider = \"tensorrt\"";

/// What is asked for, and where.
#[derive(Debug, Default)]
pub(crate) struct RawTuning {
    pub wanted: SessionTuning,
    /// Keys that ask for something that only a GPU can do.
    pub gpu_keys: Vec<Spanned<&'static str>>,
}

impl RawTuning {
    fn span_of(&self, key: &str) -> Option<Span> {
        self.gpu_keys.iter().find(|k| k.value == key).map(|k| k.span)
    }
}

/// `has_streams`: several batches are to run at once on a session.
pub(super) fn read(f: &mut Fields<'_, '_>, has_streams: bool) -> RawTuning {
    let mut raw = RawTuning::default();
    if let Some(search) = f.get::<Spanned<ConvSearch>>("conv_search") {
        raw.wanted.conv_search = search.value;
        if search.value != ConvSearch::default() {
            raw.gpu_keys.push(Spanned::new("conv_search", search.span));
        }
    }
    let provider = f.get::<Spanned<ProviderName>>("provider");
    let fp16 = f.value("tensorrt_fp16");
    if let Some(entry) = f.entry("tensorrt_fp16").filter(|_| fp16) {
        raw.gpu_keys.push(Spanned::new("tensorrt_fp16", entry.node.span));
    }
    if let Some(tensorrt) = provider.as_ref().filter(|provider| provider.value == ProviderName::TensorRt) {
        raw.gpu_keys.push(Spanned::new(TENSORRT, tensorrt.span));
        raw.wanted.provider = Provider::TensorRt(TensorRt { fp16, engines: None });
    } else if let Some(span) =
        raw.span_of("tensorrt_fp16").filter(|_| provider.is_some() || f.entry("provider").is_none())
    {
        f.bad("tensorrt_fp16", span, &format!("has no effect without `{TENSORRT}`"))
            .help("leave it out, or let TensorRT run the model");
    }
    if let (true, Some(span)) = (has_streams, raw.span_of(TENSORRT)) {
        f.bad(
            "provider",
            span,
            "runs one batch at a time on what it has compiled, and `streams` asks for several at once",
        )
        .help("ask for `workers` instead, each with its own; or leave out one of them");
    }
    raw
}
