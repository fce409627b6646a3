//! The one tile whose registers are assigned by hand: 3 weight rows by 4 input rows of bf16, half of the lanes.
//!
//! Its 12 sums, 3 weights and 1 input are exactly the 16 registers of AVX2. The compiler, which does not see that, loads
//! early and spills sums, and runs at half of this speed. It computes what `Format::dot` computes: for each step the
//! evens, then the odds, by fused multiply-adds.

#![cfg(target_arch = "x86_64")]

use super::{LANES, Line};
use std::arch::asm;
use std::arch::x86_64::__m256;

/// Weight rows and input rows of the tile.
pub(crate) const WEIGHTS: usize = 3;
pub(crate) const INPUTS: usize = 4;

/// Keeps the upper bf16 of each double word.
static ODD: Line = Line([f32::from_bits(0xffff_0000); LANES]);

/// Adds `steps` steps of 32 bf16 to half the lanes of the sums. The pointers are to the half's 16 bf16 of the first
/// step; `ahead` bytes behind each weight is what to ask the memory for.
///
/// # Safety
/// The processor must have AVX2 and FMA, and every pointer `steps` times 64 readable bytes, of which 32 are read.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tile(
    weights: [*const u8; WEIGHTS],
    inputs: [*const u8; INPUTS],
    steps: usize,
    ahead: usize,
    sums: &mut [[__m256; INPUTS]; WEIGHTS],
) {
    if steps == 0 {
        return;
    }
    let [[mut a0, mut a1, mut a2, mut a3], [mut b0, mut b1, mut b2, mut b3], [mut c0, mut c1, mut c2, mut c3]] = *sums;
    // Offsets count up to 0 from the end, so that one register is counter and index.
    let end = steps * 64;
    let weights = weights.map(|row| row.wrapping_add(end));
    let inputs = inputs.map(|row| row.wrapping_add(end));
    // SAFETY: the loop reads 32 bytes at each of the `steps` offsets of every pointer, and the mask; a prefetch may have
    // any address. It writes nothing but its registers.
    unsafe {
        asm!(
            "2:",
            "vmovdqu {w0}, [{p0} + {k}]",
            "vpslld {w0}, {w0}, 16",
            "vmovdqu {w1}, [{p1} + {k}]",
            "vpslld {w1}, {w1}, 16",
            "vmovdqu {w2}, [{p2} + {k}]",
            "vpslld {w2}, {w2}, 16",
            "vmovdqu {x}, [{q0} + {k}]",
            "vpslld {x}, {x}, 16",
            "vfmadd231ps {a0}, {w0}, {x}",
            "vfmadd231ps {b0}, {w1}, {x}",
            "vfmadd231ps {c0}, {w2}, {x}",
            "vmovdqu {x}, [{q1} + {k}]",
            "vpslld {x}, {x}, 16",
            "vfmadd231ps {a1}, {w0}, {x}",
            "vfmadd231ps {b1}, {w1}, {x}",
            "vfmadd231ps {c1}, {w2}, {x}",
            "vmovdqu {x}, [{q2} + {k}]",
            "vpslld {x}, {x}, 16",
            "vfmadd231ps {a2}, {w0}, {x}",
            "vfmadd231ps {b2}, {w1}, {x}",
            "vfmadd231ps {c2}, {w2}, {x}",
            "vmovdqu {x}, [{q3} + {k}]",
            "vpslld {x}, {x}, 16",
            "vfmadd231ps {a3}, {w0}, {x}",
            "vfmadd231ps {b3}, {w1}, {x}",
            "vfmadd231ps {c3}, {w2}, {x}",
            "lea {t}, [{k} + {ahead}]",
            "vmovaps {x}, [{odd}]",
            "vandps {w0}, {x}, [{p0} + {k}]",
            "prefetcht0 [{p0} + {t}]",
            "vandps {w1}, {x}, [{p1} + {k}]",
            "prefetcht0 [{p1} + {t}]",
            "vandps {w2}, {x}, [{p2} + {k}]",
            "prefetcht0 [{p2} + {t}]",
            "vandps {x}, {x}, [{q0} + {k}]",
            "vfmadd231ps {a0}, {w0}, {x}",
            "vfmadd231ps {b0}, {w1}, {x}",
            "vfmadd231ps {c0}, {w2}, {x}",
            "vmovaps {x}, [{odd}]",
            "vandps {x}, {x}, [{q1} + {k}]",
            "vfmadd231ps {a1}, {w0}, {x}",
            "vfmadd231ps {b1}, {w1}, {x}",
            "vfmadd231ps {c1}, {w2}, {x}",
            "vmovaps {x}, [{odd}]",
            "vandps {x}, {x}, [{q2} + {k}]",
            "vfmadd231ps {a2}, {w0}, {x}",
            "vfmadd231ps {b2}, {w1}, {x}",
            "vfmadd231ps {c2}, {w2}, {x}",
            "vmovaps {x}, [{odd}]",
            "vandps {x}, {x}, [{q3} + {k}]",
            "vfmadd231ps {a3}, {w0}, {x}",
            "vfmadd231ps {b3}, {w1}, {x}",
            "vfmadd231ps {c3}, {w2}, {x}",
            "add {k}, 64",
            "jnz 2b",
            p0 = in(reg) weights[0],
            p1 = in(reg) weights[1],
            p2 = in(reg) weights[2],
            q0 = in(reg) inputs[0],
            q1 = in(reg) inputs[1],
            q2 = in(reg) inputs[2],
            q3 = in(reg) inputs[3],
            odd = in(reg) &raw const ODD,
            ahead = in(reg) ahead,
            k = inout(reg) end.wrapping_neg() => _,
            t = out(reg) _,
            a0 = inout(ymm_reg) a0, a1 = inout(ymm_reg) a1, a2 = inout(ymm_reg) a2, a3 = inout(ymm_reg) a3,
            b0 = inout(ymm_reg) b0, b1 = inout(ymm_reg) b1, b2 = inout(ymm_reg) b2, b3 = inout(ymm_reg) b3,
            c0 = inout(ymm_reg) c0, c1 = inout(ymm_reg) c1, c2 = inout(ymm_reg) c2, c3 = inout(ymm_reg) c3,
            w0 = out(ymm_reg) _, w1 = out(ymm_reg) _, w2 = out(ymm_reg) _, x = out(ymm_reg) _,
            options(readonly, nostack),
        );
    }
    *sums = [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]];
}
