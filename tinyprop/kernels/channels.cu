// Images as matrices: a row for each pixel of each image, a column for each channel. Columns are
// read in packs of WIDTH. A thread goes down a strip of rows in one pack, so the order of a sum is
// fixed. It issues LOADS loads before it uses the first, since memory answers late.
//
// A block has several strips, one below the other, of `across` neighboring packs: thread t has pack
// t % across of strip t / across. What all strips of a block add up to is a part; the parts of a
// sum are (parts, columns), and the kernel that needs the whole sum adds them up.

struct Matrix {
    long long rows;
    long long columns; // in packs
    long long strip;   // rows of a strip
    long long across;  // packs of a block, a power of two
};

template <typename T>
struct alignas(WIDTH * sizeof(T)) Pack {
    T at[WIDTH];
};

// A sum that remembers what rounding has lost (Kahan), so that strips may be long.
template <typename T>
struct Sum {
    T sum, lost; // `Sum<T> s[WIDTH] = {}` starts at 0

    __device__ void add(T x) {
        const T corrected = x - lost;
        const T next = sum + corrected;
        const T error = (next - sum) - corrected;
        lost = error == error ? error : T(0); // infinity - infinity is NaN
        sum = next;
    }
};

struct Strip {
    unsigned part, column;      // the part that this block adds up to, and the pack of this thread
    long long first, end;       // rows of this strip; none if it lies outside the matrix
    long long part_rows, parts; // rows of a part, except for the last one
    long long rows, columns, across;
    bool leads; // whether this thread writes what its block has found for the pack

    __device__ Strip(const Matrix& m) : rows(m.rows), columns(m.columns), across(m.across) {
        const unsigned groups = (m.columns + m.across - 1) / m.across;
        const unsigned strips = THREADS / m.across, strip = threadIdx.x / m.across;
        part = blockIdx.x / groups;
        column = blockIdx.x % groups * m.across + threadIdx.x % m.across;
        part_rows = strips * m.strip;
        parts = (m.rows + part_rows - 1) / part_rows;
        first = part * part_rows + strip * m.strip;
        end = first + m.strip < m.rows ? first + m.strip : m.rows;
        leads = strip == 0 && column < m.columns;
        if (column < m.columns && first < end) return;
        column = column < m.columns ? column : m.columns - 1;
        end = first;
    }

    // The rows of part number p.
    __device__ long long rows_of(long long p) const {
        return p + 1 < parts ? part_rows : rows - p * part_rows;
    }

    // The values of these columns, times `one`; or `one` for all if there is no array.
    template <typename T>
    __device__ Pack<T> either(const T* several, T one) const {
        Pack<T> pack;
        for (int c = 0; c < WIDTH; ++c)
            pack.at[c] = several ? several[column * WIDTH + c] * one : one;
        return pack;
    }

    // Row number r of a matrix (..., columns).
    template <typename T>
    __device__ Pack<T> row(const T* matrix, long long r) const {
        return ((const Pack<T>*)matrix)[r * columns + column];
    }

    template <typename T>
    __device__ void store(T* matrix, long long r, const Pack<T>& values) const {
        ((Pack<T>*)matrix)[r * columns + column] = values;
    }

    template <typename T>
    __device__ Pack<T> sum_over_strips(const Sum<T>* mine) const {
        Pack<T> sums;
        for (int c = 0; c < WIDTH; ++c) sums.at[c] = mine[c].sum;
        return sum_over_strips(sums);
    }

    // The sum over the strips of the block, in a fixed order. All threads of the block call it.
    template <typename T>
    __device__ Pack<T> sum_over_strips(const Pack<T>& mine) const {
        __shared__ T all[WIDTH * THREADS];
        for (int c = 0; c < WIDTH; ++c) all[c * THREADS + threadIdx.x] = mine.at[c];
        __syncthreads();
        for (int offset = THREADS / 2; offset >= across; offset /= 2) {
            if (threadIdx.x < offset)
                for (int c = 0; c < WIDTH; ++c)
                    all[c * THREADS + threadIdx.x] += all[c * THREADS + threadIdx.x + offset];
            __syncthreads();
        }
        Pack<T> sum;
        for (int c = 0; c < WIDTH; ++c) sum.at[c] = all[c * THREADS + threadIdx.x % across];
        __syncthreads();
        return sum;
    }

