//! Weights over shared bytes: sizes, ranges, and bytes that the file left misaligned.
//!
//! Files are data: every way in which one can be too short or shifted is an error that names the tensor, or is
//! repaired by a copy. SIMD level names are parsed here too, since they come from outside as well.

use crate::support::values;
use foretoken_kernels::{KernelError, SharedBytes, SimdLevel, Weight, WeightDtype};
use std::sync::Arc;

#[test]
fn wrong_sizes_are_named() {
    let bytes = SharedBytes::copied(&[0; 10]);
    let error = Weight::new("lm_head.weight", WeightDtype::Bf16, [2, 3], bytes).unwrap_err();
    assert_eq!(error, KernelError::ByteLen { tensor: "lm_head.weight".into(), expected: 12, got: 10 });
    assert!(error.to_string().contains("lm_head.weight"));
    let owner = Arc::new(vec![0u8; 8]);
    let error = SharedBytes::new(owner, 4..9).unwrap_err();
    assert_eq!(error, KernelError::Range { start: 4, end: 9, owner_len: 8 });
}

#[test]
fn misaligned_bytes_are_copied() {
    let mut bytes = vec![0u8];
    bytes.extend([1.5f32, -2.0, 0.25, 8.0].iter().flat_map(|v| v.to_ne_bytes()));
    bytes.extend([0u8; 3]);
    for start in 0..2 {
        let mut moved = vec![0u8; start];
        moved.extend(&bytes[1..17]);
        moved.extend([0; 4]);
        let shared = SharedBytes::new(Arc::new(moved), start..start + 16).unwrap();
        let weight = Weight::new("w", WeightDtype::F32, [2, 2], shared).unwrap();
        let mut row = [0.0; 2];
        weight.row_f32(1, &mut row);
        assert_eq!(row, [0.25, 8.0]);
    }
}

#[test]
fn levels_parse_and_refuse() {
    for level in SimdLevel::ALL {
        assert_eq!(level.to_string().parse(), Ok(level));
    }
    let error = "sse9".parse::<SimdLevel>().unwrap_err();
    assert_eq!(error, KernelError::SimdUnknown { got: "sse9".into() });
    for level in SimdLevel::ALL {
        assert!(error.to_string().contains(&level.to_string()), "{level} in `{error}`");
    }
    assert!(SimdLevel::preferred() <= SimdLevel::detect());
}

/// What is lost when values are rounded to each dtype: the root mean square of the errors over that of the values, for
/// values in (-1, 1), and that what was rounded rounds to itself again (q4_K and q6_K choose their scales anew).
#[test]
fn rounding_loses_what_is_stated() {
    let stated = [
        (WeightDtype::F32, 0.0),
        (WeightDtype::F16, 3e-4),
        (WeightDtype::Bf16, 2e-3),
        (WeightDtype::Q8_0, 5e-3),
        (WeightDtype::Q4_0, 0.08),
        (WeightDtype::Q4K, 0.06),
        (WeightDtype::Q6K, 0.02),
    ];
    let (rows, cols) = (33, 300);
    let values = values(3, rows * cols);
    let back = |weight: &Weight| {
        let mut back = vec![0.0; rows * cols];
        back.chunks_mut(cols).enumerate().for_each(|(row, out)| weight.row_f32(row, out));
        back
    };
    for (dtype, most) in stated {
        let rounded = back(&Weight::from_f32(dtype, [rows, cols], &values));
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
        let error = square(&mut values.iter().zip(&rounded).map(|(a, b)| a - b)) / square(&mut values.iter().copied());
        assert!(error.sqrt() <= most, "{dtype}: {}", error.sqrt());
        if most < 1e-2 {
            assert_eq!(back(&Weight::from_f32(dtype, [rows, cols], &rounded)), rounded, "{dtype}");
        }
    }
}

#[test]
fn rows_of_zeros_stay_zeros() {
    for dtype in WeightDtype::ALL {
        let weight = Weight::from_f32(dtype, [17, 40], &[0.0; 17 * 40]);
        let mut row = [1.0; 40];
        weight.row_f32(16, &mut row);
        assert_eq!(row, [0.0; 40], "{dtype}");
    }
}
