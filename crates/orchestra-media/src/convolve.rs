//! The two passes of a resize, over bytes: rows into one row, and a row into a shorter or longer one. They know no filter and no picture.
//!
//! Sums are whole numbers and come out the same on every processor. Both passes are written twice: plainly, and with AVX2, which multiplies two
//! pixels by two weights in each lane at once.

use crate::taps::Taps;

/// Bytes behind the end of a row that `across` may read.
pub(crate) const SLACK: usize = 8;

/// Rows that become one: row `i` begins at `firsts[i]` of `bytes` and is weighted with `weights[i]`; there are as many of both, an even number.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) firsts: &'a [usize],
    pub(crate) weights: &'a [i16],
    pub(crate) precision: u32,
}

/// The weighted sum of the rows, as many bytes as `out` has.
pub(crate) fn down(rows: Rows<'_>, out: &mut [u8]) {
    assert_eq!(rows.firsts.len(), rows.weights.len(), "as many rows as weights");
    assert!(rows.weights.len().is_multiple_of(2), "rows in pairs");
    for first in rows.firsts {
        assert!(
            first.checked_add(out.len()).is_some_and(|end| end <= rows.bytes.len()),
            "rows lie in the picture"
        );
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and every row was checked to have all the bytes of `out`.
        return unsafe { wide::down(rows, out) };
    }
    down_plain(rows, 0, out);
}

/// Byte `from` and all behind it.
fn down_plain(rows: Rows<'_>, from: usize, out: &mut [u8]) {
    let half = (1 << rows.precision) >> 1;
    for (at, out) in out.iter_mut().enumerate().skip(from) {
        let mut sum = half;
        for (first, weight) in rows.firsts.iter().zip(rows.weights) {
            sum += i32::from(rows.bytes[first + at]) * i32::from(*weight);
        }
        *out = (sum >> rows.precision).clamp(0, 255) as u8;
    }
}

/// How the pixels of a row are made of those of another. Checked once, used for every row.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    starts: &'a [u32],
    offset: usize,
    count: usize,
    weights: &'a [i16],
    precision: u32,
    channels: usize,
    /// Bytes of a row that are used.
    end: usize,
}

impl<'a> Columns<'a> {
    /// Pixel `i` is made of as many pixels as `taps` says from `starts[i] - offset` on. `channels`, 1 or 3, is the bytes of a pixel.
    pub(crate) fn new(taps: &'a Taps, offset: usize, channels: usize) -> Columns<'a> {
        let Taps { starts, count, weights, precision, .. } = taps;
        assert_eq!(weights.len(), starts.len() * count, "as many weights as pixels need");
        assert!(count.is_multiple_of(2), "pixels in pairs");
        assert!(starts.iter().all(|s| *s as usize >= offset), "no pixel begins before the row");
        let end = starts.iter().max().map_or(0, |s| *s as usize - offset + count) * channels;
        Columns { starts, offset, count: *count, weights, precision: *precision, channels, end }
    }
}

/// Makes two rows out of two others. Each of `from` has `SLACK` bytes more than its pixels.
pub(crate) fn across(columns: Columns<'_>, from: [&[u8]; 2], mut to: [&mut [u8]; 2]) {
    let Columns { starts, channels, end, .. } = columns;
    assert!(from.iter().all(|row| row.len() >= end + SLACK), "all pixels lie in the row");
    assert!(to.iter().all(|row| row.len() == starts.len() * channels), "as many bytes as the row has");
    #[cfg(target_arch = "x86_64")]
    if channels == 3 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and both rows were checked to hold all pixels and 8 bytes more.
        return unsafe { wide::across_rgb(columns, from, to) };
    }
    for (from, to) in from.iter().zip(&mut to) {
        match channels {
            1 => across_plain::<1>(columns, from, to),
            _ => across_plain::<3>(columns, from, to),
        }
    }
}

fn across_plain<const N: usize>(columns: Columns<'_>, from: &[u8], to: &mut [u8]) {
    let half = (1 << columns.precision) >> 1;
    let weights = columns.weights.chunks_exact(columns.count);
    for ((to, start), weights) in to.as_chunks_mut::<N>().0.iter_mut().zip(columns.starts).zip(weights) {
        let mut sums = [half; N];
        let pixels = &from[(*start as usize - columns.offset) * N..];
        for (pixel, weight) in pixels.as_chunks::<N>().0.iter().zip(weights) {
            for c in 0..N {
                sums[c] += i32::from(pixel[c]) * i32::from(*weight);
            }
        }
        *to = sums.map(|sum| (sum >> columns.precision).clamp(0, 255) as u8);
    }
}

