//! Every format and pixel kind is told by its content and gives the pixels that went in; alpha shows the pad colour.

use crate::common::*;
use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, Rgba};
use orchestra_core::{Channels, FailureKind, Fit, ResizeFilter};
use orchestra_media::{PictureSize, Preparer};

const LOSSLESS: [ImageFormat; 5] =
    [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Gif];

/// The picture as it is.
fn pixels_of(file: &[u8], width: u32, height: u32, color: Channels) -> Vec<u8> {
    row_of(file, &byte_spec([height, width], Fit::Stretch, ResizeFilter::Bilinear, color))
}

#[test]
fn lossless_formats_give_back_their_pixels() {
    // At most 256 colours, so that GIF is lossless as well.
    let picture = image::RgbImage::from_fn(37, 21, |x, y| Rgb([x as u8 / 5 * 30, y as u8 / 3 * 30, 77]));
    for format in LOSSLESS {
        let file = encoded(&DynamicImage::ImageRgb8(picture.clone()), format);
        let mut preparer = Preparer::new();
        let size = preparer.decode(&file, MAX_PIXELS).unwrap();
        assert_eq!(size, PictureSize { width: 37, height: 21 }, "{format:?}");
        assert_eq!(pixels_of(&file, 37, 21, Channels::Rgb), *picture.as_raw(), "{format:?}");
    }
}

#[test]
fn gray_and_sixteen_bit_pictures_are_read_in_every_format_that_has_them() {
    let gray = gray_picture(30, 20);
    let rgb = picture(30, 20);
    let wide_gray = ImageBuffer::from_fn(30, 20, |x, y| Luma([u16::from(gray.get_pixel(x, y)[0]) * 257]));
    let wide_rgb =
        ImageBuffer::from_fn(30, 20, |x, y| Rgb(rgb.get_pixel(x, y).0.map(|v| u16::from(v) * 257)));
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        for (picture, color, expected) in [
            (DynamicImage::ImageLuma8(gray.clone()), Channels::Gray, gray.as_raw()),
            (DynamicImage::ImageLuma16(wide_gray.clone()), Channels::Gray, gray.as_raw()),
            (DynamicImage::ImageRgb16(wide_rgb.clone()), Channels::Rgb, rgb.as_raw()),
        ] {
            let file = encoded(&picture, format);
            assert_eq!(pixels_of(&file, 30, 20, color), *expected, "{format:?} {:?}", picture.color());
        }
    }
}

#[test]
fn transparent_pixels_show_the_pad_colour_in_the_order_of_the_channels() {
    let colour = DynamicImage::ImageRgba8(ImageBuffer::from_fn(3, 1, |x, _| {
        Rgba([10, 20, 30, [0, 128, 255][x as usize]])
    }));
    let gray =
        DynamicImage::ImageLumaA8(ImageBuffer::from_fn(3, 1, |x, _| LumaA([10, [0, 128, 255][x as usize]])));
    // pad is [200, 100, 50] in the order of the channels; half of it and half of the ink.
    let cases: [(&DynamicImage, Channels, &[u8]); 6] = [
        (&colour, Channels::Rgb, &[200, 100, 50, 105, 60, 40, 10, 20, 30]),
        (&colour, Channels::Bgr, &[200, 100, 50, 115, 60, 30, 30, 20, 10]),
        (&colour, Channels::Gray, &[200, 109, 18]),
        (&gray, Channels::Rgb, &[200, 100, 50, 105, 55, 30, 10, 10, 10]),
        (&gray, Channels::Bgr, &[200, 100, 50, 105, 55, 30, 10, 10, 10]),
        (&gray, Channels::Gray, &[200, 105, 10]),
    ];
    for (picture, color, expected) in cases {
        let (max, _) = difference(&pixels_of(&encoded(picture, ImageFormat::Png), 3, 1, color), expected);
        assert!(max <= 1, "{:?} {color:?}", picture.color());
    }
    for format in [ImageFormat::WebP, ImageFormat::Tiff] {
        let found = pixels_of(&encoded(&colour, format), 3, 1, Channels::Rgb);
        assert!(difference(&found, cases[0].2).0 <= 1, "{format:?} {found:?}");
    }
    let gif = pixels_of(&encoded(&colour, ImageFormat::Gif), 3, 1, Channels::Rgb);
    assert_eq!(gif[..3], [200, 100, 50]);
}

