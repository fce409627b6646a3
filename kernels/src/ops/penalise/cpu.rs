//! One token's penalties, in f32 and in vLLM's order.
//!
//! A handful of scattered tokens: there is nothing to vectorise.

use super::Penalties;

pub(super) fn penalised(logit: f32, penalties: &Penalties, output_count: u32) -> f32 {
    let repeated = if logit > 0.0 { logit / penalties.repetition } else { logit * penalties.repetition };
    let presence = if output_count > 0 { penalties.presence } else { 0.0 };
    repeated - penalties.frequency * output_count as f32 - presence
}
