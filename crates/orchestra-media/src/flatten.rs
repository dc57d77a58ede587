//! Brings a decoded picture to the one or three channels that a row is made of. It neither resizes nor turns.

use crate::kernels::{blend_luma, blend_rgb, luma};
use crate::picture::{PictureInfo, PixelKind, View};
use crate::row_spec::RowSpec;

/// What has to be done to the pixels before they are resampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flattening {
    Luma,
    BlendRgb([u8; 3]),
    BlendLuma(u8),
}

impl Flattening {
    /// The change that a row needs; none for most pictures.
    pub(crate) fn needed(kind: PixelKind, spec: &RowSpec) -> Option<Flattening> {
        match (kind, spec.channels) {
            // Gray stays one channel: it is spread over three when it is written.
            (PixelKind::Gray, _) | (PixelKind::Rgb, 3) => None,
            (PixelKind::Rgb, _) => Some(Flattening::Luma),
            (PixelKind::Rgba, 3) => Some(Flattening::BlendRgb(spec.pad)),
            (PixelKind::Rgba, _) => Some(Flattening::BlendLuma(spec.pad[0])),
        }
    }

    pub(crate) fn channels(self) -> usize {
        match self {
            Flattening::Luma | Flattening::BlendLuma(_) => 1,
            Flattening::BlendRgb(_) => 3,
        }
    }

    pub(crate) fn run(self, source: &[u8], out: &mut [u8]) {
        match self {
            Flattening::Luma => luma::run(source, out),
            Flattening::BlendRgb(ground) => blend_rgb::run(source, ground, out),
            Flattening::BlendLuma(ground) => blend_luma::run(source, ground, out),
        }
    }
}

/// The changed picture, kept for further rows of the same picture (fan-out).
#[derive(Debug, Default)]
pub(crate) struct Flattened {
    pixels: Vec<u8>,
    holds: Option<Flattening>,
}

impl Flattened {
    /// Forgets the last picture; keeps at most `keep_bytes` of memory.
    pub(crate) fn forget(&mut self, keep_bytes: usize) {
        self.holds = None;
        self.pixels.clear();
        self.pixels.shrink_to(keep_bytes);
    }

    /// The picture with the channels that `spec` needs. It is `pixels` itself where nothing has to be done.
    pub(crate) fn view<'a>(&'a mut self, info: &PictureInfo, pixels: &'a [u8], spec: &RowSpec) -> View<'a> {
        let (width, height) = (info.width as usize, info.height as usize);
        let Some(change) = Flattening::needed(info.kind, spec) else {
            return View::packed(pixels, width, height, info.kind.channels());
        };
        if self.holds != Some(change) {
            self.pixels.resize(width * height * change.channels(), 0);
            change.run(pixels, &mut self.pixels);
            self.holds = Some(change);
        }
        View::packed(&self.pixels, width, height, change.channels())
    }
}
