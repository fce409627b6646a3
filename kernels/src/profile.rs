//! Where a pass spends its time, by op.
//!
//! Off unless an [`Exec`](crate::Exec) carries a [`Profile`], which costs an op one branch. Ops are timed on the thread
//! that calls them, so what a parallel region waits for counts as the op's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is timed apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Rows of the embedding table.
    Embed,
    /// Norms and residual additions.
    RmsNorm,
    /// Rounding and laying out a linear's inputs.
    Pack,
    /// Matrix products.
    Linear,
    /// Rotation, and storing keys and values.
    RopeKv,
    /// Attention.
    Attention,
    /// The gated activation.
    SwiGlu,
}

impl Op {
    /// Every op, in the order of a layer.
    pub const ALL: [Self; 7] =
        [Self::Embed, Self::RmsNorm, Self::Pack, Self::Linear, Self::RopeKv, Self::Attention, Self::SwiGlu];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::RmsNorm => "rmsnorm",
            Self::Pack => "pack",
            Self::Linear => "linear",
            Self::RopeKv => "rope_kv",
            Self::Attention => "attention",
            Self::SwiGlu => "swiglu",
        }
    }
}

/// Time per op since it was made or last taken.
#[derive(Debug, Default)]
pub struct Profile {
    nanoseconds: [AtomicU64; Op::ALL.len()],
}

impl Profile {
    /// The time of each op, which then starts again from 0.
    pub fn take(&self) -> [(Op, Duration); Op::ALL.len()] {
        let time = |op: Op| Duration::from_nanos(self.nanoseconds[op as usize].swap(0, Ordering::Relaxed));
        Op::ALL.map(|op| (op, time(op)))
    }
}

/// Adds the time until it is dropped to an op's.
pub(crate) struct Timer<'a>(Option<(&'a Profile, Op, Instant)>);

impl<'a> Timer<'a> {
    #[inline(always)]
    pub(crate) fn start(profile: Option<&'a Profile>, op: Op) -> Self {
        Self(profile.map(|profile| (profile, op, Instant::now())))
    }
}

impl Drop for Timer<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((profile, op, start)) = self.0 {
            let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            profile.nanoseconds[op as usize].fetch_add(time, Ordering::Relaxed);
        }
    }
}
