//! Weights over shared bytes: sizes, ranges, and bytes that the file left misaligned.
//!
//! Files are data: every way in which one can be too short or shifted is an error that names the tensor, or is
//! repaired by a copy. SIMD level names are parsed here too, since they come from outside as well.

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
    assert!(SimdLevel::preferred() <= SimdLevel::detect());
}
