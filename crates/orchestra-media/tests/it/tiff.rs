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
    let without = |tag| tags(8, 1, 1).into_iter().filter(|other| other.0 != tag).collect();
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
        (with(tags(8, 2, 5), &[(338, 3, vec![0, 2])]), "kinds [0, 2]"),
        (with(tags(8, 2, 5), &[(338, 3, vec![2, 2])]), "kinds [2, 2]"),
        (with(tags(8, 2, 4), &[(338, 3, vec![3])]), "kinds [3]"),
        (with(tags(8, 2, 3), &[(338, 3, vec![2])]), "a pixel has 3 samples"),
        (tags(8, 2, 1), "a pixel has 1 samples, expected 3 at least"),
        (with(tags(8, 1, 1), &[(32997, 4, vec![4])]), "a volume of 4 slices"),
        (
            with(tags(8, 1, 1), &[(273, 4, vec![0])]),
            "1 of its 1 strips or tiles are not in the file (sparse)",
        ),
        (with(tags(8, 1, 1), &[(259, 3, vec![8]), (279, 4, vec![0])]), "(sparse)"),
        (with(tags(8, 1, 1), &[(279, 4, vec![9])]), "a strip or tile has 9 bytes, expected 777"),
        (with(tags(8, 1, 1), &[(273, 4, vec![8, 9]), (279, 4, vec![5, 5])]), "2 strips or tiles, expected 1"),
        (without(262), "it does not say what its samples mean (tag 262)"),
        (without(279), "it does not say how long its strips or tiles are (tag 279)"),
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
        let commands =
            ["`tiffcp -c none IN.tif OUT.tif`", "`magick IN.tif ", "`gdal_translate IN.tif", "`python3 -c "];
        let converts = commands.iter().any(|command| text.contains(command));
        assert!(text.contains(words) && converts, "{words}: {text}");
    }
}

#[test]
fn planes_that_no_directory_names_are_refused_and_a_page_that_was_cut_out_of_them_is_read() {
    let plane = (WIDTH * HEIGHT) as usize;
    let text = |text: &str| (270, 2, text.bytes().map(u32::from).collect());
    for description in [
        "ImageJ=1.11a\nimages=3\nslices=3\n".to_owned(),
        format!("{{\"axes\": \"ZYX\", \"shape\": [3, {HEIGHT}, {WIDTH}]}}"),
        format!("shape=(3, {HEIGHT}, {WIDTH})"),
    ] {
        let file = |n| tiff(&vec![7; n * plane], &with(tags(8, 1, 1), &[text(&description)]));
        assert!(refused(&file(3)).contains("that 3 planes are in it, and it has 1 pages"), "{description}");
        assert_eq!(colours(&file(1)), vec![7; plane * 3], "{description}");
    }
    let of_one = format!("{{\"shape\": [{HEIGHT}, {WIDTH}]}}");
    for description in ["ImageJ=1.11a\nimages=1\n", "{\"shape\": [", &of_one] {
        let file = tiff(&vec![7; 3 * plane], &with(tags(8, 1, 1), &[text(description)]));
        assert_eq!(colours(&file), vec![7; plane * 3], "{description}");
    }
}

#[test]
fn a_predictor_is_nothing_without_a_compression_that_has_one() {
    let pixels = packed(8, |x, y| (x * 3 + y * 5) as u8);
    let lines = pixels.chunks(WIDTH as usize).flat_map(|line| [&[WIDTH as u8 - 1], line].concat());
    for (compression, data) in [(1, pixels.clone()), (32773, lines.collect())] {
        let length = (279, 4, vec![data.len() as u32]);
        let tags = with(tags(8, 1, 1), &[(259, 3, vec![compression]), (317, 3, vec![2]), length]);
        let shown: Vec<u8> = pixels.iter().flat_map(|level| [*level; 3]).collect();
        assert_eq!(colours(&tiff(&data, &tags)), shown, "{compression}");
    }
}

