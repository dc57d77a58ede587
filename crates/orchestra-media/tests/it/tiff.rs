//! TIFF: what pixels mean, in any layout; and what is refused, by name and with a conversion. `tests/pictures.rs` compares many more with Pillow.

use crate::common::*;
use orchestra_core::{Channels, Fit, ResizeFilter};
use orchestra_media::{MediaError, Preparer};

const WIDTH: u32 = 37;
const HEIGHT: u32 = 21;

type Tag = (u16, u16, Vec<u32>);

/// The tags of a picture in one strip.
fn tags(bits: u32, photometric: u32, samples: u32) -> Vec<Tag> {
    let length = (WIDTH * samples * bits).div_ceil(8) * HEIGHT;
    vec![
        (256, 4, vec![WIDTH]),
        (257, 4, vec![HEIGHT]),
        (258, 3, vec![bits; samples as usize]),
        (259, 3, vec![1]),
        (262, 3, vec![photometric]),
        (273, 4, vec![8]),
        (277, 3, vec![samples]),
        (278, 4, vec![HEIGHT]),
        (279, 4, vec![length]),
    ]
}

fn with(mut tags: Vec<Tag>, more: &[Tag]) -> Vec<Tag> {
    tags.retain(|tag| more.iter().all(|other| other.0 != tag.0));
    tags.extend_from_slice(more);
    tags.sort_by_key(|tag| tag.0);
    tags
}

