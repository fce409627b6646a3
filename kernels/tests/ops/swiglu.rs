//! The gate against f64, and every element against its place.
//!
//! Gates far outside of the exponential's range are among the inputs, since a saturated gate is common.
//! The place test crosses vectors, blocks and tasks.

use crate::support::{F32, assert_close, bits, levels, levels_and_threads, values};
use foretoken_kernels::ops::swiglu;
use foretoken_kernels::ops::swiglu::reference;

#[test]
fn agrees_with_the_reference() {
    let gate: Vec<f32> = values(1, 333).iter().map(|v| v * 30.0).chain([-200.0, 200.0, 0.0]).collect();
    let up = values(2, gate.len());
    for exec in levels() {
        let mut out = gate.clone();
        swiglu(&exec, &mut out, &up);
        assert_close(&out, &reference::swiglu(&gate, &up), F32, &format!("{exec:?}"));
    }
}

#[test]
fn an_element_does_not_depend_on_its_place() {
    let (gate, up) = (values(1, 40_001), values(2, 40_001));
    for exec in levels_and_threads() {
        let mut whole = gate.clone();
        swiglu(&exec, &mut whole, &up);
        let mut part = gate[1001..1030].to_vec();
        swiglu(&exec, &mut part, &up[1001..1030]);
        assert_eq!(bits(&part), bits(&whole[1001..1030]), "{exec:?}");
    }
}
