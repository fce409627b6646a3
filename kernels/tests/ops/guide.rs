//! Guidance: three f32 roundings, and nothing fused.
//!
//! The second test computes the three roundings by hand, and first proves that its inputs could tell a fused
//! multiply-add from them. The kernel is compared with the CPU op bit by bit, so it inherits both.

use crate::cuda::{Launch, Order, Shim, device};
use crate::support::{F32, assert_close, bits, values};
use foretoken_kernels::ops::guide;
use foretoken_kernels::ops::guide::reference;

#[test]
fn agrees_with_the_reference() {
    let (cond, uncond) = (values(1, 100), values(2, 100));
    let mut out = cond.clone();
    guide(&mut out, &uncond, 1.7);
    assert_close(&out, &reference::guide(&cond, &uncond, 1.7), F32, "guide");
}

#[test]
fn rounds_three_times() {
    let (cond, uncond, scale) = (values(3, 4000), values(4, 4000), 1.3f32);
    let mut out = cond.clone();
    guide(&mut out, &uncond, scale);
    let mut fused = 0;
    for ((cond, uncond), out) in cond.iter().zip(&uncond).zip(out) {
        let difference = cond - uncond;
        let product = std::hint::black_box(scale * difference);
        assert_eq!(out.to_bits(), (uncond + product).to_bits());
        fused += usize::from(scale.mul_add(difference, *uncond) == out);
    }
    assert!(fused < 4000, "the inputs must be able to tell a fused multiply-add apart");
}

/// Both rows, with extremes among the numbers, and the guided row as the CPU has it. An infinity stands only in
/// `cond`: in `uncond` it would give a NaN, whose bits differ on a device.
fn rows(len: usize, scale: f32) -> [Vec<f32>; 3] {
    let (mut cond, mut uncond) = (values(5, len), values(6, len));
    let extremes = [-0.0, f32::MIN_POSITIVE / 3.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
    for (i, value) in extremes.into_iter().enumerate() {
        cond[i * 13 % len] = value;
    }
    for (i, value) in extremes[..3].iter().enumerate() {
        uncond[(i * 29 + 7) % len] = *value;
    }
    let mut guided = cond.clone();
    guide(&mut guided, &uncond, scale);
    assert!(guided.iter().all(|value| !value.is_nan()), "a NaN");
    [cond, uncond, guided]
}

const LENGTHS: [usize; 7] = [11, 31, 33, 256, 257, 1000, 4099];

#[test]
fn the_kernel_agrees_bit_for_bit_and_stays_in_its_row() {
    let shim = Shim::of_op("guide");
    let kernel = shim.kernel::<unsafe extern "C" fn(*mut f32, *const f32, f32, usize)>("guide");
    for (len, threads) in LENGTHS.into_iter().flat_map(|len| [256, 33].map(|threads| (len, threads))) {
        let [cond, uncond, want] = rows(len, 1.3);
        for order in Order::ALL {
            let mut out = [cond.as_slice(), &[7.0; 300]].concat();
            let out_ptr = out.as_mut_ptr();
            // SAFETY: both rows have `len` elements.
            let run = || unsafe { kernel(out_ptr, uncond.as_ptr(), 1.3, len) };
            shim.launch(Launch::flat(len.div_ceil(threads), threads), order, run).expect("a correct kernel");
            assert_eq!(bits(&out[..len]), bits(&want), "{len} elements, {threads} threads, {order:?}");
            assert!(out[len..].iter().all(|value| *value == 7.0), "written past {len} elements");
        }
    }
}

#[test]
fn the_device_agrees_bit_for_bit() {
    let Some(cuda) = device() else { return };
    for len in LENGTHS {
        let [cond, uncond, want] = rows(len, 1.3);
        let stream = cuda.stream();
        let (mut out, uncond) = (stream.clone_htod(&cond).unwrap(), stream.clone_htod(&uncond).unwrap());
        guide::cuda::guide(&cuda, &mut out.as_view_mut(), &uncond.as_view(), 1.3)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(bits(&stream.clone_dtoh(&out).unwrap()), bits(&want), "{len} elements");
    }
}
