//! How many items a source names, as far as that is known. Counts nothing itself.

use std::iter::Sum;

/// How many items a source names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// So many: the list is complete.
    Known(u64),
    /// So many up to now: listing goes on.
    Growing(u64),
}

impl Extent {
    /// The number of all items, once it is known.
    pub fn known(self) -> Option<u64> {
        match self {
            Extent::Known(n) => Some(n),
            Extent::Growing(_) => None,
        }
    }

    /// Items that are listed up to now.
    pub fn listed(self) -> u64 {
        let (Extent::Known(n) | Extent::Growing(n)) = self;
        n
    }
}

impl Default for Extent {
    fn default() -> Self {
        Extent::Known(0)
    }
}

/// Of several sources together: known only if that of each is.
impl Sum for Extent {
    fn sum<I: Iterator<Item = Self>>(extents: I) -> Self {
        extents.fold(Extent::default(), |a, b| match (a, b) {
            (Extent::Known(a), Extent::Known(b)) => Extent::Known(a.saturating_add(b)),
            _ => Extent::Growing(a.listed().saturating_add(b.listed())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_known_only_if_each_part_is() {
        use Extent::{Growing, Known};
        let sum = |parts: &[Extent]| parts.iter().copied().sum::<Extent>();
        assert_eq!(sum(&[]), Known(0));
        assert_eq!(sum(&[Known(2), Known(3)]), Known(5));
        assert_eq!(sum(&[Known(2), Growing(3), Known(1)]), Growing(6));
        assert_eq!((Growing(3).known(), Growing(3).listed()), (None, 3));
    }
}
