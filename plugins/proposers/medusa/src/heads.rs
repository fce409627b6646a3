//! The heads: the target's last hidden row in, a row of logits per head out.
//!
//! Head i guesses the token i + 1 places behind the anchor. In Medusa's files a head is residual blocks `x + silu(W x + b)`
//! and a projection; a plain one is `W2 silu(W1 x + b1) + b2`. Both are read by the names of their tensors: published
//! configs say 2 heads where there are 5.

use foretoken_kernels::blocks::Linear;
use foretoken_kernels::ops::PackedRows;
use foretoken_kernels::plugin::HeadTensors;
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{Host, Result};

/// One head.
struct Head {
    /// `x + silu(block(x))`, one after the other.
    blocks: Vec<Linear>,
    /// `silu(inner(x))` of a plain head.
    inner: Option<Linear>,
    output: Linear,
}

/// All heads, in the order of the positions they guess.
pub struct Heads {
    heads: Vec<Head>,
    exec: Exec,
    vocab_size: usize,
    packed: PackedRows,
    state: Vec<f32>,
    delta: Vec<f32>,
}

impl Heads {
    /// Loads the heads at `path` for the host's target.
    ///
    /// # Errors
    /// If there are none, or they are for another target; the message names the tensor.
    pub fn load(path: &str, dtype: Option<WeightDtype>, host: &Host) -> Result<Self> {
        let tensors = host.load_tensors(path)?;
        let exec = Exec::from(host);
        let loader = HeadTensors::new(format!("medusa: {path}"), &*tensors, (dtype, &exec));
        let target = host.target();
        let (width, vocab_size) = (target.hidden_size, target.vocab_size);
        // Merged models keep the heads under a name of their own.
        let prefix = if loader.names().any(|name| name.starts_with("medusa_head.")) { "medusa_head." } else { "" };
        let has = |name: &str| loader.find(name).is_some();
        let mut heads = Vec::new();
        loop {
            let head = format!("{prefix}{}", heads.len());
            let block = |index: usize| format!("{head}.{index}.linear");
            if has(&format!("{}.weight", block(0))) {
                let mut blocks = Vec::new();
                while has(&format!("{}.weight", block(blocks.len()))) {
                    blocks.push(loader.linear(&block(blocks.len()), [width, width])?);
                }
                let output = loader.linear(&format!("{head}.{}", blocks.len()), [vocab_size, width])?;
                heads.push(Head { blocks, inner: None, output });
            } else if has(&format!("{head}.0.weight")) {
                let inner_width = loader.view(&format!("{head}.0.weight"))?.rows();
                let inner = loader.linear(&format!("{head}.0"), [inner_width, width])?;
                let output = loader.linear(&format!("{head}.2"), [vocab_size, inner_width])?;
                heads.push(Head { blocks: Vec::new(), inner: Some(inner), output });
            } else {
                break;
            }
        }
        if heads.is_empty() {
            return Err(loader.refused(
                "there are no heads: neither 0.0.linear.weight (Medusa) nor 0.0.weight (a plain MLP), also not under \
                medusa_head.",
            ));
        }
        let (packed, state, delta) = Default::default();
        Ok(Self { heads, exec: exec.clone(), vocab_size, packed, state, delta })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Logits of the first `count` heads for `hidden` (`[rows, hidden_size]`) into `out`, `[count, rows, vocab_size]`.
    pub fn logits(&mut self, hidden: &[f32], count: usize, out: &mut Vec<f32>) {
        let Self { heads, exec, vocab_size, packed, state, delta } = self;
        let rows = hidden.len() / heads[0].width();
        out.resize(count * rows * *vocab_size, 0.0);
        for (head, out) in heads.iter().zip(out.chunks_mut((rows * *vocab_size).max(1))).take(count) {
            state.clear();
            state.extend_from_slice(hidden);
            for block in &head.blocks {
                delta.resize(state.len(), 0.0);
                block.forward(exec, state, packed, delta);
                for (state, delta) in state.iter_mut().zip(&*delta) {
                    *state += silu(*delta);
                }
            }
            if let Some(inner) = &head.inner {
                delta.resize(rows * inner.weight().rows(), 0.0);
                inner.forward(exec, state, packed, delta);
                delta.iter_mut().for_each(|value| *value = silu(*value));
                std::mem::swap(state, delta);
            }
            head.output.forward(exec, state, packed, out);
        }
    }
}

impl Head {
    /// Width of what it reads.
    fn width(&self) -> usize {
        self.inner.as_ref().unwrap_or(&self.output).weight().cols()
    }
}

fn silu(value: f32) -> f32 {
    value / (1.0 + (-value).exp())
}