#[test]
fn group_4_is_read_without_the_mark_behind_its_last_line() {
    // Each line is that above it: one bit. Behind the last one are three to fill up the byte.
    let file = |data: &[u8]| {
        let length = (279, 4, vec![data.len() as u32]);
        tiff(data, &with(tags(1, 0, 1), &[(259, 3, vec![4]), length]))
    };
    assert_eq!(colours(&file(&[0xff, 0xff, 0xf8])), vec![255; (WIDTH * HEIGHT * 3) as usize]);
    assert!(refused(&file(&[0xff])).contains("cut off"));
    assert!(refused(&file(&[0x02, 0xff, 0xff])).contains("its CCITT Group 4 (fax) is damaged"));
}

/// The file is one of libtiff: white, in tiles of 16 by 16 pixels, with a predictor.
#[test]
fn tiles_of_lzw_are_read_whose_last_code_stands_for_pixels_beyond_the_edge() {
    let spec = byte_spec([37, 37], Fit::Stretch, ResizeFilter::Bilinear, Channels::Gray);
    assert_eq!(row_of(&golden("lzw-tiles.tiff"), &spec), [255; 37 * 37]);
}

#[test]
fn a_tag_whose_values_are_not_there_is_not_taken_for_its_default() {
    let file = tiff(&[7; (WIDTH * HEIGHT * 3) as usize], &tags(8, 2, 3));
    // Three numbers of 16 bits, elsewhere in the file.
    let entry = file.windows(8).position(|head| head == [2, 1, 3, 0, 3, 0, 0, 0]).unwrap();
    let longs = [12, 0, 0, 0];
    for (at, bytes) in [(8, &[0xff, 0xff, 0xff, 0x7f]), (2, &[11, 0, 3, 0]), (4, &[0; 4]), (2, &longs)] {
        let mut file = file.clone();
        file[entry + at..][..4].copy_from_slice(bytes);
        assert!(refused(&file).contains("its entry 258 has no whole numbers"), "{at} {bytes:?}");
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

/// Where the second of some pages is.
enum Second {
    Next,
    /// Within the directory of the first.
    Inner,
}

/// A file of these pages: the level of the pixels, and what kind of page it says to be.
fn pages(of: &[(u8, u32)], second: &Second, last_next: u32) -> Vec<u8> {
    let mut file = b"II*\0".to_vec();
    for (index, (level, kind)) in of.iter().enumerate() {
        let at = file.len() as u32 + 4;
        let is_inner = index == 1 && matches!(second, Second::Inner);
        file.extend((if is_inner { 0 } else { at + 4 }).to_le_bytes());
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
            // A directory of eleven entries, where the next one is, and pixels.
            (
                330,
                if index == 0 && matches!(second, Second::Inner) { at + 4 + 2 + 12 * 11 + 4 + 4 } else { 0 },
            ),
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
    for (of, second, level, n) in [
        (&[(10, 0)][..], Second::Next, 10, 1),
        (&[(10, 0), (20, 2), (30, 2)], Second::Next, 10, 3),
        (&[(10, 1), (20, 0), (30, 4)], Second::Next, 20, 1),
        // Nothing but small copies: the first of them.
        (&[(10, 1), (20, 1)], Second::Next, 10, 2),
        // Cameras have a small copy first, and the picture in it.
        (&[(10, 1), (20, 0)], Second::Inner, 20, 1),
        (&[(10, 0), (20, 0)], Second::Inner, 10, 2),
        (&[(10, 0), (20, 1)], Second::Inner, 10, 1),
    ] {
        // The last directory names none, or the first one again.
        for next in [0, 12] {
            let mut preparer = Preparer::new();
            preparer.decode(&pages(of, &second, next), MAX_PIXELS).unwrap();
            assert_eq!(preparer.n_pictures(), n, "{of:?}");
            let mut row = [0];
            preparer.write_row(&spec, &mut row).unwrap();
            assert_eq!(row[0], level, "{of:?}");
        }
    }
    let cut = pages(&[(10, 0)], &Second::Next, 5000);
    assert!(matches!(Preparer::new().decode(&cut, MAX_PIXELS), Err(MediaError::Truncated { .. })));
}
