// Narrow floats by their bits. The toolkit's cuda_bf16.h and cuda_fp16.h would need a toolkit on every machine.

#pragma once

__device__ inline float bf16_to_float(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned int>(bits) << 16);
}

// To nearest, ties to even; a NaN stays one.
__device__ inline unsigned short float_to_bf16(float value) {
    const unsigned int bits = __float_as_uint(value);
    const unsigned int rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return static_cast<unsigned short>((value == value ? rounded : bits | 0x400000) >> 16);
}

__device__ inline float half_to_float(unsigned short bits) {
    const unsigned int sign = (bits & 0x8000u) << 16;
    const unsigned int magnitude = (bits & 0x7fffu) << 13;
    // Moved into place, the exponent is 112 too small, which a product mends for subnormals too; infinity and NaN
    // need the largest exponent.
    const unsigned int special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;
    return __uint_as_float(sign | special | __float_as_uint(__fmul_rn(__uint_as_float(magnitude), 0x1p112f)));
}