fn colours(file: &[u8]) -> Vec<u8> {
    let mut spec = byte_spec([HEIGHT, WIDTH], Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
    spec.pad = vec![0; 3];
    row_of(file, &spec)
}

fn refused(file: &[u8]) -> String {
    Preparer::new().decode(file, MAX_PIXELS).unwrap_err().to_string()
}

/// Lines of samples of a few bits each.
fn packed(bits: usize, sample: impl Fn(u32, u32) -> u8) -> Vec<u8> {
    let line = |y: u32| {
        let mut line = vec![0; (WIDTH as usize * bits).div_ceil(8)];
        for x in 0..WIDTH {
            let at = x as usize * bits;
            line[at / 8] |= sample(x, y) << (8 - bits - at % 8);
        }
        line
    };
    (0..HEIGHT).flat_map(line).collect()
}

#[test]
fn samples_of_a_few_bits_are_read_in_both_bit_orders_and_meanings() {
    for bits in [1_u32, 2, 4, 8] {
        let most = u8::MAX >> (8 - bits as u8);
        let sample = |x: u32, y: u32| (x * 3 + y * 5) as u8 & most;
        let shown = |x, y| sample(x, y) * (255 / most);
        let pixels = |level: &dyn Fn(u32, u32) -> u8| -> Vec<u8> {
            (0..HEIGHT)
                .flat_map(|y| (0..WIDTH).map(move |x| (x, y)))
                .flat_map(|(x, y)| [level(x, y); 3])
                .collect()
        };
        let straight = packed(bits as usize, sample);
        let reversed: Vec<u8> = straight.iter().map(|byte| byte.reverse_bits()).collect();
        for (order, data) in [(1, &straight), (2, &reversed)] {
            for (photometric, expected) in [(1, pixels(&shown)), (0, pixels(&|x, y| 255 - shown(x, y)))] {
                let tags = with(tags(bits, photometric, 1), &[(266, 3, vec![order])]);
                assert_eq!(colours(&tiff(data, &tags)), expected, "{bits} bits, {order}, {photometric}");
            }
        }
    }
}

#[test]
fn a_palette_is_looked_up_whether_its_table_has_16_bits_or_8() {
    let table = |index: u32| [index * 7 % 256, 255 - index, index * 3 % 256];
    let sample = |x: u32, y: u32| (x * 3 + y * 5) as u8;
    let data = packed(8, sample);
    let expected: Vec<u8> = data.iter().flat_map(|index| table((*index).into()).map(|v| v as u8)).collect();
    for scale in [1, 256, 257] {
        let map = (0..3).flat_map(|c| (0..256).map(move |index| table(index)[c] * scale)).collect();
        let file = tiff(&data, &with(tags(8, 3, 1), &[(320, 3, map)]));
        assert_eq!(colours(&file), expected, "{scale}");
    }
    assert!(refused(&tiff(&data, &tags(8, 3, 1))).contains("its palette has not 256 colours"));
}

#[test]
fn associated_alpha_shows_what_straight_alpha_shows() {
    let colour = picture(WIDTH, HEIGHT);
    let alpha = |at: usize| [0, 85, 128, 255][at % 4];
    let rgba = |premultiplied: bool| -> Vec<u8> {
        let pixels = colour.pixels().enumerate().flat_map(|(at, pixel)| {
            let times = |v: u8| (u32::from(v) * u32::from(alpha(at)) / 255) as u8;
            let [r, g, b] = if premultiplied { pixel.0.map(times) } else { pixel.0 };
            [r, g, b, alpha(at)]
        });
        pixels.collect()
    };
    let of = |premultiplied, meaning| {
        let tags = with(tags(8, 2, 4), &[(338, 3, vec![meaning])]);
        colours(&tiff(&rgba(premultiplied), &tags))
    };
    let (straight, associated) = (of(false, 2), of(true, 1));
    let (max, _) = difference(&straight, &associated);
    assert!(max <= 2, "{max}");
    // What it does not call alpha is left out.
    assert_eq!(of(false, 0), *colour.as_raw());
}

#[test]
fn what_cannot_be_told_is_refused_by_name_with_a_conversion() {
    let pixels = vec![7; (WIDTH * HEIGHT * 16) as usize];
    let format = |value| (339, 3, vec![value]);
    let cases = [
        (with(tags(32, 1, 1), &[]), "whole numbers of 32 bits"),
        (with(tags(8, 1, 1), &[format(2)]), "whole numbers with a sign of 8 bits"),
        (with(tags(64, 2, 3), &[format(3)]), "floats of 64 bits"),
        (tags(12, 1, 1), "whole numbers of 12 bits"),
        (tags(8, 6, 3), "YCbCr that is not packed as JPEG"),
        (tags(8, 8, 3), "CIE L*a*b*"),
        (tags(8, 32803, 1), "CFA"),
        (with(tags(8, 5, 4), &[(332, 3, vec![2])]), "other inks than CMYK"),
        (with(tags(8, 5, 5), &[(338, 3, vec![2])]), "CMYK with alpha"),
        (tags(8, 1, 3), "it does not say what they are"),
        (with(tags(1, 0, 1), &[(259, 3, vec![2])]), "CCITT RLE (fax)"),
        (with(tags(1, 0, 1), &[(259, 3, vec![3])]), "CCITT Group 3 (fax)"),
        (with(tags(8, 2, 3), &[(259, 3, vec![6])]), "old-style JPEG"),
        (with(tags(8, 2, 3), &[(259, 3, vec![50000])]), "Zstandard"),
        (with(tags(8, 2, 3), &[(259, 3, vec![50001])]), "WebP"),
        (with(tags(8, 2, 3), &[(259, 3, vec![65000])]), "unknown to this program (65000)"),
        (with(tags(4, 2, 3), &[(259, 3, vec![5]), (317, 3, vec![2])]), "predictor 2 with samples of 4 bits"),
    ];
    for (tags, words) in cases {
        let text = refused(&tiff(&pixels, &tags));
        let converts = text.contains("`tiffcp -c none IN.tif OUT.tif`") || text.contains("`magick IN.tif ");
        assert!(text.contains(words) && converts, "{words}: {text}");
    }
}

#[test]
fn floats_are_read_from_0_to_1_and_refused_beyond() {
    let file = |sample: f32| {
        let pixels: Vec<u8> = (0..WIDTH * HEIGHT).flat_map(|_| sample.to_le_bytes()).collect();
        tiff(&pixels, &with(tags(32, 1, 1), &[(339, 3, vec![3])]))
    };
    for (sample, level) in [(0.0, 0), (0.5, 128), (1.0, 255)] {
        assert_eq!(colours(&file(sample))[0], level, "{sample}");
    }
    for sample in [-0.5, 1.5, 255.0, f32::NAN, f32::INFINITY] {
        let text = refused(&file(sample));
        assert!(text.contains(&format!("is {sample}, expected 0 to 1")), "{text}");
    }
}

/// A file of these pages: the level of the pixels, and what kind of page it says to be.
fn pages(of: &[(u8, u32)], last_next: u32) -> Vec<u8> {
    let mut file = b"II*\0".to_vec();
    for (level, kind) in of {
        let at = file.len() as u32 + 4;
        file.extend((at + 4).to_le_bytes());
        file.extend([*level; 4]);
        let tags = [
            (254, *kind),
            (256, 2),
            (257, 2),
            (258, 8),
            (259, 1),
            (262, 1),
            (273, at),
            (277, 1),
            (278, 2),
            (279, 4),
        ];
        file.extend((tags.len() as u16).to_le_bytes());
        for (tag, value) in tags {
            file.extend(
                [&(tag as u16).to_le_bytes()[..], &[4, 0, 1, 0, 0, 0], &value.to_le_bytes()].concat(),
            );
        }
    }
    file.extend(last_next.to_le_bytes());
    file
}

#[test]
fn the_first_page_is_taken_and_all_are_counted_but_thumbnails_and_masks() {
    let spec = byte_spec([1, 1], Fit::Stretch, ResizeFilter::Nearest, Channels::Gray);
    for (of, level, n) in [
        (&[(10, 0)][..], 10, 1),
        (&[(10, 0), (20, 2), (30, 2)], 10, 3),
        (&[(10, 1), (20, 0), (30, 4)], 20, 1),
        // Nothing but small copies: the first of them.
        (&[(10, 1), (20, 1)], 10, 2),
    ] {
        // The last directory names none, or the first one again.
        for next in [0, 12] {
            let mut preparer = Preparer::new();
            preparer.decode(&pages(of, next), MAX_PIXELS).unwrap();
            assert_eq!(preparer.n_pictures(), n, "{of:?}");
            let mut row = [0];
            preparer.write_row(&spec, &mut row).unwrap();
            assert_eq!(row[0], level, "{of:?}");
        }
    }
    let cut = pages(&[(10, 0)], 5000);
    assert!(matches!(Preparer::new().decode(&cut, MAX_PIXELS), Err(MediaError::Truncated { .. })));
}
