//! How an `image` stage turns a file into a tensor row. Plain data: the work is done in `orchestra-media`.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::choices;
use crate::tensor::{DType, Dim, TensorSpec};

choices! {
    /// Interpolation used when resizing: a triangle, Catmull-Rom (a = -0.5, as Pillow and torchvision), or a windowed sinc of three lobes. All but `Nearest`
    /// are antialiased when shrinking, as in Pillow.
    #[derive(Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ResizeFilter {
        Nearest = "nearest",
        Bilinear = "bilinear",
        Bicubic = "bicubic",
        Lanczos3 = "lanczos3",
    }
}

choices! {
    /// How the source rectangle meets the target rectangle. What stands over is cut evenly on both sides, and `pad` fills up both sides of `Contain`.
    #[derive(Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Fit {
        /// both sides, whatever the aspect ratio
        Stretch = "stretch",
        /// fill, and cut what stands over
        Cover = "cover",
        /// fit inside, and fill up with `pad`
        Contain = "contain",
        /// fit inside, at the left and the top, and fill up with `pad` to the right and below
        Corner = "corner",
        /// to the height, at the left, and fill up with `pad` to the right, or squeeze what is too wide (lines of text)
        Left = "left",
        /// shorter side to `shorter`, then cut `size` out of the centre
        Shorter = "shorter",
    }
}

choices! {
    /// Gray is ITU-R 601-2 luma, as Pillow's "L": (19595 R + 38470 G + 7471 B + 32768) >> 16.
    #[derive(Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Channels {
        Rgb = "rgb",
        Bgr = "bgr",
        Gray = "gray",
    }
}

impl Channels {
    /// 3 or 1.
    pub fn count(self) -> usize {
        match self {
            Channels::Rgb | Channels::Bgr => 3,
            Channels::Gray => 1,
        }
    }
}

choices! {
    /// Order of the axes of a row: `[channels, height, width]` or `[height, width, channels]`.
    #[derive(Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Layout {
        Nchw = "nchw",
        Nhwc = "nhwc",
    }
}

/// What the graph makes of rows of pixels, u8 `[height, width, channels]`, before the model sees them: the worker puts the nodes for it
/// in front of the model. Value: `pixel * factor[c] + offset[c]`, worked out in f32.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct PixelInput {
    /// Order of the axes that the model takes.
    pub layout: Layout,
    /// `F32` or `F16`: what the model takes.
    pub dtype: DType,
    /// Factor per channel, in the order of the row.
    pub factor: Vec<f32>,
    /// Added per channel, in the order of the row.
    pub offset: Vec<f32>,
}

/// Everything an `image` stage does to a file. Value written: `(pixel * scale - mean[c]) / std[c]`, pixel in 0..=255.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct ImageSpec {
    /// Height and width of the row, in pixels.
    pub size: [u32; 2],
    /// How the picture is fitted into `size`.
    pub fit: Fit,
    /// For `Fit::Shorter`: the length of the shorter side before the crop, in pixels.
    pub shorter: u32,
    pub filter: ResizeFilter,
    pub color: Channels,
    pub layout: Layout,
    /// `F32`, `F16` or `U8`. With `U8` the pixels are stored as they are; scale, mean and std must be left out.
    pub dtype: DType,
    /// Factor applied to the pixel first.
    pub scale: f32,
    /// Subtracted per channel, in the order of `color`. As many as there are channels.
    pub mean: Vec<f32>,
    /// Divisor per channel, in the order of `color`. As many as there are channels; never 0.
    pub std: Vec<f32>,
    /// Pixel value around a contained picture and behind transparent pixels, 0..=255 per channel in the order of `color`.
    pub pad: Vec<u8>,
    /// Refuse a picture whose header claims more pixels than this, before memory is taken.
    pub max_pixels: u64,
    /// Whether a JPEG much larger than the row may be decoded to a fraction of its size. Pixels differ a little from those of the full decode then.
    // Left out where it is off, so that runs that began before there was such a setting can be continued.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast: bool,
    /// What the graph of the model does to the pixels, where it and not the loader normalises them. The row then holds the pixels as they
    /// are: `dtype` is `U8` and `layout` is `Nhwc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_graph: Option<PixelInput>,
    /// With `Fit::Left` and `Fit::Corner`: a model computes no more of the row than the picture fills, rounded up to multiples of this many pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<u32>,
}

impl ImageSpec {
    pub fn row(&self) -> Vec<usize> {
        let [h, w] = [self.size[0] as usize, self.size[1] as usize];
        match self.layout {
            Layout::Nchw => vec![self.color.count(), h, w],
            Layout::Nhwc => vec![h, w, self.color.count()],
        }
    }

    /// The axes of height and width in the row.
    pub fn axes(&self) -> [usize; 2] {
        match self.layout {
            Layout::Nchw => [1, 2],
            Layout::Nhwc => [0, 1],
        }
    }

    /// The tensor that the stage gives, named `pixels`.
    pub fn tensor(&self) -> TensorSpec {
        TensorSpec {
            name: "pixels".into(),
            dtype: self.dtype,
            row: self.row().into_iter().map(Dim::Fixed).collect(),
            batch: Dim::Dynamic,
        }
    }

    /// The pixels that the row is made of, red first, 8 bits per channel; `None`: the row itself has no more bytes.
    pub fn packed(&self) -> Option<ImageSpec> {
        if self.dtype == DType::U8 {
            return None;
        }
        let (mut pad, mut color) = (self.pad.clone(), self.color);
        if color == Channels::Bgr {
            pad.reverse();
            color = Channels::Rgb;
        }
        let (n, layout, dtype) = (color.count(), Layout::Nhwc, DType::U8);
        let (mean, std) = (vec![0.0; n], vec![1.0; n]);
        Some(ImageSpec { color, layout, dtype, scale: 1.0, mean, std, pad, ..self.clone() })
    }

    /// The same settings as if the loader normalised: its row is what a model is given, whichever of the two makes it.
    pub fn for_model(&self) -> ImageSpec {
        match &self.in_graph {
            Some(PixelInput { layout, dtype, .. }) => {
                ImageSpec { layout: *layout, dtype: *dtype, in_graph: None, ..self.clone() }
            }
            None => self.clone(),
        }
    }
}
