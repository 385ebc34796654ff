// Images as matrices: a row for each pixel of each image, a column for each channel. A thread goes
// down a strip of rows in a pack of WIDTH columns, so neighbors read neighbors, and the order of a
// sum is fixed. It asks for LOADS packs before it uses the first: memory answers late, but many
// questions at once.

struct Matrix {
    long long rows, columns, strip;
}; // columns are counted in packs; `strip` is the rows of a strip

template <typename T>
struct alignas(WIDTH * sizeof(T)) Pack {
    T at[WIDTH];
};

struct Strip {
    unsigned number, column;
    long long first, end, columns, strips; // rows first to end
    __device__ Strip(const Matrix& m)
        : columns(m.columns), strips((m.rows + m.strip - 1) / m.strip) {
        const unsigned i = blockIdx.x * THREADS + threadIdx.x, across = m.columns;
        number = i / across, column = i % across, first = number * m.strip;
        end = first + m.strip < m.rows ? first + m.strip : m.rows;
    }

    // One pack for each column, times `one`; or `one` for all if there is no array.
    template <typename T>
    __device__ Pack<T> either(const T* several, T one) const {
        Pack<T> pack;
        for (int c = 0; c < WIDTH; ++c)
            pack.at[c] = several ? several[column * WIDTH + c] * one : one;
        return pack;
    }

    // Sums of this strip: a row of sums[which] (strips, columns).
    template <typename T>
    __device__ void store(T* sums, int which, const Pack<T>& sum) const {
        ((Pack<T>*)sums)[(which * strips + number) * columns + column] = sum;
    }

    // out = use(c, x, y) for each element of the strip, in order; there may be no y, and no out.
    template <int INPUTS, typename T, typename Use>
    __device__ void each(const T* x, const T* y, T* out, Use use) const {
        long long row = first;
        for (; row + LOADS / INPUTS <= end; row += LOADS / INPUTS)
            rows<LOADS / INPUTS, INPUTS>(row, x, y, out, use);
        for (; row < end; ++row) rows<1, INPUTS>(row, x, y, out, use);
    }

    template <int DEPTH, int INPUTS, typename T, typename Use>
    __device__ void rows(long long row, const T* x, const T* y, T* out, Use use) const {
        Pack<T> xs[DEPTH], ys[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            xs[k] = ((const Pack<T>*)x)[(row + k) * columns + column];
            if (INPUTS == 2) ys[k] = ((const Pack<T>*)y)[(row + k) * columns + column];
        }
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) xs[k].at[c] = use(c, xs[k].at[c], ys[k].at[c]);
            if (out) ((Pack<T>*)out)[(row + k) * columns + column] = xs[k];
        }
    }
};

// (max(x + beta, 0) - c2) / c1; each of the three is an array or, without one, a number. x and out
// may be the same.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void normalized_relu(
    const T* x, const T* __restrict__ betas, T beta, const T* __restrict__ c1s, T c1,
    const T* __restrict__ c2s, T c2, T* out, const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Pack<T> shift = s.either(betas, beta), width = s.either(c1s, c1), mean = s.either(c2s, c2);
    Pack<T> scale, added, lowest;
    for (int c = 0; c < WIDTH; ++c) {
        scale.at[c] = T(1) / width.at[c];
        added.at[c] = (shift.at[c] - mean.at[c]) / width.at[c];
        lowest.at[c] = -mean.at[c] / width.at[c];
    }
    s.template each<1, T>(x, nullptr, out, [&](int c, T x, T) {
        const T sum = x * scale.at[c] + added.at[c];
        return sum < lowest.at[c] ? lowest.at[c] : sum; // NaN stays NaN
    });
}

