//! Which settings would make an image stage fit a model. Advice only: nothing is changed.

use orchestra_core::{Channels, DType, Dim, ImageSpec, Layout, TensorSpec};

/// The settings of `stage` that would have to change for `want`, as a sentence.
pub(super) fn image_settings(stage: &str, spec: &ImageSpec, want: &TensorSpec) -> String {
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
        let name = if layout == Layout::Nchw { "nchw" } else { "nhwc" };
        settings.push(format!("`layout = \"{name}\"`"));
    }
    Some(settings)
}
