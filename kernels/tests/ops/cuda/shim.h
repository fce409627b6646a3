// CUDA C++ as plain C++17, so that g++ compiles a .cu and the CPU runs it: `g++ -include shim.h -x c++ op.cu`.
//
// It holds what a kernel may use without including a toolkit's header; what is missing here (approximate functions,
// atomics, __activemask) has no place in a kernel with one result. shim.cpp runs the grid.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
// Thread-local to the one host thread that runs a grid: it makes a local variable static and goes with `extern`.
// Dynamic shared memory has to be named as shim.cpp names it: `extern __shared__ T dynamic_shared[];`.
#define __shared__ thread_local

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

namespace shim {

// What the running thread sees of itself.
struct Self {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane;
};
const Self& self();

// Waits until every thread of the block is at this barrier.
void barrier(const char* op, int line);
// Waits until all lanes of `mask` are at this operation; the value that each brought, by lane.
const uint64_t* exchange(const char* op, int line, unsigned mask, uint64_t value);
// Ends the launch with an error of this thread.
[[noreturn]] void fail(const char* op, int line, const char* what, unsigned number);

template <typename T>
T shuffle(const char* op, int line, unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    const uint64_t* values = exchange(op, line, mask, bits);
    if (!(mask >> source & 1)) fail(op, line, "reads a lane that is not in its mask:", source);
    std::memcpy(&value, &values[source], sizeof(T));
    return value;
}

}  // namespace shim

#define threadIdx (shim::self().thread)
#define blockIdx (shim::self().block)
#define blockDim (shim::self().block_dim)
#define gridDim (shim::self().grid_dim)
constexpr int warpSize = 32;
constexpr unsigned shim_warp = 0xffffffff;

// The default arguments give the line of the caller.
inline void __syncthreads(int line = __builtin_LINE()) { shim::barrier("__syncthreads", line); }
inline void __syncwarp(unsigned mask = shim_warp, int line = __builtin_LINE()) {
    shim::exchange("__syncwarp", line, mask, 0);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    const unsigned group = shim::self().lane & -width;
    return shim::shuffle("__shfl_sync", line, mask, value, group | (source & (width - 1)));
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    const unsigned lane = shim::self().lane, place = lane & (width - 1);
    return shim::shuffle("__shfl_up_sync", line, mask, value, place < delta ? lane : lane - delta);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    const unsigned lane = shim::self().lane, place = lane & (width - 1);
    return shim::shuffle("__shfl_down_sync", line, mask, value, place + delta >= unsigned(width) ? lane : lane + delta);
}

// A lane of a later group is not read: CUDA gives the caller's own value.
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, int line = __builtin_LINE()) {
    const unsigned lane = shim::self().lane, source = lane ^ lane_mask;
    const bool later = (source & -width) > (lane & -width);
    return shim::shuffle("__shfl_xor_sync", line, mask, value, later ? lane : source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    const uint64_t* values = shim::exchange("__ballot_sync", line, mask, predicate != 0);
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (mask >> lane & 1) ballot |= unsigned(values[lane]) << lane;
    }
    return ballot;
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) == mask;
}

// Compiled with -ffp-contract=off, an operator rounds once, as these do.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }

template <typename To, typename From>
To shim_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To bits;
    std::memcpy(&bits, &value, sizeof(To));
    return bits;
}
inline unsigned __float_as_uint(float value) { return shim_bits<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return shim_bits<float>(bits); }
inline int __float_as_int(float value) { return shim_bits<int>(value); }
inline float __int_as_float(int bits) { return shim_bits<float>(bits); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(unsigned(bits)); }
template <typename T>
T __ldg(const T* address) { return *address; }
