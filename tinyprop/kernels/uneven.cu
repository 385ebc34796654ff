// Which tiles of a convolution are uneven (evenness.py), and the results of these tiles, by the
// definition of convolution. A pass over the flags costs little where there are none.

// Square windows that are `step` apart
struct Windows {
    long long side, step, padding_h, padding_w;
};

struct Evenness {
    long long height, width, rows, columns, down, across; // of images, results and tiles
    long long filters, weights; // how many
    Windows tiles, windows, results;
};

// Images x (N, C, H, W), filters w (O, C, k, k), outputs (N, O, rows, columns), in tiles
struct Geometry {
    long long images, height, width, channels, filters, side, padding_h, padding_w;
    long long rows, columns, down, across;
    long long x[4], w[4], out[4]; // strides, in elements

    __device__ long long pixel(long long n, long long h, long long v, long long c) const {
        return n * x[0] + c * x[1] + h * x[2] + v * x[3];
    }
    __device__ long long weight(long long o, long long c, long long a, long long b) const {
        return o * w[0] + c * w[1] + a * w[2] + b * w[3];
    }
    __device__ long long output(long long n, long long h, long long v, long long o) const {
        return n * out[0] + o * out[1] + h * out[2] + v * out[3];
    }
};

// The largest square and the sum of squares of each filter w (O, C, k, k), one block for each:
// range (2, O)
template <typename T>
__global__ void filter_range(const T* w, T* range, const Geometry s) {
    __shared__ T largest[THREADS];
    __shared__ T sums[THREADS];
    const unsigned o = blockIdx.x, side = s.side;
    const unsigned size = s.channels * side * side;
    T most = 0, sum = 0;
    for (unsigned i = threadIdx.x; i < size; i += THREADS) {
        const T weight = w[s.weight(o, i / side / side, i / side % side, i % side)];
        const T square = weight * weight;
        if (square > most) most = square;
        sum += square; // NaN stays here
    }
    largest[threadIdx.x] = most;
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int offset = THREADS / 2; offset > 0; offset /= 2) {
        if (threadIdx.x < offset) {
            const T other = largest[threadIdx.x + offset];
            if (other > largest[threadIdx.x]) largest[threadIdx.x] = other;
            sums[threadIdx.x] += sums[threadIdx.x + offset];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        range[o] = largest[0];
        range[s.filters + o] = sums[0];
    }
}

template <typename T>
__device__ bool has_even_filters(const T* range, long long filters, long long weights) {
    T most = 0, sum = 0;
    for (long long o = 0; o < filters; ++o) {
        if (range[o] > most) most = range[o];
        sum += range[filters + o];
    }
    return most <= T(MOST) && most <= T(MOST_SQUARE) * (sum / weights) + T(LEAST);
}

// A window at a place of an image whose pixels have these energies
template <typename T>
__device__ T window_energy(const T* image, const Windows& s, long long row, long long column,
                           long long height, long long width) {
    const long long h = row * s.step - s.padding_h, w = column * s.step - s.padding_w;
    T sum = 0;
    for (long long a = max(h, 0LL); a < min(h + s.side, height); ++a)
        for (long long b = max(w, 0LL); b < min(w + s.side, width); ++b)
            sum += image[a * width + b];
    return sum;
}

// One thread for each tile. Its results are a window of all results, and each has its own window of
// pixels. Without filters, range is null. `again` adds to the flags that are there already.
template <typename T>
__global__ void uneven_tiles(const T* energies, const T* range, bool* uneven, const Evenness s,
                             bool again, long long size) {
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= size || (again && uneven[i])) return;
    const long long row = i / s.across % s.down, column = i % s.across;
    const T* image = energies + i / s.across / s.down * s.height * s.width;
    const T tile = window_energy(image, s.tiles, row, column, s.height, s.width);
    bool is_even = tile <= T(MOST);
    const long long h = row * s.results.step - s.results.padding_h;
    const long long w = column * s.results.step - s.results.padding_w;
    for (long long a = max(h, 0LL); a < min(h + s.results.side, s.rows); ++a)
        for (long long b = max(w, 0LL); b < min(w + s.results.side, s.columns); ++b) {
            const T energy = window_energy(image, s.windows, a, b, s.height, s.width);
            is_even = is_even && energy >= T(LEAST) && tile <= T(MOST_ENERGY) * energy;
        }
    if (range && is_even) is_even = has_even_filters(range, s.filters, s.weights);
    uneven[i] = !is_even;
}

// The outputs of uneven tiles, one block for each place. Weights meet zeros on the padding, as in
// im2col (infinity times 0 is NaN), or nothing.
template <typename T>
__global__ void convolve_uneven(const T* x, const T* w, const bool* uneven, T* out,
                                const Geometry s, bool meets_padding) {
    const long long column = blockIdx.x % s.columns, row = blockIdx.x / s.columns % s.rows;
    const long long image = blockIdx.x / s.columns / s.rows;
    if (!uneven[(image * s.down + row / STEP) * s.across + column / STEP]) return;
    for (long long o = threadIdx.x; o < s.filters; o += THREADS) {
        T sum = 0;
        for (long long a = 0; a < s.side; ++a)
            for (long long b = 0; b < s.side; ++b) {
                const long long h = row + a - s.padding_h, v = column + b - s.padding_w;
                const bool inside = h >= 0 && h < s.height && v >= 0 && v < s.width;
                if (!inside && !meets_padding) continue;
                for (long long c = 0; c < s.channels; ++c) {
                    const T pixel = inside ? x[s.pixel(image, h, v, c)] : T(0);
                    sum += pixel * w[s.weight(o, c, a, b)];
                }
            }
        out[s.output(image, row, column, o)] = sum;
    }
}

// Whether one of the threads of the block has found something
__device__ inline bool any_in_block(bool mine) {
    __shared__ int all[THREADS];
    all[threadIdx.x] = mine;
    __syncthreads();
    for (int offset = THREADS / 2; offset > 0; offset /= 2) {
        if (threadIdx.x < offset) all[threadIdx.x] |= all[threadIdx.x + offset];
        __syncthreads();
    }
    return all[0];
}

// Add what the outputs of uneven tiles contribute to the gradient with respect to the filters,
// which is contiguous: one thread for each weight
template <typename T>
__global__ void add_filter_gradient(const T* x, const T* g, const bool* uneven_x,
                                    const bool* uneven_g, T* out, const Geometry s) {
    const long long tiles = s.images * s.down * s.across;
    bool found = false;
    for (long long t = threadIdx.x; t < tiles; t += THREADS)
        found = found || uneven_x[t] || uneven_g[t];
    found = any_in_block(found);
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (!found || i >= s.filters * s.channels * s.side * s.side) return;
    const long long b = i % s.side, a = i / s.side % s.side;
    const long long c = i / s.side / s.side % s.channels;
    const long long o = i / s.side / s.side / s.channels;
    T sum = 0;
    for (long long t = 0; t < tiles; ++t) {
        if (!uneven_x[t] && !uneven_g[t]) continue;
        const long long image = t / s.across / s.down;
        const long long top = t / s.across % s.down * STEP, left = t % s.across * STEP;
        for (long long row = top; row < min(top + STEP, s.rows); ++row)
            for (long long column = left; column < min(left + STEP, s.columns); ++column) {
                const long long h = row + a - s.padding_h, v = column + b - s.padding_w;
                const bool inside = h >= 0 && h < s.height && v >= 0 && v < s.width;
                const T pixel = inside ? x[s.pixel(image, h, v, c)] : T(0);
                sum += pixel * g[s.output(image, row, column, o)];
            }
    }
    out[i] += sum;
}
