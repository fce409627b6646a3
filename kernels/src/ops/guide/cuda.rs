//! Launches `guide.cu`: one thread per element, blocks of 256.
//!
//! An element reads only its own inputs, so the shape of the grid cannot show in the result.

use crate::cuda::{Cuda, CudaError, CudaView, CudaViewMut, LaunchConfig, PushKernelArg, Source};

static SOURCE: Source = Source { name: "guide.cu", text: include_str!("guide.cu") };

const THREADS: usize = 256;

/// `cond = uncond + scale * (cond - uncond)`, in place, queued on the device's stream; both `[vocab]` (or any equal
/// length). The bits are those of [`guide`](super::guide()), save that a NaN is the device's own NaN.
///
/// # Errors
/// If the kernel cannot be compiled or launched.
pub fn guide(
    cuda: &Cuda,
    cond: &mut CudaViewMut<'_, f32>,
    uncond: &CudaView<'_, f32>,
    scale: f32,
) -> Result<(), CudaError> {
    let len = cond.len();
    assert_eq!(uncond.len(), len, "cond and uncond must have one length");
    if len == 0 {
        return Ok(());
    }
    let blocks = u32::try_from(len.div_ceil(THREADS)).expect("the length of a row of logits");
    let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    let kernel = cuda.function(&SOURCE, "guide")?;
    let mut launch = cuda.stream().launch_builder(&kernel);
    launch.arg(cond).arg(uncond).arg(&scale).arg(&len);
    // SAFETY: the arguments are those of `guide` in guide.cu, in order; it touches only elements below `len`, which
    // both views have; the stream keeps their memory until the kernel is done.
    unsafe { launch.launch(config) }.map_err(|error| CudaError::driver("launch guide", error))?;
    Ok(())
}