    // The sum of parts (parts, columns). The strips of the block take turns.
    template <typename T>
    __device__ Pack<T> sum_of_parts(const T* sums) const {
        Sum<T> mine[WIDTH] = {};
        for (long long p = threadIdx.x / across; p < parts; p += THREADS / across) {
            const Pack<T> part = row(sums, p);
            for (int c = 0; c < WIDTH; ++c) mine[c].add(part.at[c]);
        }
        return sum_over_strips(mine);
    }

    // out = use(c, x, y) for each element of the strip, in order; there may be no y, and no out.
    template <int INPUTS, typename T, typename Use>
    __device__ void each(const T* x, const T* y, T* out, Use use) const {
        long long row = first;
        for (; row + LOADS / INPUTS <= end; row += LOADS / INPUTS)
            several<LOADS / INPUTS, INPUTS>(row, x, y, out, use);
        for (; row < end; ++row) several<1, INPUTS>(row, x, y, out, use);
    }

    // The same for DEPTH rows.
    template <int DEPTH, int INPUTS, typename T, typename Use>
    __device__ void several(long long row, const T* x, const T* y, T* out, Use use) const {
        Pack<T> xs[DEPTH], ys[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            xs[k] = this->row(x, row + k);
            if (INPUTS == 2) ys[k] = this->row(y, row + k);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) xs[k].at[c] = use(c, xs[k].at[c], ys[k].at[c]);
            if (out) store(out, row + k, xs[k]);
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
    const Pack<T> shift = s.either(betas, beta);
    const Pack<T> width = s.either(c1s, c1);
    const Pack<T> mean = s.either(c2s, c2);
    Pack<T> scale, off;
    for (int c = 0; c < WIDTH; ++c) {
        scale.at[c] = T(1) / width.at[c];
        off.at[c] = -mean.at[c] / width.at[c];
    }
    s.template each<1, T>(x, nullptr, out, [&](int c, T x, T) {
        const T sum = x + shift.at[c];
        return sum <= T(0) ? off.at[c] : (sum - mean.at[c]) * scale.at[c]; // NaN stays NaN
    });
}

// g_x is g / c1 where the ReLU was on; `sums` are the parts of its sums: (parts, columns)
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void normalized_relu_gradient(
    const T* __restrict__ g, const T* __restrict__ out, const T* __restrict__ c1s, T c1,
    const T* __restrict__ c2s, T c2, T* __restrict__ g_x, T* __restrict__ sums, const Matrix m) {
    const Strip s(m);
    const Pack<T> width = s.either(c1s, c1);
    const Pack<T> mean = s.either(c2s, c2);
    Pack<T> scale, off;
    Sum<T> sum[WIDTH] = {};
    for (int c = 0; c < WIDTH; ++c) {
        scale.at[c] = T(1) / width.at[c];
        off.at[c] = -mean.at[c] / width.at[c];
    }
    s.template each<2, T>(g, out, g_x, [&](int c, T g, T out) {
        const T passes = out == off.at[c] ? T(0) : g * scale.at[c];
        sum[c].add(passes);
        return passes;
    });
    const Pack<T> total = s.sum_over_strips(sum);
    if (s.leads) s.store(sums, s.part, total);
}

// What a column, or a part of it, has: a mean in two numbers, mean + rest, and the sum of (x -
// mean - rest)^2. Means of parts differ by less than the values do, and their differences are exact
// only with the rest.
template <typename T>
struct Moments {
    Pack<T> mean, rest, square;

