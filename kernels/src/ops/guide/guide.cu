// cond = uncond + scale * (cond - uncond), in place, one thread per element.
//
// The intrinsics round once each and are never fused, so the bits are those of cpu.rs.

extern "C" __global__ void guide(float* cond, const float* uncond, float scale, size_t len) {
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < len) {
        cond[i] = __fadd_rn(uncond[i], __fmul_rn(scale, __fsub_rn(cond[i], uncond[i])));
    }
}
