// The transforms of Winograd convolution: target = MATRIX @ source @ MATRIX.T, for each tile and
// channel. The source is a tile of images (N, H, W, C), the target its points (points, tiles, C);
// with BACK, the other way round. MATRIX (TARGET, SOURCE) is defined when this is compiled:
// elements that are 0 or 1 cost nothing. The points of uneven tiles (uneven.cu) are 0.

struct Images {
    long long to_image, to_row, to_column, to_channel; // strides, in elements
    long long height, width, channels;
    long long down, across, step; // tiles down and across, `step` apart
    long long padding_h, padding_w;
};

// Pixels (a, b) of the tile and channel of thread i. Outside the image they are 0, and never
// written.
struct Tile {
    long long start, h, w;
    const Images& s;

    __device__ Tile(unsigned i, const Images& s) : s(s) {
        const unsigned channels = s.channels, across = s.across, down = s.down;
        const unsigned tile = i / channels, channel = i % channels;
        const unsigned image = tile / across / down;
        h = tile / across % down * s.step - s.padding_h;
        w = tile % across * s.step - s.padding_w;
        start = image * s.to_image + channel * s.to_channel + h * s.to_row + w * s.to_column;
    }

    __device__ bool has(int a, int b) const {
        const bool in_height = h + a >= 0 && h + a < s.height;
        const bool in_width = w + b >= 0 && w + b < s.width;
        return in_height && in_width;
    }

    __device__ long long at(int a, int b) const { return start + a * s.to_row + b * s.to_column; }
};

template <typename T>
__global__ void map_tiles(const T* source, T* target, const bool* uneven, const Images shape,
                          long long size) {
    constexpr T matrix[TARGET][SOURCE] = MATRIX;
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Tile tile(i, shape);
    if (uneven && uneven[i / unsigned(shape.channels)]) {
        for (int p = 0; p < TARGET * TARGET; ++p) target[p * size + i] = 0;
        return;
    }
    T left[TARGET][SOURCE]; // MATRIX @ source
#pragma unroll
    for (int b = 0; b < SOURCE; ++b) {
        T column[SOURCE];
#pragma unroll
        for (int a = 0; a < SOURCE; ++a) {
            if (BACK) column[a] = source[(a * SOURCE + b) * size + i];
            else column[a] = tile.has(a, b) ? source[tile.at(a, b)] : T(0);
        }
#pragma unroll
        for (int p = 0; p < TARGET; ++p) {
            left[p][b] = 0;
#pragma unroll
            for (int a = 0; a < SOURCE; ++a) left[p][b] += matrix[p][a] * column[a];
        }
    }
#pragma unroll
    for (int p = 0; p < TARGET; ++p) {
#pragma unroll
        for (int q = 0; q < TARGET; ++q) {
            T sum = 0;
#pragma unroll
            for (int b = 0; b < SOURCE; ++b) sum += left[p][b] * matrix[q][b];
            if (!BACK) target[(p * TARGET + q) * size + i] = sum;
            else if (tile.has(p, q)) target[tile.at(p, q)] = sum;
        }
    }
}