#[test]
fn a_palette_picture_and_one_bit_pictures_are_read() {
    // PNG, 4x2, indexed in 1 bit: red and blue, the blue half transparent. Written by hand: the image crate has no encoder.
    let palette = png(
        4,
        2,
        1,
        3,
        &[(b"PLTE", &[255, 0, 0, 0, 0, 255]), (b"tRNS", &[255, 0])],
        &[0, 0b0101_0000, 0, 0b1111_0000],
    );
    let expected = [[255, 0, 0], [200, 100, 50], [255, 0, 0], [200, 100, 50]].concat();
    assert_eq!(pixels_of(&palette, 4, 2, Channels::Rgb)[..12], expected);
    let bits = png(4, 2, 1, 0, &[], &[0, 0b0101_0000, 0, 0b1111_0000]);
    assert_eq!(pixels_of(&bits, 4, 2, Channels::Gray), [0, 255, 0, 255, 255, 255, 255, 255]);
}

#[test]
fn of_an_animation_the_first_frame_is_taken() {
    let mut file = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut file);
    for colour in [[200, 0, 0, 255], [0, 200, 0, 255]] {
        encoder.encode_frame(image::Frame::new(image::RgbaImage::from_pixel(4, 4, Rgba(colour)))).unwrap();
    }
    drop(encoder);
    assert_eq!(pixels_of(&file, 4, 4, Channels::Rgb)[..3], [200, 0, 0]);
    assert_eq!(n_pictures(&file), 2);
}

fn n_pictures(file: &[u8]) -> u32 {
    let mut preparer = Preparer::new();
    preparer.decode(file, MAX_PIXELS).unwrap();
    preparer.n_pictures()
}

#[test]
fn pictures_that_stand_behind_the_first_are_counted_whatever_their_formats() {
    let picture = DynamicImage::ImageRgb8(picture(9, 7));
    let formats = [
        ImageFormat::Jpeg,
        ImageFormat::Png,
        ImageFormat::WebP,
        ImageFormat::Gif,
        ImageFormat::Bmp,
        ImageFormat::Tiff,
    ];
    let files = formats.map(|format| encoded(&picture, format));
    for (first, format) in files.iter().zip(formats) {
        for second in &files {
            assert_eq!(n_pictures(&[&first[..], second].concat()), 2, "{format:?}");
            assert_eq!(n_pictures(&[&first[..], second, &[0; 7], first].concat()), 3, "{format:?}");
            // One that is cut is one.
            assert_eq!(n_pictures(&[&first[..], &second[..second.len() / 2]].concat()), 2, "{format:?}");
        }
        for behind in [
            &b"\0\0\0\0"[..],
            b"BMP",
            &[b"BM", &[9; 40][..]].concat(),
            b"RIFF",
            b"\xff\xd8",
            b"\0\0\0\x18ftypmp42",
        ] {
            assert_eq!(n_pictures(&[first, behind].concat()), 1, "{format:?} {behind:?}");
        }
    }
    // A gain map says what it is; the size of a WebP is even, and a last chunk of an odd size may lack the byte that pads it.
    let segment = [&[0xff, 0xe1, 0, 11][..], b"hdrgm:a=1"].concat();
    let gain_map = [&files[0][..2], &segment, &files[0][2..]].concat();
    assert_eq!(n_pictures(&[&files[0][..], &gain_map, &files[1]].concat()), 2);
    let mut odd = files[2].clone();
    odd.extend(b"EXIF\x01\0\0\0x");
    let size = odd.len() as u32 - 8;
    odd[4..8].copy_from_slice(&size.to_le_bytes());
    for pad in [&b""[..], b"\0"] {
        assert_eq!(n_pictures(&[&odd, pad, &files[3]].concat()), 2, "{pad:?}");
    }
}

