//! How the stored picture must be turned to be seen upright (EXIF tag 274). It moves no pixels: it maps coordinates.

use memchr::memmem;

use crate::directory::{Directories, Directory};

const ORIENTATION: u16 = 274;

/// A turn, as flips of the stored picture's axes followed by an exchange of the axes.
///
/// Pixel `(x, y)` of the shown picture is pixel `(u, v)` of the stored one, where `(u, v) = (y, x)` if `transpose` else
/// `(x, y)`, and then `u = width - 1 - u` if `flip_x`, `v = height - 1 - v` if `flip_y` (stored width and height).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Orientation {
    pub(crate) transpose: bool,
    pub(crate) flip_x: bool,
    pub(crate) flip_y: bool,
}

impl Orientation {
    pub(crate) const UPRIGHT: Orientation = Orientation { transpose: false, flip_x: false, flip_y: false };

    /// The turn that EXIF value 1 to 8 asks for.
    pub(crate) fn from_exif(value: u8) -> Option<Orientation> {
        let (transpose, flip_x, flip_y) = match value {
            1 => (false, false, false),
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => return None,
        };
        Some(Orientation { transpose, flip_x, flip_y })
    }

    /// The turn in an EXIF block: a TIFF header, with or without `Exif\0\0` before it. `None`: it says nothing of it, or cannot be read. A picture is not lost
    /// for its metadata.
    pub(crate) fn in_exif_block(block: &[u8]) -> Option<Orientation> {
        let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
        Orientation::of(&Directories::of(block)?.first()?)
    }

    /// The turn that a directory asks for. The standard has it in 16 bits; cameras and phones write it with other types of whole numbers, too. Single bytes
    /// without a sign are no number here, as they are none to Pillow: upright, as any other value that is none.
    pub(crate) fn of(directory: &Directory<'_>) -> Option<Orientation> {
        let entry = directory.entry(ORIENTATION)?;
        let value = directory.number(ORIENTATION).filter(|_| !entry.is_byte());
        let value = value.and_then(|value| u8::try_from(value).ok());
        Some(value.and_then(Orientation::from_exif).unwrap_or_default())
    }

    /// The turn that XMP asks for, as an attribute or an element, found as Pillow finds it. It counts where EXIF says nothing.
    pub(crate) fn in_xmp(xmp: &[u8]) -> Option<Orientation> {
        const NAME: &[u8] = b"tiff:Orientation";
        memmem::find_iter(xmp, NAME).find_map(|at| {
            let rest = &xmp[at + NAME.len()..];
            let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?;
            let digit = value.first().filter(|digit| digit.is_ascii_digit())?;
            Some(Orientation::from_exif(digit - b'0').unwrap_or_default())
        })
    }

    /// Width and height as shown, of a picture stored with `width` and `height`.
    pub(crate) fn shown_size(self, width: u32, height: u32) -> (u32, u32) {
        if self.transpose { (height, width) } else { (width, height) }
    }

    /// The stored position along one stored axis of length `len`, of shown position `at` on the axis that shows it.
    fn along(flip: bool, at: usize, len: usize) -> usize {
        if flip { len - 1 - at } else { at }
    }