/// With AVX2.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{Columns, Rows, down_plain};

    /// Two weights in one register lane.
    fn pair(weights: &[i16; 2]) -> i32 {
        i32::from(weights[0] as u16) | (i32::from(weights[1]) << 16)
    }

    /// # Safety
    /// The processor has AVX2; `out.len()` bytes from each of `rows.firsts` on lie in `rows.bytes`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn down(rows: Rows<'_>, out: &mut [u8]) {
        let half = _mm256_set1_epi32((1 << rows.precision) >> 1);
        let shift = _mm_cvtsi32_si128(rows.precision as i32);
        let base = rows.bytes.as_ptr();
        let (firsts, weights) = (rows.firsts.as_chunks::<2>().0, rows.weights.as_chunks::<2>().0);
        let blocks = out.len() / 32;
        for (block, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut sums = [half; 4];
            for (first, weights) in firsts.iter().zip(weights) {
                let weights = _mm256_set1_epi32(pair(weights));
                for side in 0..2 {
                    let at = block * 32 + side * 16;
                    // SAFETY: `at + 16 <= out.len()`, and so many bytes there are from each first byte on.
                    let (a, b) = unsafe {
                        (
                            _mm_loadu_si128(base.add(first[0] + at).cast()),
                            _mm_loadu_si128(base.add(first[1] + at).cast()),
                        )
                    };
                    let low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
                    let high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
                    sums[side * 2] = _mm256_add_epi32(sums[side * 2], _mm256_madd_epi16(low, weights));
                    sums[side * 2 + 1] =
                        _mm256_add_epi32(sums[side * 2 + 1], _mm256_madd_epi16(high, weights));
                }
            }
            let sums = sums.map(|sum| _mm256_sra_epi32(sum, shift));
            // Packing works within halves of a register; the permutation puts groups of four bytes back in order.
            let bytes = _mm256_packus_epi16(
                _mm256_packs_epi32(sums[0], sums[1]),
                _mm256_packs_epi32(sums[2], sums[3]),
            );
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            // SAFETY: `out` has 32 bytes.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
        }
        down_plain(rows, blocks * 32, out);
    }

    /// # Safety
    /// The processor has AVX2; each pixel that `columns` takes lies in both rows of `from`, with 8 bytes behind the last.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn across_rgb(columns: Columns<'_>, from: [&[u8]; 2], to: [&mut [u8]; 2]) {
        // Of two pixels, red beside red, green beside green, blue beside blue, each byte widened to 16 bits.
        let spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
        ));
        let half = _mm256_set1_epi32((1 << columns.precision) >> 1);
        let shift = _mm_cvtsi32_si128(columns.precision as i32);
        let bases = from.map(<[u8]>::as_ptr);
        let weights = columns.weights.chunks_exact(columns.count);
        let [first, second] = to;
        let outs = first.as_chunks_mut::<3>().0.iter_mut().zip(second.as_chunks_mut::<3>().0);
        for (((out0, out1), start), weights) in outs.zip(columns.starts).zip(weights) {
            let mut at = (*start as usize - columns.offset) * 3;
            let mut sums = half;
            for weights in weights.as_chunks::<2>().0 {
                // SAFETY: two pixels are six bytes, and two more may be read behind them.
                let (a, b) = unsafe {
                    (_mm_loadl_epi64(bases[0].add(at).cast()), _mm_loadl_epi64(bases[1].add(at).cast()))
                };
                let pixels = _mm256_shuffle_epi8(_mm256_set_m128i(b, a), spread);
                sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pixels, _mm256_set1_epi32(pair(weights))));
                at += 6;
            }
            let words = _mm256_packs_epi32(_mm256_sra_epi32(sums, shift), half);
            let bytes = _mm256_packus_epi16(words, words);
            let [r, g, b, _] = _mm256_cvtsi256_si32(bytes).to_le_bytes();
            *out0 = [r, g, b];
            let [r, g, b, _] = _mm256_extract_epi32::<4>(bytes).to_le_bytes();
            *out1 = [r, g, b];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 167 + at / 251 * 13) as u8).collect()
    }

    #[test]
    fn the_chosen_version_of_both_passes_gives_what_the_plain_one_gives() {
        let source = bytes(20_000);
        for count in [2, 4, 6, 10] {
            let weights: Vec<i16> = (0..count * 300).map(|at| ((at * 7919) % 9000) as i16 - 2000).collect();
            for length in [1, 15, 31, 32, 33, 64, 999] {
                let firsts: Vec<usize> = (0..count).map(|row| row * 1013).collect();
                let rows =
                    Rows { bytes: &source, firsts: &firsts, weights: &weights[..count], precision: 13 };
                let (mut chosen, mut plain) = (vec![1; length], vec![2; length]);
                down(rows, &mut chosen);
                down_plain(rows, 0, &mut plain);
                assert_eq!(chosen, plain, "{count} rows of {length}");
            }
            let starts: Vec<u32> = (0..300).map(|at| 5 + at * 3 / 2).collect();
            let mut taps = Taps::default();
            (taps.starts, taps.count, taps.weights, taps.precision) = (starts, count, weights.clone(), 13);
            for channels in [1, 3] {
                let columns = Columns::new(&taps, 5, channels);
                let length = (300 * 3 / 2 + count) * channels;
                let from = [&source[..length + SLACK], &source[5000..][..length + SLACK]];
                let (mut a, mut b) = (vec![1; 300 * channels], vec![1; 300 * channels]);
                across(columns, from, [&mut a, &mut b]);
                for (from, chosen) in from.iter().zip([a, b]) {
                    let mut plain = vec![2; 300 * channels];
                    if channels == 1 {
                        across_plain::<1>(columns, from, &mut plain);
                    } else {
                        across_plain::<3>(columns, from, &mut plain);
                    }
                    assert_eq!(chosen, plain, "{count} pixels of {channels}");
                }
            }
        }
    }
}
