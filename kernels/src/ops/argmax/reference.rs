//! One comparison after another.
//!
//! Strictly greater replaces, so the first of equals stays: the rule is the loop.
//! A NaN ends the search with `None` wherever it stands.

/// The id of the greatest value, lowest on ties; `None` if empty or if there is a NaN.
pub fn argmax(row: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, value) in (0..).zip(row) {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, best)| *value > best) {
            best = Some((id, *value));
        }
    }
    best.map(|(id, _)| id)
}
