//! Recognises a picture format by its first bytes. It never looks at a file name and reads nothing beyond the signature.

use orchestra_core::named_enum;

named_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Format {
        /// JPEG: baseline and progressive; gray, YCbCr, RGB, CMYK and YCCK.
        Jpeg = "JPEG",
        /// PNG: 1 to 16 bits, with palette or alpha; the default image of an animation.
        Png = "PNG",
        /// WebP: lossy and lossless; the first frame of an animation.
        WebP = "WebP",
        Bmp = "BMP",
        /// TIFF and BigTIFF: the first picture of the file.
        Tiff = "TIFF",
        /// GIF: the first frame.
        Gif = "GIF",
    }
}

impl Format {
    /// What messages say is expected.
    pub(crate) const LIST: &str = "JPEG, PNG, WebP, BMP, TIFF or GIF file";

    /// The format that `bytes` begin with.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        let starts = |signature: &[u8]| bytes.starts_with(signature);
        if starts(&[0xff, 0xd8, 0xff]) {
            Some(Format::Jpeg)
        } else if starts(b"\x89PNG\r\n\x1a\n") {
            Some(Format::Png)
        } else if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP".as_slice()) {
            Some(Format::WebP)
        } else if starts(b"GIF87a") || starts(b"GIF89a") {
            Some(Format::Gif)
        } else if [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|signature| starts(*signature)) {
            Some(Format::Tiff)
        } else if starts(b"BM") {
            Some(Format::Bmp)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_known_and_a_shorter_one_is_not() {
        let cases: [(&[u8], Format); 10] = [
            (&[0xff, 0xd8, 0xff], Format::Jpeg),
            (b"\x89PNG\r\n\x1a\n", Format::Png),
            (b"RIFF\x00\x00\x00\x00WEBP", Format::WebP),
            (b"GIF87a", Format::Gif),
            (b"GIF89a", Format::Gif),
            (b"II*\0", Format::Tiff),
            (b"MM\0*", Format::Tiff),
            (b"II+\0", Format::Tiff),
            (b"MM\0+", Format::Tiff),
            (b"BM", Format::Bmp),
        ];
        for (signature, format) in cases {
            assert_eq!(Format::of(signature), Some(format));
            for cut in 0..signature.len() {
                assert_eq!(Format::of(&signature[..cut]), None, "{format}, {cut} bytes");
            }
        }
    }
}
