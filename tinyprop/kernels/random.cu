// Philox 4x32-10 (tinyprop/random.py has the formula): a thread makes four random words.

struct Key { unsigned low, high; };

// 0 for the fraction `dropped` / 2^32 of all elements, `survives` for the others. In a graph, which is recorded once for
// many steps, the key is that which is `live` on the device, in pieces of 16 bits.
template <typename T>
__global__ void dropout_mask(T* __restrict__ out, const Key given, const T* __restrict__ live, long long dropped,
                             T survives, long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (4 * i >= size) return;
    unsigned words[] = {(unsigned)i, (unsigned)(i >> 32), 0, 0}, low = given.low, high = given.high;
    if (live) low = (unsigned)live[0] | (unsigned)live[1] << 16, high = (unsigned)live[2] | (unsigned)live[3] << 16;
    for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
        const unsigned long long left = 0xD2511F53ull * words[0], right = 0xCD9E8D57ull * words[2];
        words[0] = (unsigned)(right >> 32) ^ words[1] ^ low, words[1] = (unsigned)right;
        words[2] = (unsigned)(left >> 32) ^ words[3] ^ high, words[3] = (unsigned)left;
    }
    for (int k = 0; k < 4 && 4 * i + k < size; ++k) out[4 * i + k] = words[k] < dropped ? T(0) : survives;
}
