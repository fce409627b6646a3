// Kernels that use each part of the machine that shim.cpp stands for, and kernels that misuse it.

#include "narrow.cuh"

__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// out[block] = sum of its `columns` values: strided partial sums, then warps, then the first warp.
extern "C" __global__ void block_sum(float* out, const float* in, int columns) {
    __shared__ float partial[32];
    const int thread = threadIdx.x, warps = blockDim.x / 32;
    float sum = 0;
    for (int i = thread; i < columns; i += blockDim.x) sum += in[blockIdx.x * columns + i];
    sum = warp_sum(sum);
    if (thread % 32 == 0) partial[thread / 32] = sum;
    __syncthreads();
    if (thread < 32) {
        sum = warp_sum(thread < warps ? partial[thread] : 0.0f);
        if (thread == 0) out[blockIdx.x] = sum;
    }
}

// A tree in dynamic shared memory with a barrier in the loop; `barriers` = 0 leaves it out.
extern "C" __global__ void tree_sum(float* out, const float* in, int barriers) {
    extern __shared__ float dynamic_shared[];
    const unsigned thread = threadIdx.x;
    dynamic_shared[thread] = in[blockIdx.x * blockDim.x + thread];
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (barriers) __syncthreads();
        if (thread < half) dynamic_shared[thread] += dynamic_shared[thread + half];
    }
    if (thread == 0) out[blockIdx.x] = dynamic_shared[0];
}

// Every warp operation, at width `width`: out[op][lane].
extern "C" __global__ void warp_ops(int* out, int width) {
    const int lane = threadIdx.x;
    out[lane] = __shfl_sync(0xffffffff, lane, 5, width);
    out[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3, width);
    out[64 + lane] = __shfl_down_sync(0xffffffff, lane, 3, width);
    out[96 + lane] = __shfl_xor_sync(0xffffffff, lane, 9, width);
    out[128 + lane] = int(__ballot_sync(0xffffffff, lane % 3 == 0));
    // Half a warp by itself, the other half by itself.
    const unsigned mask = lane < 16 ? 0x0000ffff : 0xffff0000;
    out[160 + lane] = lane < 16 ? __any_sync(mask, lane == 20) : __all_sync(mask, lane >= 16);
    __syncwarp();
}

// out[linear index of the thread in the grid] = its coordinates, packed.
extern "C" __global__ void coordinates(unsigned* out) {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned of_block = blockIdx.x | blockIdx.y << 4 | blockIdx.z << 8;
    out[block * threads + thread] = of_block << 12 | threadIdx.x | threadIdx.y << 4 | threadIdx.z << 8;
}

// out[block] = shared memory that nobody wrote, then written for the next block to find; behind them, the block that
// came last.
extern "C" __global__ void stale(float* out) {
    __shared__ float value;
    out[blockIdx.x] = value;
    value = 1;
    out[gridDim.x] = blockIdx.x;
}

extern "C" __global__ void widen(float* bf16, float* half, size_t len) {
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < len) {
        bf16[i] = bf16_to_float(static_cast<unsigned short>(i));
        half[i] = half_to_float(static_cast<unsigned short>(i));
    }
}

extern "C" __global__ void narrow(unsigned short* out, const float* in, size_t len) {
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < len) out[i] = float_to_bf16(in[i]);
}

// What a device leaves undefined.
extern "C" __global__ void misuse(int fault) {
    extern __shared__ float dynamic_shared[];
    const int thread = threadIdx.x;
    if (fault == 0 && thread == 7) return;       // gone before the others' barrier
    if (fault == 1 && thread < 32) {
        __syncthreads();                         // one warp at this barrier,
    }                                            // the other at the next
    if (fault == 2 && thread == 40) __syncwarp();  // waits for lanes at the barrier
    __syncthreads();
    if (fault == 3 && thread == 9) return;       // gone before its warp's shuffle
    if (fault == 3) __shfl_xor_sync(0xffffffff, thread, 1);
    if (fault == 4) __shfl_sync(thread % 32 < 16 ? 0xffffu : 0xffff0000u, thread, 20);
    if (fault == 5) __shfl_sync(1u << 3, thread, 3);
    if (fault == 6) dynamic_shared[thread] = 0;  // 64 of them, where the launch gives 63
    if (fault == 7 && thread < 40) __syncwarp();
}
