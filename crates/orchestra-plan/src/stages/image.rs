//! Settings of an `image` stage. Touches no pixel.

use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, PixelInput, ResizeFilter};

use crate::diagnostics::Span;
use crate::fields::{At, Fields};
use crate::tree::{Node, Value};

pub(super) const KEYS: [&str; 15] = [
    "kind",
    "from",
    "size",
    "fit",
    "shorter",
    "filter",
    "color",
    "layout",
    "dtype",
    "scale",
    "mean",
    "std",
    "pad",
    "fast",
    "normalize",
];

/// Largest side of a row in pixels.
const MAX_SIDE: u32 = 32_768;

/// Reads all settings; `None` where one is wrong.
pub(super) fn read(f: &mut Fields<'_, '_>, max_pixels: u64) -> Option<ImageSpec> {
    let errors_before = f.diags.errors().count();
    let size = size(f);
    let fit = choice(
        f,
        "fit",
        Fit::Stretch,
        &[
            ("stretch", Fit::Stretch),
            ("cover", Fit::Cover),
            ("contain", Fit::Contain),
            ("shorter", Fit::Shorter),
        ],
    );
    let filters = [
        ("nearest", ResizeFilter::Nearest),
        ("bilinear", ResizeFilter::Bilinear),
        ("bicubic", ResizeFilter::Bicubic),
        ("lanczos3", ResizeFilter::Lanczos3),
    ];
    let filter = choice(f, "filter", ResizeFilter::Bilinear, &filters);
    let colors = [("rgb", Channels::Rgb), ("bgr", Channels::Bgr), ("gray", Channels::Gray)];
    let color = choice(f, "color", Channels::Rgb, &colors);
    let layout = choice(f, "layout", Layout::Nchw, &[("nchw", Layout::Nchw), ("nhwc", Layout::Nhwc)]);
    let dtypes = [("f32", DType::F32), ("f16", DType::F16), ("u8", DType::U8)];
    let dtype = choice(f, "dtype", DType::F32, &dtypes);
    let shorter = shorter(f, fit, size);
    let (scale, mean, std) = normalisation(f, dtype, color.count());
    let pad = pad(f, color.count());
    let fast = fast(f, filter);
    let spec = ImageSpec {
        size: size?,
        fit,
        shorter: shorter?,
        filter,
        color,
        layout,
        dtype,
        scale: scale?,
        mean: mean?,
        std: std?,
        pad: pad?,
        max_pixels,
        fast,
        in_graph: None,
    };
    let spec = if normalizes_in_graph(f, dtype) { in_graph(f, spec)? } else { spec };
    (f.diags.errors().count() == errors_before).then_some(spec)
}

/// Whether the graph of the model and not the loader makes numbers of the pixels.
fn normalizes_in_graph(f: &mut Fields<'_, '_>, dtype: DType) -> bool {
    let in_graph = f.choice("normalize", &[("host", false), ("device", true)]).is_some_and(|c| c.value);
    if let (true, DType::U8, Some(entry)) = (in_graph, dtype, f.entry("normalize")) {
        f.bad("normalize", entry.key_span, "has no effect beside dtype = \"u8\"").help(
            "`dtype` says what the model takes, \"f32\" or \"f16\"; the pixels travel as bytes by themselves",
        );
        return false;
    }
    in_graph
}

/// The same result by another way: the row holds the pixels, and the graph does the rest.
fn in_graph(f: &mut Fields<'_, '_>, spec: ImageSpec) -> Option<ImageSpec> {
    let scaled = spec.mean.iter().zip(&spec.std).map(|(mean, std)| {
        let (mean, std) = (f64::from(*mean), f64::from(*std));
        ((f64::from(spec.scale) / std) as f32, (-mean / std) as f32)
    });
    let (factor, offset): (Vec<f32>, Vec<f32>) = scaled.unzip();
    if !factor.iter().chain(&offset).all(|n| n.is_finite()) {
        let span = f.entry("std").map_or(f.span, |e| e.node.span);
        f.bad("std", span, "is so small that pixels divided by it are no numbers any more");
        return None;
    }
    let pixels = PixelInput { layout: spec.layout, dtype: spec.dtype, factor, offset };
    let channels = spec.color.count();
    Some(ImageSpec {
        layout: Layout::Nhwc,
        dtype: DType::U8,
        scale: 1.0,
        mean: vec![0.0; channels],
        std: vec![1.0; channels],
        in_graph: Some(pixels),
        ..spec
    })
}

fn choice<T: Copy>(f: &mut Fields<'_, '_>, key: &str, default: T, choices: &[(&str, T)]) -> T {
    f.choice(key, choices).map_or(default, |c| c.value)
}

