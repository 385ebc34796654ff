// The transforms of Winograd convolution: target patch = MATRIX @ source patch @ MATRIX.T, for each tile and channel.
//
// MATRIX (TARGET, SOURCE) is defined when this is compiled, so elements that are 0 or 1 cost nothing. Patches are
// squares; elements beyond the rows and columns of the array are read as 0, and never written.

struct Patches {
    long long to_image, to_down, to_across, to_channel, to_row, to_column;  // strides, in elements
    long long step, first_row, first_column, rows, columns;  // tiles are `step` apart

    __device__ bool contains(long long y, long long x, int row, int column) const {
        const long long h = first_row + y * step + row, w = first_column + x * step + column;
        return h >= 0 && h < rows && w >= 0 && w < columns;
    }
    __device__ long long start(long long image, long long y, long long x, long long channel) const {
        return image * to_image + y * to_down + x * to_across + channel * to_channel + first_row * to_row +
               first_column * to_column;
    }
};

template <typename T>
__global__ void map_tiles(const T* source, const Patches from, T* target, const Patches to, long long down,
                          long long across, long long channels, long long all) {
    constexpr T matrix[TARGET][SOURCE] = MATRIX;
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, tile = i / unsigned(channels), channel = i % unsigned(channels);
    if (i >= all) return;
    const unsigned x = tile % unsigned(across), y = tile / unsigned(across) % unsigned(down);
    const unsigned image = tile / unsigned(across) / unsigned(down);
    source += from.start(image, y, x, channel);
    target += to.start(image, y, x, channel);

    T half[TARGET][SOURCE];  // MATRIX @ source patch
    #pragma unroll
    for (int b = 0; b < SOURCE; ++b) {
        T pixels[SOURCE];
        #pragma unroll
        for (int a = 0; a < SOURCE; ++a)
            pixels[a] = from.contains(y, x, a, b) ? source[a * from.to_row + b * from.to_column] : T(0);
        #pragma unroll
        for (int p = 0; p < TARGET; ++p) {
            T sum = 0;
            #pragma unroll
            for (int a = 0; a < SOURCE; ++a) sum += matrix[p][a] * pixels[a];
            half[p][b] = sum;
        }
    }
    #pragma unroll
    for (int p = 0; p < TARGET; ++p) {
        #pragma unroll
        for (int q = 0; q < TARGET; ++q) {
            T sum = 0;
            #pragma unroll
            for (int b = 0; b < SOURCE; ++b) sum += half[p][b] * matrix[q][b];
            if (to.contains(y, x, p, q)) target[p * to.to_row + q * to.to_column] = sum;
        }
    }
}
