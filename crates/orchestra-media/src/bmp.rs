//! Reads the headers of a BMP, for what its decoder does not say. It decodes no pixels.

/// What the headers of a BMP say. That of OS/2 1 has sides of 16 bits and is not packed.
pub(crate) struct BmpHeader<'a> {
    bytes: &'a [u8],
    size: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
    bits: u16,
    compression: u32,
}

impl BmpHeader<'_> {
    pub(crate) const MAGICK: &'static str = "magick IN.bmp OUT.png";

    /// `None`: it is cut.
    pub(crate) fn of(bytes: &[u8]) -> Option<BmpHeader<'_>> {
        let short = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let size = long(14)?;
        if size == 12 {
            let (width, height) = (short(18)?.into(), short(20)?.into());
            return Some(BmpHeader { bytes, size, width, height, bits: short(24)?, compression: 0 });
        }
        // A negative height means rows from top to bottom.
        let side = |at| long(at).map(|side| side.cast_signed().unsigned_abs());
        let (width, height) = (side(18)?, side(22)?);
        let compression = if size < 40 { 0 } else { long(30)? };
        Some(BmpHeader { bytes, size, width, height, bits: short(28)?, compression })
    }

    fn number(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// Of OS/2 1, of Windows, and of OS/2 2, whole or not.
    pub(crate) fn has_known_size(&self) -> bool {
        matches!(self.size, 12 | 16 | 40 | 52 | 56 | 64 | 108 | 124)
    }

    /// The byte behind the pixels.
    pub(crate) fn end(&self) -> Option<usize> {
        let length = match self.compression {
            0 | 3 => {
                let line = (u64::from(self.width) * u64::from(self.bits)).div_ceil(32) * 4;
                usize::try_from(line.checked_mul(self.height.into())?).ok()?
            }
            _ => self.number(34)? as usize,
        };
        length.checked_add(self.number(10)? as usize)
    }

    /// What its decoder does not read.
    pub(crate) fn what_is_not_read(&self) -> Option<String> {
        let name = match (self.compression, self.bits) {
            _ if !matches!(self.size, 12 | 40 | 52 | 56 | 108 | 124) => {
                let words = "expected one of Windows or of OS/2 1, with 12, 40, 52, 56, 108 or 124";
                return Some(format!("its header has {} bytes, {words}", self.size));
            }
            (0, 1 | 2 | 4 | 8 | 16 | 24 | 32) | (1, 8) | (2, 4) => return None,
            (3, 16 | 32) => return self.wrong_masks(),
            (0, _) => "none",
            (1 | 2, _) => "run lengths",
            (3, _) => "colour masks",
            (4, _) => "JPEG",
            (5, _) => "PNG",
            (6, _) => "colour masks with alpha",
            (11..=13, _) => "CMYK",
            _ => "unknown to this program",
        };
        Some(format!("its compression is {name} ({}), with {} bits a pixel", self.compression, self.bits))
    }

    /// Each colour has a mask, and each mask is one run of bits.
    fn wrong_masks(&self) -> Option<String> {
        let masks = [54, 58, 62].map(|at| self.number(at).unwrap_or(0));
        let alpha = self.number(66).filter(|_| self.size >= 56).unwrap_or(0);
        let is_run = |mask: &u32| {
            let run = mask.unbounded_shr(mask.trailing_zeros());
            run & run.wrapping_add(1) == 0 && (self.bits == 32 || mask >> 16 == 0)
        };
        let is_right = masks.iter().all(|mask| *mask != 0 && is_run(mask)) && is_run(&alpha);
        let [red, green, blue] = masks;
        let found = format!("its colour masks are {red:#x}, {green:#x}, {blue:#x} and {alpha:#x} for alpha");
        (!is_right).then(|| format!("{found}, expected a run of bits for each colour"))
    }
}
