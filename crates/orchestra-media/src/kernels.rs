//! The inner loops over pixels, compiled twice: plainly, and for AVX2, chosen at run time. They know no spec and no row.
//!
//! Both versions do the same operations in the same order (no fused multiply-add), so a result never depends on the machine.

/// Defines a module `name` with `plain` and, choosing by the processor, `run`.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        pub(crate) mod $name {
            #[allow(unused_imports, reason = "only some kernels use what stands beside them")]
            use super::*;

            /// For any processor.
            #[inline(always)]
            pub(crate) fn plain($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn wide($($arg: $type),*) {
                plain($($arg),*);
            }

            /// The fastest version that this processor has.
            pub(crate) fn run($($arg: $type),*) {
                #[cfg(target_arch = "x86_64")]
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the feature that `wide` is compiled for.
                    return unsafe { wide($($arg),*) };
                }
                plain($($arg),*);
            }
        }
    };
}

/// One multiply and one add per channel: `pixel * factor + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Affine {
    pub(crate) factor: [f32; 3],
    pub(crate) offset: [f32; 3],
}

/// Channels repeat after 3 values and registers after 8: 24 bring both together.
const PATTERN: usize = 24;

/// `channels` repeated to a whole number of registers.
fn pattern(channels: [f32; 3]) -> [f32; PATTERN] {
    std::array::from_fn(|at| channels[at % 3])
}

kernel! {
    /// `out[i] = source[i] * factor + offset`, one channel.
    line(source: &[u8], factor: f32, offset: f32, out: &mut [f32]) {
        for (out, pixel) in out.iter_mut().zip(source) {
            *out = f32::from(*pixel) * factor + offset;
        }
    }
}

kernel! {
    /// Three interleaved channels into three planes, each channel with its own factor and offset.
    planes(source: &[u8], affine: &Affine, p0: &mut [f32], p1: &mut [f32], p2: &mut [f32]) {
        let Affine { factor, offset } = *affine;
        let pixels = source.as_chunks::<3>().0;
        let count = pixels.len();
        let (p0, p1, p2) = (&mut p0[..count], &mut p1[..count], &mut p2[..count]);
        for (at, pixel) in pixels.iter().enumerate() {
            p0[at] = f32::from(pixel[0]) * factor[0] + offset[0];
            p1[at] = f32::from(pixel[1]) * factor[1] + offset[1];
            p2[at] = f32::from(pixel[2]) * factor[2] + offset[2];
        }
    }
}

kernel! {
    /// Three interleaved channels stay interleaved.
    interleaved(source: &[u8], affine: &Affine, out: &mut [f32]) {
        let (factor, offset) = (pattern(affine.factor), pattern(affine.offset));
        let (groups, rest) = source.as_chunks::<PATTERN>();
        let (out_groups, out_rest) = out.as_chunks_mut::<PATTERN>();
        for (out, group) in out_groups.iter_mut().zip(groups) {
            for at in 0..PATTERN {
                out[at] = f32::from(group[at]) * factor[at] + offset[at];
            }
        }
        for (at, (out, pixel)) in out_rest.iter_mut().zip(rest).enumerate() {
            *out = f32::from(*pixel) * factor[at] + offset[at];
        }
    }
}

kernel! {
    /// One channel into three interleaved ones.
    spread(source: &[u8], affine: &Affine, out: &mut [f32]) {
        let Affine { factor, offset } = *affine;
        for (out, pixel) in out.as_chunks_mut::<3>().0.iter_mut().zip(source) {
            let pixel = f32::from(*pixel);
            *out = [0, 1, 2].map(|c| pixel * factor[c] + offset[c]);
        }
    }
}

kernel! {
    /// Three interleaved channels into three planes, as they are.
    byte_planes(source: &[u8], p0: &mut [u8], p1: &mut [u8], p2: &mut [u8]) {
        let pixels = source.as_chunks::<3>().0;
        let count = pixels.len();
        let (p0, p1, p2) = (&mut p0[..count], &mut p1[..count], &mut p2[..count]);
        for (at, pixel) in pixels.iter().enumerate() {
            (p0[at], p1[at], p2[at]) = (pixel[0], pixel[1], pixel[2]);
        }
    }
}

kernel! {
    /// Red, green, blue to blue, green, red, and back.
    swap(source: &[u8], out: &mut [u8]) {
        for (out, [r, g, b]) in out.as_chunks_mut::<3>().0.iter_mut().zip(source.as_chunks::<3>().0) {
            *out = [*b, *g, *r];
        }
    }
}