fn webp(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let chunk = |(name, payload): &(&[u8; 4], &[u8])| {
        let pad = &[0][..payload.len() % 2];
        [&name[..], &(payload.len() as u32).to_le_bytes(), payload, pad].concat()
    };
    let body = [b"WEBP".to_vec(), chunks.iter().flat_map(chunk).collect()].concat();
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

#[test]
fn the_first_frame_of_a_lossless_webp_is_exact_whether_it_is_blended_or_not() {
    let picture = picture(10, 8);
    let frame = &encoded(&DynamicImage::ImageRgb8(picture.clone()), ImageFormat::WebP)[12..];
    let side = |side: u8| [side - 1, 0, 0];
    for flags in [0, 2] {
        let head = [&[0; 6][..], &side(10), &side(8), &[100, 0, 0, flags], frame].concat();
        let canvas = [&[2, 0, 0, 0][..], &side(10), &side(8)].concat();
        let file = webp(&[(b"VP8X", &canvas), (b"ANIM", &[0; 6]), (b"ANMF", &head), (b"ANMF", &head)]);
        assert_eq!(pixels_of(&file, 10, 8, Channels::Rgb), *picture.as_raw(), "{flags}");
        assert_eq!(n_pictures(&file), 2);
    }
}

#[test]
fn a_webp_whose_header_speaks_of_alpha_is_read_without_it() {
    let plain = golden("lossy.webp");
    assert_eq!(plain[12..16], *b"VP8 ");
    let size = Preparer::new().decode(&plain, MAX_PIXELS).unwrap();
    let side = |side: u32| [side as u8 - 1, 0, 0];
    let canvas = [&[0x10, 0, 0, 0][..], &side(size.width), &side(size.height)].concat();
    let length = u32::from_le_bytes(*plain[16..].first_chunk().unwrap()) as usize;
    let file = webp(&[(b"VP8X", &canvas), (b"VP8 ", &plain[20..20 + length])]);
    let pixels = |file: &[u8]| pixels_of(file, size.width, size.height, Channels::Rgb);
    assert_eq!(pixels(&file), pixels(&plain));
}

#[test]
fn what_no_decoder_of_bmp_reads_is_refused_by_name_with_a_conversion() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(9, 7)), ImageFormat::Bmp);
    // Sizes of the header, bits of a pixel, compression, and the mask of red.
    for (size, bits, compression, mask, words) in [
        (64, 24, 0, 0, "its header has 64 bytes"),
        (40, 32, 6, 0, "its compression is colour masks with alpha (6)"),
        (40, 24, 4, 0, "its compression is JPEG (4)"),
        (40, 64, 0, 0, "its compression is none (0), with 64 bits a pixel"),
        (40, 32, 3, 0, "its colour masks are 0x0"),
        (40, 32, 3, 5, "its colour masks are 0x5"),
        (40, 16, 3, 0x10000, "its colour masks are 0x10000"),
    ] {
        let mut file = file.clone();
        for (at, number) in [(14, size), (28, bits), (30, compression), (54, mask), (58, 6), (62, 8)] {
            let bytes = &u32::to_le_bytes(number)[..if at == 28 { 2 } else { 4 }];
            file[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let text = Preparer::new().decode(&file, MAX_PIXELS).unwrap_err().to_string();
        assert!(text.contains(words) && text.contains("`magick IN.bmp OUT.png`"), "{words}: {text}");
    }
}

#[test]
fn the_frames_of_a_png_are_those_that_it_has_whatever_its_header_says() {
    // Of one pixel.
    let mut frame = [0; 26];
    (frame[7], frame[11]) = (1, 1);
    for (claimed, before, behind, n) in
        [(u32::MAX, 1, 1, 2), (1, 1, 2, 3), (2, 0, 2, 3), (9, 0, 0, 1), (0, 1, 0, 1)]
    {
        let control = [claimed.to_be_bytes(), [0; 4]].concat();
        let mut chunks = vec![(b"acTL", &control[..])];
        chunks.extend(std::iter::repeat_n((b"fcTL", &frame[..]), before));
        let file = png(1, 1, 8, 0, &chunks, &[0, 7]);
        let more: Vec<u8> = std::iter::repeat_n(png_chunk(b"fcTL", &frame), behind).flatten().collect();
        // In front of the end, which has 12 bytes.
        let (pixels, end) = file.split_at(file.len() - 12);
        assert_eq!(n_pictures(&[pixels, &more, end].concat()), n, "{claimed} {before} {behind}");
    }
}

#[test]
fn what_is_said_of_a_damaged_file_is_no_code() {
    let picture = DynamicImage::ImageRgb8(picture(9, 7));
    let mut said = std::collections::BTreeSet::new();
    for format in LOSSLESS.into_iter().chain([ImageFormat::Jpeg]) {
        let file = encoded(&picture, format);
        for at in 0..file.len().min(400) {
            for bit in [0, 7] {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                if let Err(error) = Preparer::new().decode(&damaged, MAX_PIXELS) {
                    said.insert(error.to_string());
                }
            }
        }
    }
    let is_code = |text: &&String| [" { ", "::", "Some("].iter().any(|sign| text.contains(sign));
    assert_eq!(said.iter().filter(is_code).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(said.iter().any(|text| text.contains("while decoding IDAT chunk")), "{said:?}");
}

/// A JPEG that is followed by others, with an index of all of them in front: its type, and what stands in its head, for each.
fn mpo(others: &[(u32, &[u8])], is_big_endian: bool) -> Vec<u8> {
    let jpeg = |comment: &[u8]| {
        let mut file = encoded(&DynamicImage::ImageRgb8(picture(8, 8)), ImageFormat::Jpeg);
        let segment = [&[0xff, 0xfe][..], &(comment.len() as u16 + 2).to_be_bytes(), comment].concat();
        file.splice(2..2, segment);
        file
    };
    let [short, long] = [2, 4].map(|n: usize| {
        move |number: u32| match is_big_endian {
            true => number.to_be_bytes()[4 - n..].to_vec(),
            false => number.to_le_bytes()[..n].to_vec(),
        }
    });
    let pictures: Vec<(u32, Vec<u8>)> = std::iter::once((0x03_0000, jpeg(b"first")))
        .chain(others.iter().map(|(kind, head)| (*kind, jpeg(head))))
        .collect();
    let n = pictures.len() as u32;
    let mut index = if is_big_endian { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
    // One directory: the version, how many pictures there are, and an entry for each behind it.
    index.extend([long(8), short(3)].concat());
    index.extend([short(0xb000), short(7), long(4), b"0100".to_vec()].concat());
    index.extend([short(0xb001), short(4), long(1), long(n)].concat());
    index.extend([short(0xb002), short(7), long(16 * n), long(50), long(0)].concat());
    let segment = 2 + 2 + 4 + index.len() + 16 * pictures.len();
    let mut place = pictures[0].1.len() + segment;
    for (at, (kind, picture)) in pictures.iter().enumerate() {
        // Places count from the index.
        let from = if at == 0 { 0 } else { (place - 10) as u32 };
        index.extend([long(*kind), long(picture.len() as u32), long(from), long(0)].concat());
        place += if at == 0 { 0 } else { picture.len() };
    }
    let mut file = pictures[0].1.clone();
    let length = (segment - 2) as u16;
    file.splice(2..2, [&[0xff, 0xe2][..], &length.to_be_bytes(), b"MPF\0", &index].concat());
    pictures[1..].iter().for_each(|(_, picture)| file.extend(picture));
    file
}

#[test]
fn the_pictures_of_an_mpo_are_counted_without_smaller_copies_and_gain_maps() {
    for is_big_endian in [true, false] {
        let count = |others: &[(u32, &[u8])]| n_pictures(&mpo(others, is_big_endian));
        assert_eq!(count(&[]), 1);
        assert_eq!(count(&[(0x02_0002, b"other eye")]), 2);
        assert_eq!(count(&[(0, b"undefined"), (0x02_0003, b"other angle"), (0x01_0001, b"copy")]), 3);
        assert_eq!(count(&[(0, b"<x:xmpmeta hdrgm:Version=\"1.0\""), (0, b"photo")]), 2);
    }
    // An index that is cut or points out of the file says nothing, and the picture is read.
    let file = mpo(&[(0, b"other")], false);
    let entries = file.windows(4).position(|at| at == [0x02, 0xb0, 7, 0]).unwrap();
    let mut wild = file.clone();
    wild[entries + 8..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(n_pictures(&wild), 1);
}

#[test]
fn a_file_that_is_no_picture_is_named_by_what_it_is() {
    let mut preparer = Preparer::new();
    let text = preparer.decode(b"hello world", MAX_PIXELS).unwrap_err();
    assert_eq!(text.kind(), FailureKind::Decode);
    assert!(text.to_string().starts_with("starts with `hello world`, expected a JPEG, PNG"), "{text}");
    assert!(preparer.decode(b"", MAX_PIXELS).unwrap_err().to_string().contains("empty"));
}

/// A PNG of bit depth `depth` and colour type `color`, its filtered `rows` stored without compression.
fn png(width: u32, height: u32, depth: u8, color: u8, chunks: &[(&[u8; 4], &[u8])], rows: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([depth, color, 0, 0, 0]);
    let length = rows.len() as u16;
    let mut data = vec![0x78, 0x01, 0x01];
    data.extend(length.to_le_bytes());
    data.extend((!length).to_le_bytes());
    data.extend(rows);
    data.extend(adler32(rows).to_be_bytes());
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let all = [(b"IHDR", header.as_slice())]
        .into_iter()
        .chain(chunks.iter().copied())
        .chain([(b"IDAT", data.as_slice()), (b"IEND", &[])]);
    file.extend(all.flat_map(|(name, payload)| png_chunk(name, payload)));
    file
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), v| {
        let a = (a + u32::from(*v)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

#[test]
fn an_interlaced_png_has_the_pixels_of_a_plain_one() {
    let pixels = pixels_of(&golden("interlaced.png"), 29, 23, Channels::Rgb);
    assert_eq!(pixels, pixels_of(&golden("plain.png"), 29, 23, Channels::Rgb));
    let file = golden("interlaced.png");
    for cut in 8..file.len() {
        assert!(Preparer::new().decode(&file[..cut], MAX_PIXELS).is_err(), "{cut} bytes");
    }
}
