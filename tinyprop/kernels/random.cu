// Philox 4x64-10, as NumPy's generator of this name has it (tinyprop/engine/random.py): a thread
// makes eight random words of 32 bits at a time, which depend on their number and on the key.

typedef unsigned long long Word;

struct Eight {
    unsigned at[8];

    __device__ Eight(Word number, Word key) {
        const Word a = 0xD2E7470EE14C6C93, b = 0xCA5A826395121157;
        Word words[] = {number + 1, 0, 0, 0}; // NumPy begins with 1
        Word other_key = 0;
        for (int round = 0; round < 10; ++round) {
            const Word left = words[0], right = words[2];
            words[0] = high(b, right) ^ words[1] ^ key;
            words[1] = b * right;
            words[2] = high(a, left) ^ words[3] ^ other_key;
            words[3] = a * left;
            key += 0x9E3779B97F4A7C15;
            other_key += 0xBB67AE8584CAA73B;
        }
        for (int k = 0; k < 8; ++k) at[k] = (unsigned)(words[k / 2] >> k % 2 * 32);
    }

    // The upper half of a product.
    __device__ Word high(Word a, Word b) const {
        const Word a_low = (unsigned)a, a_high = a >> 32;
        const Word b_low = (unsigned)b, b_high = b >> 32;
        const Word middle = a_high * b_low + (a_low * b_low >> 32);
        const Word other = a_low * b_high + (unsigned)middle;
        return a_high * b_high + (middle >> 32) + (other >> 32);
    }
};

// 0 for the fraction `dropped` / 2^32 of all elements, `survives` for the others. In a graph, which
// is recorded once for many steps, the key is that which is `live` on the device, in pieces of 16
// bits.
template <typename T>
__global__ void dropout_mask(T* __restrict__ out, Word key, const T* __restrict__ live,
                             long long dropped, T survives, long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (8 * i >= size) return;
    if (live) key = (Word)live[0] | (Word)live[1] << 16 | (Word)live[2] << 32 | (Word)live[3] << 48;
    const Eight words(i, key);
    for (int k = 0; k < 8 && 8 * i + k < size; ++k)
        out[8 * i + k] = words.at[k] < dropped ? T(0) : survives;
}

// Box and Muller's normal numbers: `count` of them, a multiple of 8, are cosines, and the others
// sines.
template <typename T>
__global__ void normals(T* __restrict__ out, Word key, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (8 * i >= count) return;
    const Eight radii(i, key), angles(count / 8 + i, key);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const float radius = sqrtf(-2.0f * logf((float)radii.at[k] * 0x1p-32f + 0x1p-33f));
        const float angle = (float)angles.at[k] * 0x1p-31f; // over pi
        out[8 * i + k] = radius * cospif(angle);
        out[count + 8 * i + k] = radius * sinpif(angle);
    }
}