// g_x is g / c1 where the ReLU was on; `sums` are those of g_x over strips: (strips, columns)
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void normalized_relu_gradient(
    const T* __restrict__ g, const T* __restrict__ out, const T* __restrict__ c1s, T c1,
    const T* __restrict__ c2s, T c2, T* __restrict__ g_x, T* __restrict__ sums, const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Pack<T> width = s.either(c1s, c1), mean = s.either(c2s, c2);
    Pack<T> scale, lowest, sum = {};
    for (int c = 0; c < WIDTH; ++c) {
        scale.at[c] = T(1) / width.at[c];
        lowest.at[c] = -mean.at[c] / width.at[c];
    }
    s.template each<2, T>(g, out, g_x, [&](int c, T g, T out) {
        const T passes = out <= lowest.at[c] ? T(0) : g * scale.at[c];
        sum.at[c] += passes;
        return passes;
    });
    s.store(sums, 0, sum);
}

// The mean over each strip, and the sum of (x - mean)^2: two matrices (strips, columns). Without
// the first row of the strip, sums lose few digits, however far from 0 the mean is.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void strip_moments(const T* __restrict__ x, T* __restrict__ sums, const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Pack<T> start = s.either(x + s.first * s.columns * WIDTH, T(1));
    Pack<T> mean = {}, square = {};
    s.template each<1, T>(x, nullptr, nullptr, [&](int c, T x, T) {
        const T off = x - start.at[c];
        mean.at[c] += off;
        square.at[c] += off * off;
        return off;
    });
    for (int c = 0; c < WIDTH; ++c) {
        const T off = mean.at[c] / T(s.end - s.first);
        square.at[c] -= mean.at[c] * off;
        mean.at[c] = start.at[c] + off;
    }
    s.store(sums, 0, mean);
    s.store(sums, 1, square);
}

// The statistics of columns (4, columns): mean, inverse = 1 / sqrt(var + eps), inverse * weight,
// and bias. Normalized is (x - mean) * inverse * weight + bias.
template <typename T>
struct Normal {
    Pack<T> mean, inverse, scale, bias;
    __device__ Normal(const Strip& s, const T* statistics)
        : mean(s.either(statistics, T(1))), inverse(s.either(statistics + s.columns * WIDTH, T(1))),
          scale(s.either(statistics + 2 * s.columns * WIDTH, T(1))),
          bias(s.either(statistics + 3 * s.columns * WIDTH, T(1))) {}
    __device__ T at(int c, T x) const { return fma(x - mean.at[c], scale.at[c], bias.at[c]); }
};

template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm(
    const T* __restrict__ x, const T* __restrict__ statistics, T* __restrict__ out,
    const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Normal<T> normal(s, statistics);
    s.template each<1, T>(x, nullptr, out, [&](int c, T x, T) { return normal.at(c, x); });
}

// The sums of g and of g * (x - mean) * inverse over strips: two matrices (strips, columns)
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm_sums(
    const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ statistics,
    T* __restrict__ sums, const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Normal<T> normal(s, statistics);
    Pack<T> sum = {}, product = {};
    s.template each<2, T>(g, x, nullptr, [&](int c, T g, T x) {
        sum.at[c] += g;
        product.at[c] += g * (x - normal.mean.at[c]);
        return g;
    });
    for (int c = 0; c < WIDTH; ++c) product.at[c] *= normal.inverse.at[c];
    s.store(sums, 0, sum);
    s.store(sums, 1, product);
}

// `sums` (2, columns) are those of all strips
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm_gradient(
    const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ statistics,
    const T* __restrict__ sums, T* __restrict__ g_x, const Matrix m) {
    const Strip s(m);
    if (s.first >= m.rows) return;
    const Normal<T> normal(s, statistics);
    const Pack<T> totals = s.either(sums, T(1)), alongs = s.either(sums + s.columns * WIDTH, T(1));
    s.template each<2, T>(g, x, g_x, [&](int c, T g, T x) {
        const T off = (x - normal.mean.at[c]) * normal.inverse.at[c];
        return (g - (totals.at[c] + off * alongs.at[c]) / T(m.rows)) * normal.scale.at[c];
    });
}
