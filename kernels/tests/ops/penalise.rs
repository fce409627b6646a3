//! Penalties and bias against the definition that counts anew for every token.
//!
//! The scratch is reused from case to case, so a count left behind would show in the next.
//! Tokens repeat in prompt, in output and across both.

use crate::support::{F32, assert_close, values};
use foretoken_kernels::ops::penalise::reference;
use foretoken_kernels::ops::{Penalties, PenaltyScratch, penalise};

#[test]
fn agrees_with_the_reference() {
    let logits: Vec<f32> = values(1, 20).iter().map(|v| v * 5.0).collect();
    let (bias, prompt, output) = ([(3, 1.5), (7, -2.0)], [1, 3, 3, 9], [4, 9, 4, 4]);
    let cases = [
        Penalties::default(),
        Penalties { repetition: 1.3, ..Penalties::default() },
        Penalties { presence: 0.6, frequency: -0.2, ..Penalties::default() },
        Penalties { repetition: 0.8, presence: 0.5, frequency: 0.25 },
    ];
    let mut scratch = PenaltyScratch::default();
    for penalties in cases {
        let mut out = logits.clone();
        penalise(&mut out, &bias, &penalties, prompt, output, &mut scratch);
        let want = reference::penalise(&logits, &bias, &penalties, &prompt, &output);
        assert_close(&out, &want, F32, &format!("{penalties:?}"));
    }
}

#[test]
fn tokens_outside_of_the_vocabulary_are_ignored() {
    let (mut logits, penalties) = ([1.0; 4], Penalties { repetition: 2.0, ..Penalties::default() });
    penalise(&mut logits, &[(99, 1.0)], &penalties, [99], [2, 1000], &mut PenaltyScratch::default());
    assert_eq!(logits, [1.0, 1.0, 0.5, 1.0]);
}
