//! The shim itself: that it runs correct kernels correctly, and finds what a device would leave undefined.
//!
//! The kernels are in `selftest.cu`. Expectations are computed here from CUDA's documentation, not by the shim.

use super::{Dim3, Launch, Order, Shim};
use crate::support::{bits, values};
use half::{bf16, f16};
use std::sync::LazyLock;

static SHIM: LazyLock<Shim> = LazyLock::new(|| Shim::compile(&super::root().join("tests/ops/cuda/selftest.cu")));

/// Whole numbers, so that every order of summation gives the same f32.
fn whole(len: usize) -> Vec<f32> {
    values(1, len).iter().map(|v| (v * 1000.0).round()).collect()
}

fn row_sums(rows: &[f32], columns: usize) -> Vec<f32> {
    rows.chunks(columns).map(|row| row.iter().sum()).collect()
}

#[test]
fn a_block_reduction_sums_through_shuffles_and_shared_memory() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut f32, *const f32, i32)>("block_sum");
    for (columns, threads) in [(1, 32), (100, 64), (1000, 256), (33, 1024)] {
        let (rows, mut out) = (whole(3 * columns), vec![0.0; 3]);
        let out_ptr = out.as_mut_ptr();
        for order in Order::ALL {
            // SAFETY: three blocks read three rows of `columns` and write three sums.
            let run = || unsafe { kernel(out_ptr, rows.as_ptr(), columns as i32) };
            SHIM.launch(Launch::flat(3, threads), order, run).expect("a correct kernel");
            assert_eq!(out, row_sums(&rows, columns), "{columns} columns, {threads} threads, {order:?}");
        }
    }
}

/// Sums of `tree_sum` with 256 threads, in both orders.
fn tree_sums(rows: &[f32], barriers: bool) -> [Vec<f32>; 2] {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut f32, *const f32, i32)>("tree_sum");
    Order::ALL.map(|order| {
        let mut out = vec![0.0; rows.len() / 256];
        let (out_ptr, launch) = (out.as_mut_ptr(), Launch { shared: 1024, ..Launch::flat(out.len(), 256) });
        // SAFETY: each block reads its 256 values and writes its sum.
        let run = || unsafe { kernel(out_ptr, rows.as_ptr(), barriers.into()) };
        SHIM.launch(launch, order, run).expect("nothing that one schedule alone can see");
        out
    })
}

#[test]
fn threads_interleave_at_barriers_in_a_loop() {
    let rows = whole(5 * 256);
    let want = row_sums(&rows, 256);
    assert_eq!(tree_sums(&rows, true), [want.clone(), want]);
}

#[test]
fn a_missing_barrier_shows_between_the_two_orders() {
    let [first, last] = tree_sums(&whole(256), false);
    assert_ne!(bits(&first), bits(&last));
}

#[test]
fn warp_operations_are_as_documented() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut i32, i32)>("warp_ops");
    for (width, order) in [32, 16, 8].into_iter().flat_map(|width| Order::ALL.map(|order| (width, order))) {
        let mut out = vec![-1; 192];
        let out_ptr = out.as_mut_ptr();
        // SAFETY: 32 threads write 6 rows of 32.
        SHIM.launch(Launch::flat(1, 32), order, || unsafe { kernel(out_ptr, width) }).expect("a correct kernel");
        for lane in 0..32 {
            let (group, place) = (lane / width * width, lane % width);
            let want = [
                group + 5 % width,
                if place < 3 { lane } else { lane - 3 },
                if place + 3 < width { lane + 3 } else { lane },
                if (lane ^ 9) / width > lane / width { lane } else { lane ^ 9 },
                0x4924_9249,
                (lane >= 16).into(),
            ];
            let got: Vec<i32> = out.iter().skip(lane as usize).step_by(32).copied().collect();
            assert_eq!(got, want, "lane {lane}, width {width}, {order:?}");
        }
    }
}

#[test]
fn coordinates_have_three_dimensions_with_x_innermost() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut u32)>("coordinates");
    let (grid, block) = ([4, 2, 3], [5, 3, 2]);
    let at = |[x, y, _]: [u32; 3], i: u32| (i % x) | ((i / x % y) << 4) | ((i / x / y) << 8);
    let want: Vec<u32> = (0..24 * 30).map(|i| (at(grid, i / 30) << 12) | at(block, i % 30)).collect();
    for order in Order::ALL {
        let mut out = vec![0; want.len()];
        let launch = Launch { grid: Dim3(4, 2, 3), block: Dim3(5, 3, 2), shared: 0 };
        let out_ptr = out.as_mut_ptr();
        // SAFETY: 24 blocks of 30 threads write one number each.
        SHIM.launch(launch, order, || unsafe { kernel(out_ptr) }).expect("a correct kernel");
        assert_eq!(out, want, "{order:?}");
    }
}

