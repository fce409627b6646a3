//! Asking for memory at the pace of the products.

use super::{Line, Simd};

/// Bytes ahead at which a walk alone asks where lines are asked for once: of 4 to 16 KiB, on Zen 5 the fastest for every format
/// but q8_0, which is as fast with 10.
const ONCE_AHEAD: usize = 8 << 10;

/// Lines to come, asked for between the products of quads of weights (or whatever a walk takes at a time): each quad asks for
/// one of them, or each two.
///
/// On Intel a line is asked for twice: for the second-level cache, which can wait for more lines at once, and later, closer to
/// its use, for the first-level one; on Emerald Rapids both together are a tenth faster than one of them. On AMD once, since
/// the second ask is in the way of the first: on Zen 5 (Zen 4 was not measured) a core alone reads weights at 0.80 to 0.85 of
/// its rate by both, at 0.93 by those for the first-level cache, and 8 rows of attention over 8,192 bf16 tokens take 0.73 of
/// the time.
///
/// A core that waits for as many lines as it can holds up whoever asks for the next, so asks are far from each other, with
/// products between them: against a block's asks in front of its products, 8 inputs of q4_0 took 6 % less, of bf16 6 %, of
/// q8_0 5 %.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks {
    near: *const u8,
    far: *const u8,
    lines: usize,
    every: usize,
}

impl Asks {
    /// Asks for nothing.
    pub(crate) const NONE: Self = Self { near: std::ptr::null(), far: std::ptr::null(), lines: 0, every: 1 };

    /// Of so many lines from `from` on, those that lie so many bytes ahead for the first-level cache, and those twice as far
    /// ahead for the second; one every 1 or 2 quads.
    #[inline(always)]
    pub(crate) fn ahead(from: *const u8, bytes: usize, lines: usize, every: usize) -> Self {
        Self { near: from.wrapping_add(bytes), far: from.wrapping_add(2 * bytes), lines, every }
    }

    /// The first lines, and the others.
    #[inline(always)]
    pub(crate) fn split_at(self, lines: usize) -> (Self, Self) {
        let bytes = lines * size_of::<Line>();
        let [near, far] = [self.near, self.far].map(|from| from.wrapping_add(bytes));
        (Self { lines, ..self }, Self { near, far, lines: self.lines - lines, ..self })
    }

    /// The first half, which has one more if they are odd, and the second.
    #[inline(always)]
    pub(crate) fn halves(self) -> (Self, Self) {
        self.split_at(self.lines.div_ceil(2))
    }

    /// Bytes ahead at which a walk asks that takes no turns with another; with turns it would be so many.
    #[inline(always)]
    pub(crate) fn alone<S: Simd>(bytes: usize) -> usize {
        if S::ASKS_TWICE { bytes } else { ONCE_AHEAD }
    }

    /// What is due amid the products of the quad of this number.
    #[inline(always)]
    pub(crate) fn amid<S: Simd>(&self, quad: usize) {
        let line = quad / self.every;
        if quad.is_multiple_of(self.every) && line < self.lines {
            S::prefetch(self.near.wrapping_add(line * size_of::<Line>()));
        }
    }

    /// What is due after them.
    #[inline(always)]
    pub(crate) fn after<S: Simd>(&self, quad: usize) {
        let line = quad / self.every;
        if S::ASKS_TWICE && (quad + 1).is_multiple_of(self.every) && line < self.lines {
            S::prefetch_far(self.far.wrapping_add(line * size_of::<Line>()));
        }
    }

    /// All at once.
    #[inline(always)]
    pub(crate) fn now<S: Simd>(&self) {
        for quad in 0..self.lines * self.every {
            self.amid::<S>(quad);
            self.after::<S>(quad);
        }
    }
}
