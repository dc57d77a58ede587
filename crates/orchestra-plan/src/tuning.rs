//! `[models.*]`: what a model asks of its sessions, and where it cannot have it. Knows what ONNX Runtime can do; starts nothing.

use orchestra_core::{ConvSearch, Provider, SessionTuning, TensorRt};

use crate::devices::Device;
use crate::diagnostics::{Diagnostics, Span};
use crate::fields::{At, Fields};
use crate::keys::ProviderName;

/// How reports name a wish for TensorRT.
const TENSORRT: &str = "provider = \"tensorrt\"";

/// What is asked for, and where.
#[derive(Debug, Default)]
pub(crate) struct RawTuning {
    pub wanted: SessionTuning,
    /// Keys that ask for something that only a GPU can do.
    gpu_keys: Vec<At<&'static str>>,
}

impl RawTuning {
    fn span_of(&self, key: &str) -> Option<Span> {
        self.gpu_keys.iter().find(|k| k.value == key).map(|k| k.span)
    }
}

/// `has_streams`: several batches are to run at once on a session.
pub(crate) fn read(f: &mut Fields<'_, '_>, has_streams: bool) -> RawTuning {
    let mut raw = RawTuning::default();
    if let Some(search) = f.get::<At<ConvSearch>>("conv_search") {
        raw.wanted.conv_search = search.value;
        if search.value != ConvSearch::default() {
            raw.gpu_keys.push(At::new("conv_search", search.span));
        }
    }
    let provider = f.get::<At<ProviderName>>("provider");
    let fp16 = gpu_switch(f, "tensorrt_fp16", &mut raw);
    if let Some(tensorrt) = provider.as_ref().filter(|provider| provider.value == ProviderName::TensorRt) {
        raw.gpu_keys.push(At::new(TENSORRT, tensorrt.span));
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

/// A switch for what only a GPU can do.
fn gpu_switch(f: &mut Fields<'_, '_>, key: &'static str, raw: &mut RawTuning) -> bool {
    let is_on = f.value(key);
    if let Some(entry) = f.entry(key).filter(|_| is_on) {
        raw.gpu_keys.push(At::new(key, entry.node.span));
    }
    is_on
}

/// Reports what is asked for and needs a GPU, where the model `name` is to run on other `devices`, too. Whether the file `named` them
/// decides whose fault it is: the file's or the machine's.
pub(crate) fn check_devices(
    name: &str,
    raw: &RawTuning,
    devices: &[Device],
    named: bool,
    diags: &mut Diagnostics,
) {
    // Without a look at the machine, `auto` may be anything.
    let Some(other) = devices.iter().find(|device| !device.is_cuda() && device.name != "auto") else {
        return;
    };
    for key in &raw.gpu_keys {
        let d = diags.error(
            key.span,
            format!("model `{name}`: `{}` needs a GPU, and `{}` is none", key.value, other.name),
        );
        if named {
            d.help("set `devices` of the model to GPUs, or leave the key out");
        } else {
            d.help("there is no GPU here (`orchestra doctor` says why); leave the key out to run on the CPU")
                .unavailable();
        }
    }
}