    // Merge what the threads that share a column have found, each `count` rows of `rows`.
    __device__ void merge(const Strip& s, T count, T rows) {
        Pack<T> sum = {}, off = {}, inside = {};
        for (int c = 0; count > 0 && c < WIDTH; ++c) sum.at[c] = count * mean.at[c];
        Pack<T> middle = s.sum_over_strips(sum);
        for (int c = 0; c < WIDTH; ++c) {
            middle.at[c] /= rows;
            if (!(count > 0)) continue;
            const T away = (mean.at[c] - middle.at[c]) + rest.at[c];
            off.at[c] = count * away;
            inside.at[c] = square.at[c] + off.at[c] * away;
        }
        off = s.sum_over_strips(off);
        square = s.sum_over_strips(inside);
        for (int c = 0; c < WIDTH; ++c) {
            mean.at[c] = middle.at[c];
            rest.at[c] = off.at[c] / rows;
            square.at[c] -= off.at[c] * rest.at[c];
        }
    }
};

// The moments of each part: three matrices (parts, columns). Without the first row of the strip,
// sums lose few digits, however far from 0 the mean is.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void part_moments(const T* __restrict__ x, T* __restrict__ moments, const Matrix m) {
    const Strip s(m);
    const T count = s.end - s.first;
    Moments<T> mine = {};
    Sum<T> sum[WIDTH] = {};
    T square[WIDTH] = {}; // positive terms: these need no care
    if (count > 0) mine.mean = s.row(x, s.first);
    s.template each<1, T>(x, nullptr, nullptr, [&](int c, T x, T) {
        const T off = x - mine.mean.at[c];
        sum[c].add(off);
        square[c] += off * off;
        return off;
    });
    for (int c = 0; count > 0 && c < WIDTH; ++c) {
        mine.rest.at[c] = sum[c].sum / count;
        mine.square.at[c] = square[c] - sum[c].sum * mine.rest.at[c];
    }
    mine.merge(s, count, T(s.rows_of(s.part)));
    if (!s.leads) return;
    s.store(moments, s.part, mine.mean);
    s.store(moments, s.parts + s.part, mine.rest);
    s.store(moments, 2 * s.parts + s.part, mine.square);
}

// The moments of each column, from those of the parts. The strips of the block take turns.
template <typename T>
__device__ Moments<T> moments_of_parts(const Strip& s, const T* moments) {
    const unsigned strip = threadIdx.x / s.across, strips = THREADS / s.across;
    Sum<T> sum[WIDTH] = {}, off[WIDTH] = {}, inside[WIDTH] = {};
    for (long long p = strip; p < s.parts; p += strips) {
        const Pack<T> mean = s.row(moments, p);
        for (int c = 0; c < WIDTH; ++c) sum[c].add(T(s.rows_of(p)) * mean.at[c]);
    }
    Pack<T> middle = s.sum_over_strips(sum);
    for (int c = 0; c < WIDTH; ++c) middle.at[c] /= T(s.rows);
    for (long long p = strip; p < s.parts; p += strips) {
        const Pack<T> mean = s.row(moments, p), rest = s.row(moments, s.parts + p);
        const Pack<T> square = s.row(moments, 2 * s.parts + p);
        for (int c = 0; c < WIDTH; ++c) {
            const T away = (mean.at[c] - middle.at[c]) + rest.at[c];
            off[c].add(T(s.rows_of(p)) * away);
            inside[c].add(square.at[c] + T(s.rows_of(p)) * away * away);
        }
    }
    const Pack<T> offs = s.sum_over_strips(off);
    Moments<T> found;
    found.square = s.sum_over_strips(inside);
    for (int c = 0; c < WIDTH; ++c) {
        found.rest.at[c] = offs.at[c] / T(s.rows);
        found.mean.at[c] = middle.at[c] + found.rest.at[c];
        found.square.at[c] -= offs.at[c] * found.rest.at[c];
    }
    return found;
}

