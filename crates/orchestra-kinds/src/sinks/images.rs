//! `kind = "images"`: a picture file per record, or any other file that a stage has made, named after its item.

use std::sync::Arc;

use orchestra_core::data::{ColumnType, Refusal, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, Key, ReadBack, SinkKind, Writes, key, list};
use orchestra_store::ObjectOutput;

use super::jsonl::read_lines;
use crate::encode_picture::{jpeg, png};
use crate::sources::objects;

/// The kind `images`.
pub struct ImageFiles;

const KEYS: [Key; 2] = [
    key("format", "text", "\"png\"", "of a picture: `\"png\"` or `\"jpg\"`; bytes are written as they are"),
    key("quality", "integer", "90", "of a JPEG, from 1 to 100"),
];

/// Of the ending of a file's name.
const LONGEST_ENDING: usize = 16;

impl SinkKind for ImageFiles {
    fn name(&self) -> &'static str {
        "images"
    }

    fn about(&self) -> &'static str {
        "A file per record: a picture, or bytes that a stage has made of one (`mask`, `draw`), whose name ends with their format. Files are named and \
         listed as those of `npy`."
    }

    fn extension(&self) -> &'static str {
        "png"
    }

    fn writes(&self) -> Writes {
        Writes::FileEach
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read_back(&self) -> Option<ReadBack> {
        Some(read_lines)
    }

    fn objects(&self) -> Result<Arc<dyn ObjectOutput>, String> {
        objects::output()
    }

    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>> {
        let is_png = fields.choice("format", &[("png", true), ("jpg", false)]);
        let quality = fields.integer("quality", 1..=100);
        let is_file = |ty: &ColumnType| matches!(ty, ColumnType::Picture | ColumnType::Bytes(_));
        let [column] = &input.gives.0[..] else {
            let what = &fields.what;
            let message =
                format!("{what} takes one picture, or bytes, and `{}` gives {}", input.name, input.gives);
            let fitting = input.gives.0.iter().filter(|column| is_file(&column.ty));
            let help = match list(fitting.map(|column| column.name.as_str())) {
                names if names.is_empty() => "a stage `mask` or `draw` makes bytes of pictures".to_owned(),
                names => format!("name one: from = \"stage.column\"; columns: {names}"),
            };
            fields.diags.error(input.span, message).help(help);
            return None;
        };
        let as_it_is = match &column.ty {
            ColumnType::Picture => None,
            ColumnType::Bytes(format) => Some(format),
            ty => {
                let what = &fields.what;
                let message = format!("{what} cannot write `{}` of `{}`", column.name, input.name);
                fields
                    .diags
                    .error(input.span, message)
                    .label(format!("it is {ty}"))
                    .help("it takes a picture, or bytes, which a stage `mask` or `draw` makes");
                return None;
            }
        };
        let Some(ending) = as_it_is else {
            let (is_png, quality) =
                (is_png.is_none_or(|f| f.value), quality.map_or(90, |quality| quality.value as u8));
            let ending = if is_png { "png" } else { "jpg" }.to_owned();
            return Some(Arc::new(Files { picture: Some((is_png, quality)), ending }));
        };
        for span in [is_png.map(|f| f.span), quality.map(|q| q.span)].into_iter().flatten() {
            let message = format!("{} writes `{}` as it is, so this has no effect", fields.what, column.name);
            fields.diags.warning(span, message).label("has no effect").help("leave it out");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if ending.is_empty()
            || ending.len() > LONGEST_ENDING
            || !ending.chars().all(is_plain)
            || ending.starts_with('.')
        {
            let message = format!("{} cannot call files `*.{}`", fields.what, ending.escape_default());
            fields.diags.error(input.span, message).help("rename the column that the source gives");
            return None;
        }
        Some(Arc::new(Files { picture: None, ending: ending.clone() }))
    }
}

#[derive(Debug)]
struct Files {
    /// Whether a PNG is made of a picture, and else the quality of the JPEG; `None`: of nothing.
    picture: Option<(bool, u8)>,
    ending: String,
}

impl Encoder for Files {
    fn extension(&self) -> Option<&str> {
        Some(&self.ending)
    }

    fn encode(&self, _: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        match (row, self.picture) {
            ([Value::Bytes(bytes)], None) => out.extend_from_slice(bytes),
            ([Value::Picture(picture)], Some((is_png, quality))) => picture.with_pixels(&mut |pixels| {
                let file = if is_png { png(&pixels) } else { jpeg(&pixels, quality) };
                out.extend_from_slice(&file?);
                Ok(())
            })?,
            _ => return Err(Refusal::result("internal error: expected one picture; this is a bug")),
        }
        Ok(())
    }
}
