//! The settings that say how a picture becomes a tensor row. Touches no pixel.

use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, PixelInput, ResizeFilter};

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{Dim, TensorSpec};
use orchestra_plan::tree::{Toml, TomlNode};
use orchestra_plan::{Choice as _, Fields, Span, choices, keys};

keys! {
    /// The keys that say how a picture becomes a row: those of `image`, and but for the last of every other kind that makes rows of pictures.
    pub const KEYS {
        /// `[height, width]` of the row in pixels
        #[range(1, MAX_SIDE as u64)]
        size: "two integers" = "required",
        /// how the picture is brought to `size`
        #[words(Fit::WORDS)]
        fit: "text" = "\"stretch\"",
        /// only with `fit = "shorter"`, and not smaller than `size`
        #[range(1, MAX_SIDE as u64)]
        shorter: "integer" = "the larger side of `size`",
        /// how it is resized; all but the first are antialiased, as in Pillow
        #[words(ResizeFilter::WORDS)]
        filter: "text" = "\"bilinear\"",
        /// the channels of the row, in their order
        #[words(Channels::WORDS)]
        color: "text" = "\"rgb\"",
        /// the order of its dimensions
        #[words(Layout::WORDS)]
        layout: "text" = "\"nchw\"",
        /// the type of its numbers
        #[words(PixelType::WORDS)]
        dtype: "text" = "\"f32\"",
        /// factor on the pixel value 0 to 255
        scale: "number" = "1/255",
        /// subtracted after `scale`, one for all or one per channel
        mean: "number or list" = "0",
        /// then divided by it, one for all or one per channel; never 0
        std: "number or list" = "1",
        /// pixel value 0 to 255 around a contained picture and behind transparent pixels
        pad: "number or list" = "0",
        /// where pixels become numbers; `dtype` and `layout` always say what the model takes
        #[words(NormalizedBy::WORDS)]
        normalize: "text" = "\"host\"",
        /// only with `fit = "left"` or `"corner"`: a model whose height and width are open computes no more of the row than the picture fills, up to the next multiple of so many pixels; a batch has rows of one such size. Maps and sinks see the whole row
        #[range(1, MAX_SIDE as u64)]
        trim: "integer" = "none",
        /// decode a JPEG that is much larger than `size` to a fraction of it; not with `filter = "nearest"`
        fast: "true or false" = "false",
    }
}

choices! {
    pub enum PixelType {
        F32 = "f32",
        F16 = "f16",
        /// pixels as they are, without `scale`, `mean` and `std`
        U8 = "u8",
    }
}

choices! {
    pub enum NormalizedBy {
        /// where they are decoded
        Host = "host",
        /// the row holds pixels as bytes, a quarter of the memory and of the copies, and nodes in front of the model scale and lay them out
        Device = "device",
    }
}

/// Largest side of a row in pixels.
pub const MAX_SIDE: u32 = 32_768;

/// Reads all settings; `None` where one is wrong.
pub fn read(f: &mut Fields<'_, '_>) -> Option<ImageSpec> {
    let errors_before = f.diags.errors().count();
    let size = size(f);
    let fit = f.setting("fit", "")?;
    let filter = f.setting("filter", "")?;
    let color: Channels = f.setting("color", "")?;
    let layout = f.setting("layout", "")?;
    let dtype = match f.setting("dtype", "")? {
        PixelType::F32 => DType::F32,
        PixelType::F16 => DType::F16,
        PixelType::U8 => DType::U8,
    };
    let shorter = shorter(f, fit, size);
    let (scale, mean, std) = normalisation(f, dtype, color.count());
    let pad = pad(f, color.count());
    let fast = fast(f, filter);
    let trim = trim(f, fit, size);
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
        max_pixels: 0, // That of the run, which `connect` knows.
        fast,
        in_graph: None,
        trim,
    };
    let spec = if normalizes_in_graph(f, dtype) { in_graph(f, spec)? } else { spec };
    (f.diags.errors().count() == errors_before).then_some(spec)
}

fn trim(f: &mut Fields<'_, '_>, fit: Fit, size: Option<[u32; 2]>) -> Option<u32> {
    let trim = f.integer("trim")?;
    let sides = match (fit, size) {
        (Fit::Left, Some([_, width])) => width,
        (Fit::Corner, Some([height, width])) => height.max(width),
        (Fit::Left | Fit::Corner, None) => return None,
        _ => {
            return f.bad("trim", trim.span, "has no effect").help(
                "it belongs to fit = \"corner\" or \"left\", which leave the right of the row or what is below free",
            ).none();
        }
    };
    let step = u32::try_from(trim.value).ok()?;
    if step >= sides {
        return f
            .bad("trim", trim.span, "has no effect")
            .help("rows end at multiples of it, so it is smaller than the side of `size` that it shortens")
            .none();
    }
    Some(step)
}