// out = (x - mean) * inverse * weight + bias, where inverse = 1 / sqrt(var + eps). The `statistics`
// (2, columns) are mean and inverse; the running estimates are moved towards the mean and the
// unbiased variance.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm(
    const T* __restrict__ x, const T* __restrict__ moments, const T* __restrict__ weight,
    const T* __restrict__ bias, T* __restrict__ statistics, T* __restrict__ running_mean,
    T* __restrict__ running_var, T eps, T momentum, T* __restrict__ out, const Matrix m) {
    const Strip s(m);
    const Moments<T> found = moments_of_parts(s, moments);
    const Pack<T> mean = found.mean, weights = s.either(weight, T(1)), shift = s.either(bias, T(1));
    Pack<T> inverse, scale;
    for (int c = 0; c < WIDTH; ++c) {
        inverse.at[c] = T(1) / sqrt(found.square.at[c] / T(s.rows) + eps);
        scale.at[c] = inverse.at[c] * weights.at[c];
    }
    s.template each<1, T>(x, nullptr, out, [&](int c, T x, T) {
        return fma(x - mean.at[c], scale.at[c], shift.at[c]);
    });
    if (!s.leads || s.part > 0) return;
    s.store(statistics, 0, mean);
    s.store(statistics, 1, inverse);
    for (int c = 0; c < WIDTH; ++c) {
        const long long column = s.column * WIDTH + c;
        const T variance = found.square.at[c] / T(s.rows - 1);
        running_mean[column] += momentum * (mean.at[c] - running_mean[column]);
        running_var[column] += momentum * (variance - running_var[column]);
    }
}

// The parts of the sums of g and of g * (x - mean) * inverse: two matrices (parts, columns)
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm_sums(
    const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ statistics,
    T* __restrict__ sums, const Matrix m) {
    const Strip s(m);
    const Pack<T> mean = s.row(statistics, 0), inverse = s.row(statistics, 1);
    Sum<T> sums_of_g[WIDTH] = {}, products[WIDTH] = {};
    s.template each<2, T>(g, x, nullptr, [&](int c, T g, T x) {
        sums_of_g[c].add(g);
        products[c].add(g * (x - mean.at[c]));
        return g;
    });
    const Pack<T> sum = s.sum_over_strips(sums_of_g);
    Pack<T> product = s.sum_over_strips(products);
    if (!s.leads) return;
    for (int c = 0; c < WIDTH; ++c) product.at[c] *= inverse.at[c];
    s.store(sums, s.part, sum);
    s.store(sums, s.parts + s.part, product);
}

// The `totals` (2, columns) of both sums are the gradients of bias and weight.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void batch_norm_gradient(
    const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ statistics,
    const T* __restrict__ weight, const T* __restrict__ sums, T* __restrict__ totals,
    T* __restrict__ g_x, const Matrix m) {
    const Strip s(m);
    const Pack<T> total = s.sum_of_parts(sums);
    const Pack<T> along = s.sum_of_parts(sums + s.parts * s.columns * WIDTH);
    if (s.leads && s.part == 0) {
        s.store(totals, 0, total);
        s.store(totals, 1, along);
    }
    const Pack<T> mean = s.row(statistics, 0), inverse = s.row(statistics, 1);
    const Pack<T> weights = s.either(weight, T(1));
    // g_x = (g - total / rows - off * along / rows) * scale, with off = (x - mean) * inverse
    Pack<T> shift, slope, scale;
    for (int c = 0; c < WIDTH; ++c) {
        shift.at[c] = total.at[c] / T(s.rows);
        slope.at[c] = along.at[c] / T(s.rows) * inverse.at[c];
        scale.at[c] = inverse.at[c] * weights.at[c];
    }
    s.template each<2, T>(g, x, g_x, [&](int c, T g, T x) {
        return (g - shift.at[c] - (x - mean.at[c]) * slope.at[c]) * scale.at[c];
    });
}