kernel! {
    /// `sums[i] += line[i] * weight`.
    add_weighted(line: &[u8], weight: i32, sums: &mut [i32]) {
        for (sum, pixel) in sums.iter_mut().zip(line) {
            *sum += i32::from(*pixel) * weight;
        }
    }
}

kernel! {
    /// The levels of sums with `precision` bits behind their point.
    round_sums(sums: &[i32], precision: u32, out: &mut [u8]) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = (sum >> precision).clamp(0, 255) as u8;
        }
    }
}

/// Pillow's "L": ITU-R 601-2 luma in 16 bit fixed point.
#[inline(always)]
pub(crate) fn luma_of(r: u8, g: u8, b: u8) -> u8 {
    ((19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + 0x8000) >> 16) as u8
}

/// `ink` over `ground` with opacity `alpha` of 255, rounded to the nearest level.
#[inline(always)]
pub(crate) fn blend(ink: u8, ground: u8, alpha: u8) -> u8 {
    let sum = u32::from(ink) * u32::from(alpha) + u32::from(ground) * u32::from(255 - alpha) + 128;
    ((sum + (sum >> 8)) >> 8) as u8
}

kernel! {
    /// Red, green, blue to luma.
    luma(source: &[u8], out: &mut [u8]) {
        for (out, [r, g, b]) in out.iter_mut().zip(source.as_chunks::<3>().0) {
            *out = luma_of(*r, *g, *b);
        }
    }
}

kernel! {
    /// Red, green, blue, alpha over a ground, to red, green, blue.
    blend_rgb(source: &[u8], ground: [u8; 3], out: &mut [u8]) {
        for (out, [r, g, b, a]) in out.as_chunks_mut::<3>().0.iter_mut().zip(source.as_chunks::<4>().0) {
            *out = [blend(*r, ground[0], *a), blend(*g, ground[1], *a), blend(*b, ground[2], *a)];
        }
    }
}

kernel! {
    /// Red, green, blue, alpha over a gray ground, to luma.
    blend_luma(source: &[u8], ground: u8, out: &mut [u8]) {
        for (out, [r, g, b, a]) in out.iter_mut().zip(source.as_chunks::<4>().0) {
            *out = luma_of(blend(*r, ground, *a), blend(*g, ground, *a), blend(*b, ground, *a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFFINE: Affine =
        Affine { factor: [0.017_124_75, 0.017_507, 0.017_429_2], offset: [-2.1179, -2.0357, -1.8044] };

    fn pixels(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 167 + at / 251) as u8).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn the_chosen_version_gives_the_same_bits_as_the_plain_one() {
        for count in [0, 1, 2, 7, 8, 9, 31, 257, 1000] {
            let source = pixels(count * 3);
            let (mut a, mut b) = (vec![0.0; count * 3], vec![1.0; count * 3]);
            line::plain(&source, AFFINE.factor[0], AFFINE.offset[0], &mut a);
            line::run(&source, AFFINE.factor[0], AFFINE.offset[0], &mut b);
            assert_eq!(bits(&a), bits(&b));
            interleaved::plain(&source, &AFFINE, &mut a);
            interleaved::run(&source, &AFFINE, &mut b);
            assert_eq!(bits(&a), bits(&b));
            spread::plain(&source[..count], &AFFINE, &mut a);
            spread::run(&source[..count], &AFFINE, &mut b);
            assert_eq!(bits(&a), bits(&b));
            for (out, run) in [(&mut a, false), (&mut b, true)] {
                let (p0, rest) = out.split_at_mut(count);
                let (p1, p2) = rest.split_at_mut(count);
                let kernel = if run { planes::run } else { planes::plain };
                kernel(&source, &AFFINE, p0, p1, p2);
            }
            assert_eq!(bits(&a), bits(&b));
        }
    }

    #[test]
    fn luma_is_the_published_formula_and_keeps_gray() {
        for v in 0..=255 {
            assert_eq!(luma_of(v, v, v), v);
        }
        assert_eq!([luma_of(255, 0, 0), luma_of(0, 255, 0), luma_of(0, 0, 255)], [76, 150, 29]);
    }

    #[test]
    fn blending_rounds_to_the_nearest_level() {
        for ink in (0..=255).step_by(5) {
            for ground in (0..=255).step_by(3) {
                for alpha in 0..=255 {
                    let exact = (f64::from(ink) * f64::from(alpha)
                        + f64::from(ground) * f64::from(255 - alpha))
                        / 255.0;
                    assert_eq!(blend(ink, ground, alpha), exact.round() as u8, "{ink} {ground} {alpha}");
                }
            }
        }
    }
}
