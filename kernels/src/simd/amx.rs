//! Matrix instructions on tiles (AMX): up to 16 rows of inputs times 16 rows of weights in one.
//!
//! A tile is a register of up to 16 rows of 64 bytes. The compiler has no stable intrinsics for tiles, so each instruction
//! is a line of assembly; it never uses tiles itself. What a multiplication adds up is fixed (Intel, *64 and IA-32
//! Architectures Software Developer's Manual*, volume 2, TDPBF16PS): of the pairs of bf16 in ascending order the first
//! and the second products each have a sum of their own, which are added to each other and then to the element, all
//! rounded to nearest even, with subnormals as zeros. It does not depend on the tile's other rows. Integer sums are exact.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;

/// Whether the processor has tiles, and the system lets this process use them.
pub(super) fn is_permitted() -> bool {
    /// Bits of CPUID leaf 7, EDX: AMX-BF16, AMX-TILE and AMX-INT8.
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    if std::arch::x86_64::__cpuid(0).eax < 7 {
        return false;
    }
    std::arch::x86_64::__cpuid_count(7, 0).edx & FEATURES == FEATURES && request()
}

/// Linux gives tiles to a process that asks for them: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`
/// (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn request() -> bool {
    // SAFETY: the call takes two numbers and touches no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1023, 18) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request() -> bool {
    false
}

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles of this thread, until they are dropped: all zero at first.
pub(crate) struct Tiles(());

impl Tiles {
    /// Tiles 0 to 7 of so many rows of so many bytes each, at most 16 and 64.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](super::SimdLevel::Amx).
    #[inline(always)]
    pub unsafe fn new(shapes: [(usize, usize); 8]) -> Self {
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            assert!((1..=16).contains(&rows) && bytes > 0 && bytes <= 64 && bytes.is_multiple_of(4), "tile {tile}");
            (config.rows[tile], config.row_bytes[tile]) = (rows as u8, bytes as u16);
        }
        // SAFETY: the processor has tiles by the caller's word; the configuration is valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags)) };
        Self(())
    }

    /// Tile T becomes zeros.
    #[inline(always)]
    pub fn zero<const T: u8>(&self) {
        // SAFETY: tiles are configured.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags, nomem)) };
    }

    /// Reads tile T, its rows `stride` bytes apart.
    ///
    /// # Safety
    /// The tile's rows must be readable there.
    #[inline(always)]
    pub unsafe fn load<const T: u8>(&self, from: *const u8, stride: usize) {
        // SAFETY: tiles are configured, and the caller says that rows are readable.
        unsafe {
            asm!("tileloadd tmm{t}, [{from} + {stride}]", t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly));
        }
    }

    /// Writes tile T, its rows `stride` bytes apart.
    ///
    /// # Safety
    /// The tile's rows must be writable there.
    #[inline(always)]
    pub unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
        // SAFETY: tiles are configured, and the caller says that rows are writable.
        unsafe {
            asm!("tilestored [{to} + {stride}], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }

    /// `C += A * B` of f32 C `[m, n]`, and bf16 A `[m, k]` and B `[k / 2, n]` pairs.
    #[inline(always)]
    pub fn multiply_bf16<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }

    /// `C += A * B` of i32 C `[m, n]`, i8 A `[m, k]` and u8 B `[k / 4, n]` fours.
    #[inline(always)]
    pub fn multiply_int8<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!("tdpbsud tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }

    /// The same of u8 A and i8 B.
    #[inline(always)]
    pub fn multiply_unsigned<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!("tdpbusd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }

    /// The same of i8 A and B.
    #[inline(always)]
    pub fn multiply_signed<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: what has configured tiles may release them.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}
