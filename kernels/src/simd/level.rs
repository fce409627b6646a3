//! Which instructions an [`Exec`](crate::Exec) uses: found at run time, or named by `FORETOKEN_SIMD`.
//!
//! Levels are ordered, and each has all of the ones below it. A level that the machine cannot serve is an error rather
//! than a silent fallback, since it is set by people who compare levels.

use crate::error::KernelError;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A set of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512 with the BF16 dot product and VBMI.
    Avx512Bf16,
    /// AVX-512, and AMX with BF16 and INT8.
    Amx,
}

impl SimdLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 5] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];

    /// The best level of this machine.
    pub fn detect() -> Self {
        static BEST: OnceLock<SimdLevel> = OnceLock::new();
        *BEST.get_or_init(detect_now)
    }

    /// Every level of this machine, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        Self::ALL.into_iter().filter(move |level| *level <= best)
    }

    /// The fastest level of this machine, which is not always the best it has.
    ///
    /// Intel's `vdpbf16ps` runs at a third of the rate of the FMAs it replaces (measured on Sapphire Rapids: 105
    /// against 140 GFLOP/s for the whole linear), AMD's at twice theirs. The vendor decides, and not a stopwatch, since
    /// the level decides the bits.
    pub fn preferred() -> Self {
        match Self::detect() {
            Self::Avx512Bf16 if !is_amd() => Self::Avx512,
            level => level,
        }
    }

    /// The level that `FORETOKEN_SIMD` names, else the preferred one; an error if it names none, or one this machine
    /// lacks.
    pub fn from_env() -> Result<Self, KernelError> {
        let best = Self::detect();
        let Ok(name) = std::env::var("FORETOKEN_SIMD") else { return Ok(Self::preferred()) };
        let requested: Self = name.parse()?;
        if requested > best {
            return Err(KernelError::SimdUnsupported { requested, best });
        }
        Ok(requested)
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_now() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    let bf16 = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi");
    match (avx2, avx512, bf16) {
        (_, true, true) if super::amx::is_permitted() => SimdLevel::Amx,
        (_, true, true) => SimdLevel::Avx512Bf16,
        (_, true, false) => SimdLevel::Avx512,
        (true, ..) => SimdLevel::Avx2,
        _ => SimdLevel::Portable,
    }
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_now() -> SimdLevel {
    SimdLevel::Portable
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Amx => "amx",
        })
    }
}

impl FromStr for SimdLevel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        let found = Self::ALL.into_iter().find(|level| level.to_string() == name);
        found.ok_or_else(|| KernelError::SimdUnknown { got: name.to_owned() })
    }
}
