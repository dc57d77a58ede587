//! What a decoder does to samples before they are a picture: 16 bits to 8, an alpha channel that says nothing, gray with alpha. In place.

/// Replaces each sample of `N` bytes by one byte.
pub(crate) fn narrow<const N: usize>(pixels: &mut Vec<u8>, one: impl Fn([u8; N]) -> u8) {
    let count = pixels.len() / N;
    for at in 0..count {
        let mut sample = [0; N];
        sample.copy_from_slice(&pixels[at * N..][..N]);
        pixels[at] = one(sample);
    }
    pixels.truncate(count);
}

/// Removes an alpha channel, of 2 or of 4, that is opaque everywhere, so that such a picture is not composited later. Gives how many
/// channels are left.
pub(crate) fn drop_opaque_alpha(pixels: &mut Vec<u8>, channels: usize) -> usize {
    if channels % 2 == 1 || pixels.chunks_exact(channels).any(|pixel| pixel[channels - 1] != 255) {
        return channels;
    }
    let count = pixels.len() / channels;
    for at in 0..count {
        pixels.copy_within(at * channels..at * channels + channels - 1, at * (channels - 1));
    }
    pixels.truncate(count * (channels - 1));
    channels - 1
}

/// Gray and alpha as red, green, blue and alpha, in place: few pictures are like that, so nothing else knows it.
pub(crate) fn gray_to_colour(pixels: &mut Vec<u8>) {
    let count = pixels.len() / 2;
    pixels.resize(count * 4, 0);
    for at in (0..count).rev() {
        let [gray, alpha] = [pixels[at * 2], pixels[at * 2 + 1]];
        pixels[at * 4..][..4].copy_from_slice(&[gray, gray, gray, alpha]);
    }
}
