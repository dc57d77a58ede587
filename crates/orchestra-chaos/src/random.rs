//! Numbers that look random and are the same for the same seed (splitmix64). Not for secrets.

/// Where the sequence stands.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of these, each with the same chance; `None` of none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let n = of.len() as u64;
        of.get(self.next().checked_rem(n)? as usize).copied() // below `n`, which is a `usize`
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again_and_another_seed_gives_others() {
        let first = |seed| {
            let mut random = Random::new(seed);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }

    #[test]
    fn everyone_is_picked_about_as_often() {
        let mut random = Random::new(1);
        let mut times = [0u32; 5];
        for _ in 0..5_000 {
            times[random.pick(&[0, 1, 2, 3, 4]).unwrap()] += 1;
        }
        assert!(times.iter().all(|n| (800..1_200).contains(n)), "{times:?}");
        assert_eq!(random.pick::<u8>(&[]), None);
        assert!((0..1_000).map(|_| random.unit()).all(|u| (0.0..1.0).contains(&u)));
    }
}
