//! `kind = "images"`: a picture file per record, of a picture or of rows of pixels, or any other file that a stage has made, named after its item.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, ItemError, Pixels, TensorView, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_core::{DType, Dim, Layout, TensorSpec};
use orchestra_plan::{Choice as _, Fields, Input, ReadBack, Reported, TypedSink, Writes, settings};
use orchestra_store::ObjectOutput;

use super::shared::read_back::read_lines;
use super::shared::{cannot_write, only_column};
use crate::objects;
use crate::picture_encoders::EncoderFormat;

settings! {
    #[derive(Debug, Clone, Copy)]
    pub struct ImageSettings {
        /// of a picture or of pixels; bytes are written as they are
        format: EncoderFormat = "png",
        /// of a JPEG
        #[range(1, 100)]
        quality: u8 = 90,
    }
}

/// Of the ending of a file's name.
const LONGEST_ENDING: usize = 16;

impl TypedSink for ImageSettings {
    const NAME: &'static str = "images";
    const ABOUT: &'static str = "A file per record: a picture, pixels, or bytes that a stage has made of a picture (`mask`, `draw`), whose name ends with their format. Pixels \
         are a tensor u8 `[height, width, 1 or 3]` or `[1 or 3, height, width]`, as `crop` and `image` with `dtype = \"u8\"` give them. Three channels are \
         taken as red, green and blue: of rows with `color = \"bgr\"`, red and blue would be swapped. Files are named and listed as those of `npy`: part 3 \
         of `a/b.png` is `a/b.png.3.png`.";
    const EXTENSION: &'static str = "png";
    const WRITES: Writes = Writes::FileEach;
    const READ_BACK: Option<ReadBack> = Some(read_lines);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        let takes = ("picture, pixels or bytes", HELP);
        let column = only_column(input, fields, takes, |column| is_file(&column.ty))?;
        let content = match &column.ty {
            ColumnType::Bytes(ending) => return self.as_it_is(column, ending, input, fields),
            ColumnType::Picture => ImageContent::Picture(self),
            ty => match ty.tensor().map_or(Err(Unfit::Other), layout) {
                Ok(layout) => ImageContent::Pixels(self, layout),
                Err(Unfit::BothEnds) => {
                    let help =
                        "its first and its last dimension can both be the channels: give it another size";
                    return cannot_write(column, input, fields, help);
                }
                Err(Unfit::Other) => return cannot_write(column, input, fields, HELP),
            },
        };
        Ok(Arc::new(PictureEncoder { content, ending: self.format.name().to_owned() }))
    }
}

impl ImageSettings {
    /// Writes bytes, which have the ending of their files.
    fn as_it_is(
        self,
        column: &Column,
        ending: &str,
        input: &Input,
        fields: &mut Fields<'_, '_>,
    ) -> Result<Arc<dyn Encoder>, Reported> {
        for entry in ["format", "quality"].map(|key| fields.entry(key)).into_iter().flatten() {
            let message = format!("{} writes `{}` as it is, so this has no effect", fields.what, column.name);
            fields.diags.warning(entry.node.span, message).label("has no effect").help("leave it out");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if ending.is_empty()
            || ending.len() > LONGEST_ENDING
            || !ending.chars().all(is_plain)
            || ending.starts_with('.')
        {
            let message = format!("{} cannot call files `*.{}`", fields.what, ending.escape_default());
            return fields
                .diags
                .error(input.span, message)
                .help("rename the column that the source gives")
                .fail();
        }
        Ok(Arc::new(PictureEncoder { content: ImageContent::Bytes, ending: ending.to_owned() }))
    }
}

const HELP: &str = "it takes a picture; bytes, which a stage `mask` or `draw` makes of one; or pixels, which an image or crop stage with dtype = \"u8\" gives";

fn is_file(ty: &ColumnType) -> bool {
    matches!(ty, ColumnType::Picture | ColumnType::Bytes(_)) || ty.tensor().is_some_and(|t| layout(t).is_ok())
}

/// Why a tensor is no picture.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// The first and the last dimension are 1 or 3.
    BothEnds,
    Other,
}

/// Where the channels of a row of pixels are: at the one end that always has 1 or 3.
fn layout(tensor: &TensorSpec) -> Result<Layout, Unfit> {
    let is_channels = |dim: Dim| matches!(dim, Dim::Fixed(1 | 3));
    match tensor.row[..] {
        [first, _, last] if tensor.dtype == DType::U8 => match (is_channels(first), is_channels(last)) {
            (true, true) => Err(Unfit::BothEnds),
            (true, false) => Ok(Layout::Nchw),
            (false, true) => Ok(Layout::Nhwc),
            (false, false) => Err(Unfit::Other),
        },
        _ => Err(Unfit::Other),
    }
}

impl ImageSettings {
    fn append(self, pixels: &Pixels<'_>, out: &mut Vec<u8>) -> Result<(), ItemError> {
        out.extend_from_slice(&self.format.encode(pixels, self.quality)?);
        Ok(())
    }

