//! Rows of f32 that start on a cache line.

use crate::simd::{LANES, Line};
use std::ops::{Deref, DerefMut};

/// A buffer of f32 that starts on a cache line, grows to the largest size asked for and is reused.
///
/// Kernels load and store 64 bytes at a time. Of a plain vector, which starts on any 16 bytes, each of them touches two
/// lines: with 16 rows of a model of 11 M parameters a pass took a tenth longer.
#[derive(Debug, Default, Clone)]
pub struct AlignedFloats {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedFloats {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The buffer with `len` elements; old contents stay or are 0, and are meant to be overwritten.
    pub fn sized(&mut self, len: usize) -> &mut [f32] {
        self.lines.resize(len.div_ceil(LANES), Line([0.0; LANES]));
        self.len = len;
        self
    }

    /// Forgets all elements.
    pub fn clear(&mut self) {
        self.sized(0);
    }

    /// Puts `values` behind what is there.
    pub fn extend_from_slice(&mut self, values: &[f32]) {
        let start = self.len;
        self.sized(start + values.len())[start..].copy_from_slice(values);
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is 16 f32 without padding, and there are lines for `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_shrinks_and_starts_on_a_line() {
        let mut floats = AlignedFloats::new();
        assert!(floats.is_empty());
        for len in [1, 40, 17, 1000] {
            floats.sized(len).fill(len as f32);
            assert!(floats.len() == len && floats.as_ptr().addr().is_multiple_of(64));
        }
        floats.clear();
        floats.extend_from_slice(&[1.0; 20]);
        floats.extend_from_slice(&[2.0, 3.0]);
        assert_eq!(floats[18..], [1.0, 1.0, 2.0, 3.0]);
    }
}