fn size(f: &mut Fields<'_, '_>) -> Option<[u32; 2]> {
    let Some(entry) = f.entry("size") else {
        f.missing("size", "size = [height, width], in pixels, as the model wants it");
        return None;
    };
    let side = |node: &Node| match node.value {
        Value::Integer(n) => u32::try_from(n).ok(),
        _ => None,
    };
    let sides = match &entry.node.value {
        Value::Array(items) if items.len() == 2 => side(&items[0]).zip(side(&items[1])),
        _ => None,
    };
    match sides {
        Some((h, w)) if (1..=MAX_SIDE).contains(&h) && (1..=MAX_SIDE).contains(&w) => Some([h, w]),
        Some(_) => {
            f.bad("size", entry.node.span, &format!("must hold sides from 1 to {MAX_SIDE}"));
            None
        }
        None => {
            f.wrong("size", &entry.node, "a list of two integers, [height, width]");
            None
        }
    }
}

fn shorter(f: &mut Fields<'_, '_>, fit: Fit, size: Option<[u32; 2]>) -> Option<u32> {
    let longest = size.map(|[h, w]| h.max(w));
    let Some(entry) = f.entry("shorter") else { return longest };
    if fit != Fit::Shorter {
        f.bad("shorter", entry.key_span, "has no effect").help("it belongs to fit = \"shorter\"");
        return None;
    }
    let n = f.integer("shorter", 1..=u64::from(MAX_SIDE))?;
    let shorter = n.value as u32;
    if longest.is_some_and(|longest| shorter < longest) {
        f.bad("shorter", n.span, "is smaller than `size`")
            .help("the target is cut out of the resized picture, so `shorter` is at least the larger side of `size`");
        return None;
    }
    Some(shorter)
}

type Normalisation = (Option<f32>, Option<Vec<f32>>, Option<Vec<f32>>);

fn normalisation(f: &mut Fields<'_, '_>, dtype: DType, channels: usize) -> Normalisation {
    if dtype == DType::U8 {
        for key in ["scale", "mean", "std"] {
            if let Some(entry) = f.entry(key) {
                f.bad(key, entry.key_span, "cannot stand beside dtype = \"u8\"")
                    .help("bytes are stored as they are; leave the key out, or use \"f32\" or \"f16\"");
            }
        }
        return (Some(1.0), Some(vec![0.0; channels]), Some(vec![1.0; channels]));
    }
    let scale = match f.numbers("scale") {
        Some(At { value, .. }) if value.len() == 1 => Some(value[0] as f32),
        Some(At { span, .. }) => {
            f.bad("scale", span, "must be one number");
            None
        }
        None => Some(1.0 / 255.0),
    };
    let mean = per_channel(f, "mean", 0.0, channels).map(|(mean, _)| mean);
    let std = per_channel(f, "std", 1.0, channels).and_then(|(std, span)| {
        if std.contains(&0.0) {
            f.bad("std", span.unwrap_or(f.span), "cannot hold 0: pixels are divided by it");
            return None;
        }
        Some(std)
    });
    (scale, mean, std)
}

/// One number per channel; a single one stands for all.
fn per_channel(
    f: &mut Fields<'_, '_>,
    key: &str,
    default: f32,
    channels: usize,
) -> Option<(Vec<f32>, Option<Span>)> {
    if f.entry(key).is_none() {
        return Some((vec![default; channels], None));
    }
    let numbers = f.numbers(key)?;
    let values: Vec<f32> = numbers.value.iter().map(|n| *n as f32).collect();
    match values[..] {
        [one] => Some((vec![one; channels], Some(numbers.span))),
        _ if values.len() == channels => Some((values, Some(numbers.span))),
        _ => {
            let reason = format!("holds {} numbers for {channels} channels", values.len());
            f.bad(key, numbers.span, &reason)
                .help("give one number, or one per channel in the order of `color`");
            None
        }
    }
}

fn pad(f: &mut Fields<'_, '_>, channels: usize) -> Option<Vec<u8>> {
    let (values, span) = per_channel(f, "pad", 0.0, channels)?;
    if values.iter().any(|v| v.fract() != 0.0 || !(0.0..=255.0).contains(v)) {
        f.bad("pad", span.unwrap_or(f.span), "must hold whole pixel values from 0 to 255");
        return None;
    }
    Some(values.iter().map(|v| *v as u8).collect())
}

fn fast(f: &mut Fields<'_, '_>, filter: ResizeFilter) -> bool {
    let fast = f.boolean("fast").unwrap_or(false);
    if let (true, ResizeFilter::Nearest, Some(entry)) = (fast, filter, f.entry("fast")) {
        f.bad("fast", entry.key_span, "cannot stand beside filter = \"nearest\"").help(
            "the nearest pixel of a reduced picture is another one; leave `fast` out, or use \"bilinear\"",
        );
    }
    fast
}