    /// The same of a row of pixels. Dimensions that the plan leaves open are known here.
    fn append_row(self, row: &TensorView<'_>, layout: Layout, out: &mut Vec<u8>) -> Result<(), ItemError> {
        let (channels, height, width) = match (layout, row.shape) {
            (Layout::Nchw, [channels, height, width]) | (Layout::Nhwc, [height, width, channels]) => {
                (*channels, *height, *width)
            }
            _ => (0, 0, 0),
        };
        let sides = u32::try_from(width).ok().zip(u32::try_from(height).ok());
        let sides = sides.filter(|(width, height)| *width > 0 && *height > 0 && matches!(channels, 1 | 3));
        let Some((width, height)) = sides else {
            return Err(ItemError::result(format!("`{}` is {:?}, which is no picture", row.name, row.shape)));
        };
        let interleaved: Vec<u8>;
        let bytes = if layout == Layout::Nchw && channels == 3 {
            let n = row.data.len() / channels;
            interleaved = (0..n).flat_map(|at| [0, 1, 2].map(|plane| row.data[plane * n + at])).collect();
            &interleaved
        } else {
            row.data
        };
        self.append(&Pixels { width, height, channels, bytes }, out)
    }
}

#[derive(Debug, Clone, Copy)]
enum ImageContent {
    /// Written as it is.
    Bytes,
    Picture(ImageSettings),
    Pixels(ImageSettings, Layout),
}

#[derive(Debug)]
struct PictureEncoder {
    content: ImageContent,
    ending: String,
}

impl Encoder for PictureEncoder {
    fn extension(&self) -> Option<&str> {
        Some(&self.ending)
    }

    fn encode(&self, _: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        match (row, self.content) {
            ([Value::Bytes(bytes)], ImageContent::Bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            ([Value::Picture(picture)], ImageContent::Picture(made)) => {
                picture.with_pixels(&mut |pixels| made.append(&pixels, out))
            }
            ([value], ImageContent::Pixels(made, layout)) => {
                value.with_tensor(|row| made.append_row(row, layout, out))
            }
            _ => Err(ItemError::result("internal error: expected one picture; this is a bug")),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::fixed_tensor;
    use orchestra_core::{ItemId, SourceId};

    use super::*;

    #[test]
    fn the_end_that_has_one_or_three_is_that_of_the_channels() {
        let of = |dtype, row: &[usize]| layout(&fixed_tensor("pixels", dtype, row));
        assert_eq!(of(DType::U8, &[4, 5, 3]), Ok(Layout::Nhwc));
        assert_eq!(of(DType::U8, &[1, 4, 5]), Ok(Layout::Nchw));
        assert_eq!(of(DType::U8, &[3, 4, 1]), Err(Unfit::BothEnds));
        for (dtype, row) in
            [(DType::F32, &[4, 5, 3][..]), (DType::U8, &[4, 5]), (DType::U8, &[4, 5, 4]), (DType::U8, &[3])]
        {
            assert_eq!(of(dtype, row), Err(Unfit::Other), "{dtype:?} {row:?}");
        }
        let open = |row: [Dim; 3]| {
            let name = "pixels".to_owned();
            layout(&TensorSpec { name, dtype: DType::U8, row: row.to_vec(), batch: Dim::Dynamic })
        };
        assert_eq!(open([Dim::Dynamic, Dim::Dynamic, Dim::Fixed(3)]), Ok(Layout::Nhwc));
        assert_eq!(open([Dim::Dynamic; 3]), Err(Unfit::Other));
    }

    #[test]
    fn rows_of_both_layouts_are_the_same_picture_and_one_without_pixels_fails_its_item() {
        let item =
            ItemInfo { name: "a", id: ItemId { source: SourceId(0), index: 0 }, source: "s", parts: &[] };
        let write = |layout, shape: &[usize], data: &[u8], format| {
            let content = ImageContent::Pixels(ImageSettings { format, quality: 90 }, layout);
            let mut out = Vec::new();
            let row = [Value::Tensor(TensorView { name: "pixels", dtype: DType::U8, shape, data })];
            PictureEncoder { content, ending: "png".to_owned() }.encode(&item, &row, &mut out).map(|()| out)
        };
        let read = |file: Vec<u8>| image::load_from_memory(&file).unwrap();
        let wide = read(write(Layout::Nhwc, &[1, 2, 3], &[1, 2, 3, 4, 5, 6], EncoderFormat::Png).unwrap());
        let planes = read(write(Layout::Nchw, &[3, 1, 2], &[1, 4, 2, 5, 3, 6], EncoderFormat::Png).unwrap());
        assert_eq!((wide.width(), wide.height(), wide.as_bytes()), (2, 1, &[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(planes, wide);
        for (layout, shape) in [(Layout::Nhwc, [2, 3, 1]), (Layout::Nchw, [1, 2, 3])] {
            let gray = read(write(layout, &shape, &[9, 8, 7, 6, 5, 4], EncoderFormat::Png).unwrap());
            assert_eq!(
                (gray.width(), gray.color(), gray.as_bytes()),
                (3, image::ColorType::L8, &[9, 8, 7, 6, 5, 4][..])
            );
        }
        let jpeg =
            write(Layout::Nhwc, &[8, 8, 3], &[[200, 30, 30]; 64].concat(), EncoderFormat::Jpg).unwrap();
        let jpeg = libjpeg_turbo_rs::decompress_to(&jpeg, libjpeg_turbo_rs::PixelFormat::Rgb).unwrap();
        assert!(jpeg.data.as_chunks::<3>().0.iter().all(|[red, _, blue]| *red > 180 && *blue < 60));
        for (shape, data) in
            [(&[0, 2, 3][..], &[][..]), (&[2, 0, 1], &[]), (&[1, 1, 2], &[1, 2]), (&[3], &[1, 2, 3])]
        {
            let error = write(Layout::Nhwc, shape, data, EncoderFormat::Png).unwrap_err();
            assert!(error.error.contains("no picture"), "{error:?}");
        }
    }
}
