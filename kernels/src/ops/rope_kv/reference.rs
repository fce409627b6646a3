//! The rotation of pairs in f64, from the formula of the frequencies.
//!
//! Frequencies are computed here again, from theta, instead of taken from the table under test.
//! Scalings are tested against their formulas, frequency by frequency.

/// Rotates every head of `x` (`[rows, heads * head_dim]`), with `theta` and no scaling.
pub fn rotate(x: &[f32], positions: &[u32], head_dim: usize, theta: f64) -> Vec<f64> {
    let (half, width) = (head_dim / 2, x.len() / positions.len());
    let mut out: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (row, position) in out.chunks_exact_mut(width).zip(positions) {
        for head in row.chunks_exact_mut(head_dim) {
            for i in 0..half {
                let angle = f64::from(*position) / theta.powf(2.0 * i as f64 / head_dim as f64);
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + half] = b * angle.cos() + a * angle.sin();
            }
        }
    }
    out
}
