//! `kind = "draw"`: boxes and their labels on the picture that they were found in.

use bincode::{Decode, Encode};
use font8x8::UnicodeFonts as _;
use orchestra_core::data::{ColumnType, ItemError, OwnedRow, Pixels, Schema, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_plan::{
    Choice as _, Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings,
};

use super::shared::detections::{Detection, DetectionColumns, finite};
use crate::picture_encoders::EncoderFormat;

settings! {
    #[derive(Debug)]
    pub struct Draw {
        /// of the drawing
        format: EncoderFormat = "jpg",
        /// of a JPEG
        #[range(1, 100)]
        quality: u8 = 90,
        /// pixels that the lines of boxes are thick; letters are 8 pixels high for each 2 of them
        #[range(1, MAX_LINE as u64)]
        line: Option<u32> => "by the size",
    }
}

/// Thickest line, in pixels.
const MAX_LINE: u32 = 64;

impl TypedStage for Draw {
    const NAME: &'static str = "draw";
    const ABOUT: &'static str = "Draws boxes with label and score on the picture of an item: `from = [\"pictures\", \"detections\"]`. Detections are a list with `box`, f32[4]: left, \
         top, right and bottom in pixels; and `label`, `class` and `score`, where it has them. Each class has its colour. It gives `drawing`, the \
         content of a picture file.";
    type Work = Pen;
}

impl Connect for Draw {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let picture =
            stage.column(0, "pictures first, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let what = "a list of detections second, with a column `box` of f32[4]";
        let fits = |ty: &ColumnType| match ty {
            ColumnType::List(schema) => DetectionColumns::of(schema).is_some(),
            _ => false,
        };
        let list = stage.column(1, what, |column| fits(&column.ty))?;
        let ColumnType::List(schema) = &stage.inputs[1].gives.0[list].ty else { return Err(Reported) };
        let columns = DetectionColumns::of(schema).ok_or(Reported)?;
        let (format, quality) = (self.format, self.quality);
        let about = match format {
            EncoderFormat::Png => "png".to_owned(),
            EncoderFormat::Jpg => format!("jpg of quality {quality}"),
        };
        if format == EncoderFormat::Png {
            stage.warn_of("quality", ": a PNG keeps every pixel");
        }
        Ok(StageConnected {
            gives: Schema::of("drawing", ColumnType::Bytes(format.name().into())),
            reads: vec![(0, picture), (1, list)],
            settings: self.json(),
            details: vec![about.clone()],
            about: format!("boxes on the picture, {about}"),
            runs: Runs::map::<Self>(Pen { format, quality, line: self.line, columns }, None),
        })
    }
}

#[derive(Debug, Encode, Decode)]
pub struct Pen {
    format: EncoderFormat,
    quality: u8,
    line: Option<u32>,
    columns: DetectionColumns,
}

impl RowWork for Pen {
    type Scratch = Canvas;

    fn apply(&self, canvas: &mut Canvas, row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let [Value::Picture(picture), Value::List(detections)] = row else {
            return Err(ItemError::result(
                "internal error: a draw stage was given no picture; this is a bug",
            ));
        };
        picture.with_pixels(&mut |pixels| {
            canvas.load(&pixels);
            Ok(())
        })?;
        let shorter = canvas.width.min(canvas.height);
        let line = self.line.unwrap_or((shorter / 250).clamp(1, MAX_LINE));
        for (n, row) in detections.iter().enumerate() {
            self.detection(n, row, line, canvas)?;
        }
        let drawn = canvas.pixels();
        let file = self.format.encode(&drawn, self.quality)?;
        emit.row(&[Value::Bytes(&file)])
    }
}

impl Pen {
    fn detection(&self, n: usize, row: &OwnedRow, line: u32, canvas: &mut Canvas) -> Result<(), ItemError> {
        let Detection { corners, score, class, label, .. } = self.columns.read(n, row)?;
        let [left, top, right, bottom] = finite(n, corners)?;
        let class_text = || class.map_or_else(String::new, |class| class.to_string());
        let mut text = label.map_or_else(class_text, str::to_owned);
        if let Some(score) = score {
            text = format!("{text} {score:.2}").trim_start().to_owned();
        }
        let color = COLORS[class.unwrap_or(0).rem_euclid(COLORS.len() as i64) as usize];
        // What is far outside is cut off here: numbers of pixels fit.
        let whole = |v: f64| v.clamp(-1e6, 1e6).round() as i64;
        let (left, top, right, bottom) = (whole(left), whole(top), whole(right), whole(bottom));
        let line = i64::from(line);
        canvas.frame([left, top, right, bottom], line, color);
        if !text.is_empty() {
            let scale = (line / 2).max(1);
            let high = (GLYPH + 2) * scale;
            // Above the box, where there is room; else inside of it.
            let y = if top >= high { top - high } else { top.max(0) };
            canvas.label(&text, (left.max(0), y), scale, color);
        }
        Ok(())
    }
}

type Color = [u8; 3];

/// The ten colours of Tableau, which differ also for most who see few.
const COLORS: [Color; 10] = [
    [31, 119, 180],
    [255, 127, 14],
    [44, 160, 44],
    [214, 39, 40],
    [148, 103, 189],
    [140, 86, 75],
    [227, 119, 194],
    [127, 127, 127],
    [188, 189, 34],
    [23, 190, 207],
];

/// Pixels of a letter on each side.
const GLYPH: i64 = 8;

/// A picture in red, green and blue that is drawn on.
#[derive(Default)]
pub struct Canvas {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

impl Canvas {
    fn load(&mut self, pixels: &Pixels<'_>) {
        (self.width, self.height) = (pixels.width, pixels.height);
        self.bytes.clear();
        match pixels.channels {
            1 => self.bytes.extend(pixels.bytes.iter().flat_map(|v| [*v; 3])),
            _ => self.bytes.extend_from_slice(pixels.bytes),
        }
    }

    fn pixels(&self) -> Pixels<'_> {
        Pixels { width: self.width, height: self.height, channels: 3, bytes: &self.bytes }
    }

    /// Fills a rectangle, as far as it lies within the picture. `right` and `bottom` are outside.
    fn fill(&mut self, [left, top, right, bottom]: [i64; 4], color: Color) {
        let (width, height) = (i64::from(self.width), i64::from(self.height));
        let (left, right) = (left.clamp(0, width) as usize, right.clamp(0, width) as usize);
        let (top, bottom) = (top.clamp(0, height) as usize, bottom.clamp(0, height) as usize);
        for y in top..bottom {
            let row = y * self.width as usize;
            let Some(bytes) = self.bytes.get_mut((row + left) * 3..(row + right.max(left)) * 3) else {
                return;
            };
            bytes.as_chunks_mut().0.fill(color);
        }
    }

    /// The outline of a box, within it.
    fn frame(&mut self, [left, top, right, bottom]: [i64; 4], line: i64, color: Color) {
        self.fill([left, top, right, (top + line).min(bottom)], color);
        self.fill([left, (bottom - line).max(top), right, bottom], color);
        self.fill([left, top, (left + line).min(right), bottom], color);
        self.fill([(right - line).max(left), top, right, bottom], color);
    }

    /// A line of text on a ground of `color`, as far as it lies within the picture.
    fn label(&mut self, text: &str, (x, y): (i64, i64), scale: i64, color: Color) {
        let room = ((i64::from(self.width) - x) / (GLYPH * scale) + 1).max(0) as usize;
        let letters: Vec<[u8; 8]> = text.chars().take(room).map(glyph).collect();
        let wide = (letters.len() as i64 * GLYPH + 2) * scale;
        self.fill([x, y, x + wide, y + (GLYPH + 2) * scale], color);
        let brightness =
            color.iter().zip([299, 587, 114]).map(|(v, share)| u32::from(*v) * share).sum::<u32>();
        let ink = if brightness > 128_000 { [0; 3] } else { [255; 3] };
        for (n, letter) in letters.iter().enumerate() {
            let x = x + (n as i64 * GLYPH + 1) * scale;
            for (down, row) in letter.iter().enumerate() {
                let y = y + (down as i64 + 1) * scale;
                for right in (0..GLYPH).filter(|right| row >> right & 1 == 1) {
                    let x = x + right * scale;
                    self.fill([x, y, x + scale, y + scale], ink);
                }
            }
        }
    }
}

/// The picture of a letter, a byte per line with the leftmost pixel in the lowest bit; a question mark for what the font lacks.
fn glyph(letter: char) -> [u8; 8] {
    let found = font8x8::BASIC_FONTS
        .get(letter)
        .or_else(|| font8x8::LATIN_FONTS.get(letter))
        .or_else(|| font8x8::GREEK_FONTS.get(letter))
        .or_else(|| font8x8::HIRAGANA_FONTS.get(letter));
    found.or_else(|| font8x8::BASIC_FONTS.get('?')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::apply;
    use super::*;
    use orchestra_core::DType;
    use orchestra_core::data::OwnedValue;

    #[derive(Debug)]
    struct Gray;

    impl orchestra_core::data::Picture for Gray {
        fn decode(&self, _: Option<&orchestra_core::ImageSpec>) -> Result<(), ItemError> {
            Ok(())
        }

        fn write_row(&self, _: &orchestra_core::ImageSpec, _: &mut [u8]) -> Result<(), ItemError> {
            Ok(())
        }

        fn with_pixels(
            &self,
            show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
        ) -> Result<(), ItemError> {
            show(Pixels { width: 60, height: 40, channels: 1, bytes: &[9; 60 * 40] })
        }

        fn size(&self) -> Result<[u32; 2], ItemError> {
            Ok([60, 40])
        }
    }

    fn detection(label: &str, class: i64, corners: [f32; 4]) -> OwnedRow {
        let tensor = |name: &str, dtype, shape: &[usize], data: Vec<u8>| OwnedValue::Tensor {
            name: name.into(),
            dtype,
            shape: shape.into(),
            data: data.into(),
        };
        vec![
            OwnedValue::Text(label.into()),
            tensor("class", DType::I64, &[], class.to_ne_bytes().into()),
            tensor("score", DType::F32, &[], 0.5_f32.to_ne_bytes().into()),
            tensor("box", DType::F32, &[4], corners.iter().flat_map(|v| v.to_ne_bytes()).collect()),
        ]
    }

    fn draw(is_png: bool, rows: &[OwnedRow]) -> Result<image::RgbImage, ItemError> {
        let columns =
            DetectionColumns { corners: 3, label: Some(0), class: Some(1), score: Some(2), polygon: None };
        let mut file = Vec::new();
        let format = if is_png { EncoderFormat::Png } else { EncoderFormat::Jpg };
        let pen = Pen { format, quality: 95, line: Some(2), columns };
        apply(&pen, &[Value::Picture(&Gray), Value::List(rows)], |row| {
            let [Value::Bytes(bytes)] = row else { panic!("{row:?}") };
            file = bytes.to_vec();
        })?;
        if is_png {
            return Ok(image::load_from_memory(&file).unwrap().into_rgb8());
        }
        let jpeg = libjpeg_turbo_rs::decompress_to(&file, libjpeg_turbo_rs::PixelFormat::Rgb).unwrap();
        Ok(image::RgbImage::from_raw(jpeg.width as u32, jpeg.height as u32, jpeg.data).unwrap())
    }

    #[test]
    fn a_box_is_an_outline_in_the_colour_of_its_class_with_its_label_above() {
        let drawn = draw(true, &[detection("l", 3, [10.0, 15.0, 50.0, 35.0])]).unwrap();
        assert_eq!(drawn.dimensions(), (60, 40));
        let is_red = |x, y| drawn.get_pixel(x, y).0 == COLORS[3];
        for (x, y) in [(10, 15), (11, 20), (49, 34), (48, 25), (30, 16), (30, 33)] {
            assert!(is_red(x, y), "{x}, {y}");
        }
        for (x, y) in [(9, 20), (50, 20), (12, 20), (30, 17), (30, 35)] {
            assert_eq!(drawn.get_pixel(x, y).0, [9; 3], "{x}, {y}");
        }
        // "l 0.50" is six letters of 8 pixels, 2 of ground around them, and as high as 10.
        assert!(is_red(10, 5) && is_red(10 + 6 * 8 + 1, 14));
        let ink: Vec<(u32, u32)> = (0..8)
            .flat_map(|y| (0..8).map(move |x| (x, y)))
            .filter(|(x, y)| glyph('l')[*y as usize] >> x & 1 == 1)
            .collect();
        assert!(ink.len() > 8 && ink.iter().all(|(x, y)| drawn.get_pixel(11 + x, 6 + y).0 == [255; 3]));
    }

    #[test]
    fn whatever_lies_outside_is_cut_off_and_what_is_no_place_fails_the_item() {
        let far = [
            detection(
                &"a label that is much too long for the picture ".repeat(99),
                -7,
                [-1e9, -5.0, 1e9, 3.0],
            ),
            detection("漢", i64::MAX, [55.0, 39.0, 20.0, 10.0]),
            detection("", 0, [70.0, 70.0, 80.0, 80.0]),
        ];
        assert_eq!(draw(true, &far).unwrap().dimensions(), (60, 40));
        let error = draw(true, &[detection("x", 0, [0.0, f32::NAN, 1.0, 1.0])]).unwrap_err().error;
        assert!(error.contains("box 0"), "{error}");
    }

    #[test]
    fn a_jpeg_shows_the_same() {
        let rows = [detection("x", 2, [10.0, 15.0, 50.0, 35.0])];
        let (png, jpeg) = (draw(true, &rows).unwrap(), draw(false, &rows).unwrap());
        let difference: u64 =
            png.as_raw().iter().zip(jpeg.as_raw()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        assert!(difference < 4 * png.as_raw().len() as u64, "{difference}");
    }
}