    /// Byte offsets in a stored picture (packed, `channels` bytes per pixel), such that the shown pixel that is `xs[i]` from
    /// the left and `ys[j]` from the top lies at `columns[i] + rows[j]`.
    pub(crate) fn offsets(
        self,
        stored: (usize, usize),
        channels: usize,
        xs: impl Iterator<Item = usize>,
        ys: impl Iterator<Item = usize>,
        columns: &mut Vec<usize>,
        rows: &mut Vec<usize>,
    ) {
        let (width, height) = stored;
        let by_x = |at| Self::along(self.flip_x, at, width) * channels;
        let by_y = |at| Self::along(self.flip_y, at, height) * width * channels;
        columns.clear();
        rows.clear();
        if self.transpose {
            columns.extend(xs.map(by_y));
            rows.extend(ys.map(by_x));
        } else {
            columns.extend(xs.map(by_x));
            rows.extend(ys.map(by_y));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_moves_pixels_as_the_image_crate_does() {
        let stored = image::GrayImage::from_fn(3, 2, |x, y| image::Luma([(y * 3 + x) as u8]));
        for value in 1..=8 {
            let turn = Orientation::from_exif(value).unwrap();
            let mut expected = image::DynamicImage::ImageLuma8(stored.clone());
            expected.apply_orientation(image::metadata::Orientation::from_exif(value).unwrap());
            let (width, height) = turn.shown_size(3, 2);
            assert_eq!((width, height), (expected.width(), expected.height()), "orientation {value}");
            let (mut columns, mut rows) = (Vec::new(), Vec::new());
            turn.offsets((3, 2), 1, 0..width as usize, 0..height as usize, &mut columns, &mut rows);
            let shown: Vec<u8> =
                rows.iter().flat_map(|y| columns.iter().map(move |x| (x + y) as u8)).collect();
            assert_eq!(shown, expected.as_bytes(), "orientation {value}");
        }
        assert_eq!(Orientation::from_exif(0), None);
        assert_eq!(Orientation::from_exif(9), None);
    }

    /// A block with the orientation 6, written as a number of this type (TIFF 6.0).
    fn block(kind: u16, size: usize, is_big_endian: bool) -> Vec<u8> {
        let number = |n: u32, size: usize| match is_big_endian {
            true => n.to_be_bytes()[4 - size..].to_vec(),
            false => n.to_le_bytes()[..size].to_vec(),
        };
        let mut value = number(6, size);
        value.resize(4, 0);
        let start = if is_big_endian { b"MM\0*" } else { b"II*\0" };
        [
            start.to_vec(),
            number(8, 4),
            number(1, 2),
            number(274, 2),
            number(kind.into(), 2),
            number(1, 4),
            value,
            number(0, 4),
        ]
        .concat()
    }

    #[test]
    fn a_turn_is_read_whatever_the_type_of_its_number() {
        let turned = Orientation::from_exif(6).unwrap();
        // SHORT, LONG, SBYTE, SSHORT, SLONG.
        for (kind, size) in [(3, 2), (4, 4), (6, 1), (8, 2), (9, 4)] {
            for is_big_endian in [false, true] {
                let block = block(kind, size, is_big_endian);
                assert_eq!(Orientation::in_exif_block(&block), Some(turned), "type {kind}, {is_big_endian}");
                let prefixed = [b"Exif\0\0", &block[..]].concat();
                let found = Orientation::in_exif_block(&prefixed);
                assert_eq!(found, Some(turned), "type {kind}, {is_big_endian}");
            }
        }
        // Bytes, text and fractions are no number.
        for kind in [1, 2, 5, 7, 10, 11] {
            let found = Orientation::in_exif_block(&block(kind, 4, false));
            assert_eq!(found, Some(Orientation::UPRIGHT));
        }
    }

    #[test]
    fn xmp_is_read_as_attribute_and_as_element() {
        let turned = Orientation::from_exif(6);
        for (xmp, found) in [
            ("<rdf:Description tiff:Orientation=\"6\"/>", turned),
            ("<tiff:Orientation>6</tiff:Orientation>", turned),
            ("tiff:Orientation, and then <tiff:Orientation>6", turned),
            ("<tiff:Orientation>9", Some(Orientation::UPRIGHT)),
            ("tiff:Orientation='6'", None),
            ("<tiff:Orientation>", None),
        ] {
            assert_eq!(Orientation::in_xmp(xmp.as_bytes()), found, "{xmp}");
        }
    }

    #[test]
    fn unreadable_metadata_says_nothing() {
        for block in
            [b"".as_slice(), b"II", b"Exif\0\0", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff"]
        {
            assert_eq!(Orientation::in_exif_block(block), None);
        }
    }
}
