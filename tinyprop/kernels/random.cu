// Philox 4x32-10 (tinyprop/random.py has the formulas): a thread makes four random words.

struct Key { unsigned low, high; };
struct Words { unsigned word[4]; };

__device__ Words philox(long long i, Key key) {
    Words w = {{(unsigned)i, (unsigned)(i >> 32), 0, 0}};
    for (int round = 0; round < 10; ++round, key.low += 0x9E3779B9u, key.high += 0xBB67AE85u) {
        const unsigned long long left = 0xD2511F53ull * w.word[0], right = 0xCD9E8D57ull * w.word[2];
        w.word[0] = (unsigned)(right >> 32) ^ w.word[1] ^ key.low, w.word[1] = (unsigned)right;
        w.word[2] = (unsigned)(left >> 32) ^ w.word[3] ^ key.high, w.word[3] = (unsigned)left;
    }
    return w;
}

// 0 for the fraction `dropped` / 2^32 of all elements, `survives` for the others. In a graph, which is recorded once for
// many steps, the key is that which is `live` on the device, in pieces of 16 bits.
template <typename T>
__global__ void dropout_mask(T* __restrict__ out, Key key, const T* __restrict__ live, long long dropped, T survives,
                             long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (4 * i >= size) return;
    if (live) key = {(unsigned)live[0] | (unsigned)live[1] << 16, (unsigned)live[2] | (unsigned)live[3] << 16};
    const Words w = philox(i, key);
    for (int k = 0; k < 4 && 4 * i + k < size; ++k) out[4 * i + k] = w.word[k] < dropped ? T(0) : survives;
}

// Standard normal numbers: two from two words.
template <typename T> __global__ void standard_normal(T* __restrict__ out, const Key key, long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (4 * i >= size) return;
    const Words w = philox(i, key);
    for (int k = 0; k < 4 && 4 * i + k < size; k += 2) {
        const T radius = sqrt(T(-2) * log((T(w.word[k]) + T(0.5)) * T(1 / 4294967296.0)));
        const T turns = T(w.word[k + 1]) * T(2 / 4294967296.0);
        out[4 * i + k] = radius * cospi(turns);
        if (4 * i + k + 1 < size) out[4 * i + k + 1] = radius * sinpi(turns);
    }
}