#[test]
fn a_block_finds_shared_memory_as_nan_whichever_block_came_before() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut f32)>("stale");
    for (order, last) in [(Order::FirstFirst, 2.0), (Order::LastFirst, 0.0)] {
        let mut out = vec![0.0; 4];
        let out_ptr = out.as_mut_ptr();
        // SAFETY: three blocks write one number each, and all of them the fourth.
        SHIM.launch(Launch::flat(3, 1), order, || unsafe { kernel(out_ptr) }).expect("no misuse");
        assert!(out[..3].iter().all(|value| value.is_nan()), "{out:?}");
        assert_eq!(out[3], last, "the last block under {order:?}");
    }
}

#[test]
fn misuse_is_an_error_that_names_threads_and_operation() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(i32)>("misuse");
    let faults = [
        ["waits at __syncthreads", "for thread (7, 0, 0), which has exited"],
        ["waits at __syncthreads", "which waits at __syncthreads, line"],
        ["waits at __syncthreads", "for thread (40, 0, 0), which waits at __syncwarp"],
        ["waits at __shfl_xor_sync", "for thread (9, 0, 0), which has exited"],
        ["at __shfl_sync", "reads a lane that is not in its mask: 20"],
        ["at __shfl_sync", "is not in its own mask: lane"],
        ["wrote byte", "of 252 bytes of dynamic shared memory"],
        ["waits at __syncwarp", "for thread (40, 0, 0), which has exited"],
    ];
    for order in Order::ALL {
        for (fault, parts) in faults.iter().enumerate() {
            let launch = Launch { shared: 63 * 4, ..Launch::flat(1, 64) };
            // SAFETY: the kernel's argument is an int, and its writes stay in the shim's shared memory.
            let error = SHIM.launch(launch, order, || unsafe { kernel(fault as i32) }).expect_err("a misuse");
            assert!(parts.iter().all(|part| error.contains(part)), "fault {fault}, {order:?}: {error}");
        }
    }
}

#[test]
fn a_block_of_part_warps_may_wait_but_not_name_lanes_it_lacks() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut f32, *const f32, i32)>("tree_sum");
    let (rows, mut out) = (whole(4), vec![0.0]);
    let out_ptr = out.as_mut_ptr();
    let launch = Launch { shared: 16, ..Launch::flat(1, 4) };
    // SAFETY: one block reads four values and writes their sum.
    let run = || unsafe { kernel(out_ptr, rows.as_ptr(), 1) };
    SHIM.launch(launch, Order::FirstFirst, run).expect("a correct kernel");
    assert_eq!(out, row_sums(&rows, 4));

    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut i32, i32)>("warp_ops");
    let mut out = vec![0; 192];
    let out_ptr = out.as_mut_ptr();
    // SAFETY: fewer than the 32 threads that `out` has room for.
    let run = || unsafe { kernel(out_ptr, 32) };
    let error = SHIM.launch(Launch::flat(1, 20), Order::FirstFirst, run).expect_err("a misuse");
    assert!(error.contains("__shfl_sync") && error.contains("a warp that ends before lane 20"), "{error}");
}

#[test]
fn narrow_floats_convert_as_in_half() {
    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut f32, *mut f32, usize)>("widen");
    let (mut wide, mut wide_half) = (vec![0.0; 65536], vec![0.0; 65536]);
    let pointers = (wide.as_mut_ptr(), wide_half.as_mut_ptr());
    // SAFETY: both outputs have 65536 elements.
    let run = || unsafe { kernel(pointers.0, pointers.1, 65536) };
    SHIM.launch(Launch::flat(256, 256), Order::FirstFirst, run).expect("a correct kernel");
    for i in 0..=u16::MAX {
        let (got, want) = (wide[usize::from(i)], bf16::from_bits(i).to_f32());
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "bf16 {i:#x}");
        let (got, want) = (wide_half[usize::from(i)], f16::from_bits(i).to_f32());
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "half {i:#x}: {got}, not {want}");
    }

    let kernel = SHIM.kernel::<unsafe extern "C" fn(*mut u16, *const f32, usize)>("narrow");
    // Every bf16, and the f32 a bit below, at, and a bit above each half-way point.
    let near = |b: u32| [0, 0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits((b << 16) | low));
    let input: Vec<f32> = (0..65536).flat_map(near).collect();
    let mut out = vec![0; input.len()];
    let out_ptr = out.as_mut_ptr();
    // SAFETY: input and output have one length.
    let run = || unsafe { kernel(out_ptr, input.as_ptr(), input.len()) };
    SHIM.launch(Launch::flat(input.len() / 256, 256), Order::FirstFirst, run).expect("a correct kernel");
    for (value, got) in input.iter().zip(out) {
        let want = bf16::from_f32(*value);
        assert!(got == want.to_bits() || want.is_nan() && bf16::from_bits(got).is_nan(), "{value:e}: {got:#x}");
    }
}
