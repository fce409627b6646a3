//! A weight with its bias: the unit that `ops::linear` multiplies by.
//!
//! The bias is kept in f32 whatever the weight's dtype, since it is added to an f32 sum.

use crate::error::KernelError;
use crate::exec::Exec;
use crate::ops::{LinearJob, PackedRows, linear};
use crate::weight::Weight;

/// `y = x W^T + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// `weight` is `[out features, in features]`, `bias` is `[out features]`. `tensor` names them in the error.
    pub fn new(tensor: &str, weight: Weight, bias: Option<Vec<f32>>) -> Result<Self, KernelError> {
        if let Some(bias) = &bias
            && bias.len() != weight.rows()
        {
            let (expected, got) = (vec![weight.rows()], vec![bias.len()]);
            return Err(KernelError::Shape { tensor: format!("{tensor}.bias"), expected, got });
        }
        Ok(Self { weight, bias })
    }

    /// The same, checked to have this shape.
    pub fn with_shape(
        tensor: &str,
        weight: Weight,
        bias: Option<Vec<f32>>,
        [outs, ins]: [usize; 2],
    ) -> Result<Self, KernelError> {
        let made = Self::new(tensor, weight, bias)?;
        made.check(tensor, outs, ins)?;
        Ok(made)
    }

    /// An error unless the weight is `[outs, ins]`.
    pub fn check(&self, tensor: &str, outs: usize, ins: usize) -> Result<(), KernelError> {
        let got = vec![self.weight.rows(), self.weight.cols()];
        if got == [outs, ins] {
            return Ok(());
        }
        Err(KernelError::Shape { tensor: format!("{tensor}.weight"), expected: vec![outs, ins], got })
    }

    /// The weight.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// The bias, `[out features]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `[rows, in features]` to `[rows, out features]`, packing `x` into `packed`.
    pub fn forward(&self, exec: &Exec, x: &[f32], packed: &mut PackedRows, out: &mut [f32]) {
        packed.pack(exec, &self.weight, x);
        linear(exec, packed, &mut [LinearJob { linear: self, out, adds: false }]);
    }

    /// The same, added to `out`.
    pub fn add(&self, exec: &Exec, x: &[f32], packed: &mut PackedRows, out: &mut [f32]) {
        packed.pack(exec, &self.weight, x);
        linear(exec, packed, &mut [LinearJob { linear: self, out, adds: true }]);
    }
}