/// Whether the graph of the model and not the loader makes numbers of the pixels.
fn normalizes_in_graph(f: &mut Fields<'_, '_>, dtype: DType) -> bool {
    let in_graph = f.setting("normalize", "") == Some(NormalizedBy::Device);
    if let (true, DType::U8, Some(entry)) = (in_graph, dtype, f.entry("normalize")) {
        f.bad("normalize", entry.key_span, "has no effect beside dtype = \"u8\"").help(
            "`dtype` says what the model takes, \"f32\" or \"f16\"; the pixels travel as bytes by themselves",
        );
        return false;
    }
    if let (true, Some(entry)) = (in_graph, f.entry("trim")) {
        f.bad("trim", entry.key_span, "cannot stand beside normalize = \"device\"")
            .help("leave out one of them");
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
        return f.bad("std", span, "is so small that pixels divided by it are no numbers any more").none();
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

fn size(f: &mut Fields<'_, '_>) -> Option<[u32; 2]> {
    let Some(entry) = f.entry("size") else {
        f.missing("size", "size = [height, width], in pixels, as the model wants it");
        return None;
    };
    let side = |node: &TomlNode| match node.value {
        Toml::Integer(n) => u32::try_from(n).ok(),
        _ => None,
    };
    let sides = match &entry.node.value {
        Toml::Array(items) if items.len() == 2 => side(&items[0]).zip(side(&items[1])),
        _ => None,
    };
    match sides {
        Some((h, w)) if (1..=MAX_SIDE).contains(&h) && (1..=MAX_SIDE).contains(&w) => Some([h, w]),
        Some(_) => f.bad("size", entry.node.span, &format!("must hold sides from 1 to {MAX_SIDE}")).none(),
        None => f.wrong("size", &entry.node, "a list of two integers, [height, width]").none(),
    }
}

fn shorter(f: &mut Fields<'_, '_>, fit: Fit, size: Option<[u32; 2]>) -> Option<u32> {
    let longest = size.map(|[h, w]| h.max(w));
    let Some(entry) = f.entry("shorter") else { return longest };
    if fit != Fit::Shorter {
        return f
            .bad("shorter", entry.key_span, "has no effect")
            .help("it belongs to fit = \"shorter\"")
            .none();
    }
    let n = f.integer("shorter")?;
    let shorter = n.value as u32;
    if longest.is_some_and(|longest| shorter < longest) {
        return f.bad("shorter", n.span, "is smaller than `size`")
            .help("the target is cut out of the resized picture, so `shorter` is at least the larger side of `size`").none();
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
    let scale = match f.entry("scale") {
        Some(_) => f.number("scale").and_then(|scale| narrow(f, "scale", scale.span, scale.value)),
        None => Some(1.0 / 255.0),
    };
    let mean = per_channel(f, "mean", 0.0, channels).map(|(mean, _)| mean);
    let std = per_channel(f, "std", 1.0, channels).and_then(|(std, span)| {
        if std.contains(&0.0) {
            return f.bad("std", span.unwrap_or(f.span), "cannot hold 0: pixels are divided by it").none();
        }
        Some(std)
    });
    (scale, mean, std)
}

/// A number as the `f32` that it is used as.
fn narrow(f: &mut Fields<'_, '_>, key: &str, span: Span, number: f64) -> Option<f32> {
    let narrow = number as f32;
    if narrow.is_infinite() {
        return f
            .bad(key, span, "is too large for f32, in which pixels are computed")
            .help("write a smaller number")
            .none();
    }
    Some(narrow)
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
    let values: Vec<f32> =
        numbers.value.iter().map(|n| narrow(f, key, numbers.span, *n)).collect::<Option<_>>()?;
    match values[..] {
        [one] => Some((vec![one; channels], Some(numbers.span))),
        _ if values.len() == channels => Some((values, Some(numbers.span))),
        _ => {
            let reason = format!("holds {} numbers for {channels} channels", values.len());
            f.bad(key, numbers.span, &reason)
                .help("give one number, or one per channel in the order of `color`")
                .none()
        }
    }
}

fn pad(f: &mut Fields<'_, '_>, channels: usize) -> Option<Vec<u8>> {
    let (values, span) = per_channel(f, "pad", 0.0, channels)?;
    if values.iter().any(|v| v.fract() != 0.0 || !(0.0..=255.0).contains(v)) {
        return f.bad("pad", span.unwrap_or(f.span), "must hold whole pixel values from 0 to 255").none();
    }
    Some(values.iter().map(|v| *v as u8).collect())
}

fn fast(f: &mut Fields<'_, '_>, filter: ResizeFilter) -> bool {
    let fast = f.value("fast");
    if let (true, ResizeFilter::Nearest, Some(entry)) = (fast, filter, f.entry("fast")) {
        f.bad("fast", entry.key_span, "cannot stand beside filter = \"nearest\"").help(
            "the nearest pixel of a reduced picture is another one; leave `fast` out, or use \"bilinear\"",
        );
    }
    fast
}

/// The column of such rows, and where they lie in the picture.
pub fn column(spec: &ImageSpec) -> Schema {
    let stored = spec.tensor();
    let ty = match &spec.in_graph {
        Some(input) => ColumnType::Pixels { stored, model: spec.for_model().tensor(), input: input.clone() },
        None => ColumnType::Tensor(stored),
    };
    let placed = Column { name: "placed".to_owned(), ty: ColumnType::Placement };
    Schema(vec![Column { name: "pixels".to_owned(), ty }, placed])
}

/// The settings in a few words, one line each.
pub fn details(spec: &ImageSpec) -> Vec<String> {
    let fit = match spec.fit {
        Fit::Shorter => format!("shorter side {}", spec.shorter),
        fit => fit.name().to_owned(),
    };
    let mut details = vec![
        format!("{} x {} {}", spec.size[0], spec.size[1], spec.color.name()),
        format!("{fit}, {}", spec.filter.name()),
    ];
    details.extend(spec.trim.map(|step| format!("trimmed to multiples of {step}")));
    if spec.in_graph.is_some() {
        details.push("normalised in the model's graph".to_owned());
    }
    details
}

/// What such rows are, for `plan`.
pub fn about(spec: &ImageSpec) -> String {
    match spec.in_graph {
        Some(_) => {
            format!("{}\nthe model's graph makes {} of them", spec.tensor(), spec.for_model().tensor())
        }
        None => match spec.trim {
            Some(step) => format!("{}, trimmed to multiples of {step}", spec.tensor()),
            None => spec.tensor().to_string(),
        },
    }
}

/// The settings of `stage` that would have to change for `want`, as a sentence.
pub fn advice(stage: &str, spec: &ImageSpec, want: &TensorSpec) -> String {
    if want.dtype == DType::I64 && want.row == [Dim::Fixed(2)] {
        return format!(
            "if it is the width and height of what the model sees, a stage gives that: [stages.size], kind = \"size\", from = \"{stage}\""
        );
    }
    if !matches!(want.dtype, DType::F32 | DType::F16 | DType::U8) {
        return format!("an image stage gives f32, f16 or u8, never {}", want.dtype);
    }
    let other = match spec.layout {
        Layout::Nchw => Layout::Nhwc,
        Layout::Nhwc => Layout::Nchw,
    };
    let Some(mut settings) =
        [spec.layout, other].into_iter().find_map(|layout| settings_for(spec, layout, &want.row))
    else {
        return "an image stage gives [channels, height, width] or [height, width, channels] with 1 or 3 channels"
            .into();
    };
    if want.dtype != spec.dtype {
        settings.push(format!("`dtype = \"{}\"`", want.dtype));
    }
    format!("in stage `{stage}`, {} would fit", settings.join(", "))
}

/// What would have to change to give `row` in this layout; `None` if nothing helps.
fn settings_for(spec: &ImageSpec, layout: Layout, row: &[Dim]) -> Option<Vec<String>> {
    let [a, b, c] = row else { return None };
    let (channels, height, width) = match layout {
        Layout::Nchw => (a, b, c),
        Layout::Nhwc => (c, a, b),
    };
    let mut settings = Vec::new();
    let side = |dim: &Dim, now: u32| dim.fixed().map_or(Some(now), |n| u32::try_from(n).ok());
    let size = [side(height, spec.size[0])?, side(width, spec.size[1])?];
    if size != spec.size {
        settings.push(format!("`size = [{}, {}]`", size[0], size[1]));
    }
    match channels {
        Dim::Fixed(1) if spec.color != Channels::Gray => settings.push("`color = \"gray\"`".into()),
        Dim::Fixed(3) if spec.color == Channels::Gray => settings.push("`color = \"rgb\"`".into()),
        Dim::Fixed(1 | 3) | Dim::Dynamic => {}
        Dim::Fixed(_) => return None,
    }
    if layout != spec.layout {
        settings.push(format!("`layout = \"{}\"`", layout.name()));
    }
    Some(settings)
}
