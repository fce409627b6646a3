//! Rotary frequencies, and the cosines and sines of a pass's positions.
//!
//! Angles are taken in f64 and rounded once, so a position's values do not drift with its size. They are computed
//! once a pass into [`RopeRows`] and serve every layer; a table over all positions would cost a start-up that grows
//! with the context a model claims, for a saving of about one per cent of a step.

use crate::floats::AlignedFloats;

/// How the frequencies are stretched beyond the trained context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor` (position interpolation, Chen et al., 2306.15595).
    Linear {
        /// The stretch.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, a ramp between (Llama 3.1, `rope_type = "llama3"`).
    Llama3 {
        /// The stretch of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context the model was first trained on.
        original_max_position_embeddings: usize,
    },
    /// Fast dimensions kept, slow ones divided, a ramp over the dimensions between, cosines and sines scaled.
    Yarn(Yarn),
}

/// YaRN's settings (Peng et al., 2309.00071), named and bounded as in transformers' `_compute_yarn_parameters`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// The stretch of slow dimensions.
    pub factor: f64,
    /// The context the model was first trained on.
    pub original_max_position_embeddings: usize,
    /// Dimensions that turn at least this often over the original context are kept.
    pub beta_fast: f64,
    /// Dimensions that turn at most this often over the original context are divided.
    pub beta_slow: f64,
    /// What cosines and sines are multiplied by.
    pub attention_factor: f64,
    /// Whether the ramp begins and ends at whole dimensions.
    pub truncate: bool,
}

impl Yarn {
    /// The share of frequency `i` that is kept as trained.
    fn kept(&self, i: usize, head_dim: usize, theta: f64) -> f64 {
        let original = self.original_max_position_embeddings as f64;
        let dimension_of =
            |turns: f64| head_dim as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
        let (low, high) = (dimension_of(self.beta_fast), dimension_of(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        // As there: a ramp without length would divide by zero.
        let high = if low == high { high + 0.001 } else { high };
        1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// The inverse frequencies of a model.
#[derive(Debug, Clone)]
pub struct RopeTable {
    inv_freq: Vec<f64>,
    /// What cosines and sines are multiplied by; 1 except under YaRN.
    attention_factor: f64,
}

impl RopeTable {
    /// `theta^(-2i / head_dim)` for i below head_dim / 2, scaled. Panics if `head_dim` is odd.
    pub fn new(head_dim: usize, theta: f64, scaling: RopeScaling) -> Self {
        assert!(head_dim.is_multiple_of(2), "head_dim must be even, got {head_dim}");
        let inv_freq = (0..head_dim / 2).map(|i| {
            let frequency = theta.powf(-2.0 * i as f64 / head_dim as f64);
            let (kept, factor) = match scaling {
                RopeScaling::None => (1.0, 1.0),
                RopeScaling::Linear { factor } => (0.0, factor),
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                    let turns = original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (kept.clamp(0.0, 1.0), factor)
                }
                RopeScaling::Yarn(yarn) => (yarn.kept(i, head_dim, theta), yarn.factor),
            };
            kept * frequency + (1.0 - kept) * frequency / factor
        });
        let attention_factor = if let RopeScaling::Yarn(yarn) = scaling { yarn.attention_factor } else { 1.0 };
        Self { inv_freq: inv_freq.collect(), attention_factor }
    }

    /// The same with frequency i divided by `factors[i]`, as GGUF files write a scaling out. Panics unless there is one
    /// factor for each of the head_dim / 2 frequencies.
    pub fn divided(mut self, factors: &[f32]) -> Self {
        assert_eq!(factors.len(), self.inv_freq.len(), "factors must be [head_dim / 2]");
        self.inv_freq.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= f64::from(*factor));
        self
    }

    /// Rotated dimensions of a head.
    pub fn head_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Cosine and sine of every frequency at `position`, each `[head_dim / 2]`.
    pub fn rotation(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((frequency, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let (s, c) = (f64::from(position) * frequency).sin_cos();
            (*cos, *sin) = ((c * self.attention_factor) as f32, (s * self.attention_factor) as f32);
        }
    }
}

/// Cosines and sines of the rows of one pass; a buffer that grows once and is reused.
#[derive(Debug, Default)]
pub struct RopeRows {
    half: usize,
    cos: AlignedFloats,
    sin: AlignedFloats,
}

impl RopeRows {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes the rotations of `positions`, one per row of the pass.
    pub fn fill(&mut self, table: &RopeTable, positions: &[u32]) {
        self.half = table.head_dim() / 2;
        let [cos, sin] = [&mut self.cos, &mut self.sin].map(|buffer| buffer.sized(positions.len() * self.half));
        let rows = cos.chunks_exact_mut(self.half).zip(sin.chunks_exact_mut(self.half));
        for (position, (cos, sin)) in positions.iter().zip(rows) {
            table.rotation(*position, cos, sin);
        }
    }

    /// Number of rows filled.
    pub fn rows(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }

    /// Dimensions of a head that are rotated.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Cosines and sines of `row`, each `[head_dim / 2]`.
    #[inline(always)]
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.half..(row + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}
