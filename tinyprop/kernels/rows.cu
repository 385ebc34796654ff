// One block for each row of a matrix, or for each column of strips: its threads add up, then share
// the sum.

// The sum of one number from each thread of the block, in a fixed order.
template <typename T>
__device__ T block_sum(T mine) {
    __shared__ T all[THREADS];
    all[threadIdx.x] = mine;
    __syncthreads();
    for (int offset = THREADS / 2; offset > 0; offset /= 2) {
        if (threadIdx.x < offset) all[threadIdx.x] += all[threadIdx.x + offset];
        __syncthreads();
    }
    const T sum = all[0];
    __syncthreads();
    return sum;
}

// The sum of a[j] * b[j] over a row.
template <typename T>
__device__ T row_product(const T* a, const T* b, long long columns) {
    T sum = 0;
    for (long long j = threadIdx.x; j < columns; j += THREADS) sum += a[j] * b[j];
    return block_sum(sum);
}

// The sum over strips, for each column of each matrix of sums (matrices, strips, columns)
template <typename T>
__global__ void totals(const T* sums, T* out, long long strips, long long columns) {
    const T* first = sums + blockIdx.x / columns * strips * columns + blockIdx.x % columns;
    T sum = 0;
    for (long long s = threadIdx.x; s < strips; s += THREADS) sum += first[s * columns];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out = w * (scale * factor / length) for each row; without a scale it is 1
template <typename T>
__global__ void weight_norm(const T* w, const T* scale, T factor, T* out, long long columns) {
    const T* row = w + blockIdx.x * columns;
    const T times =
        (scale ? scale[blockIdx.x] : T(1)) * factor / sqrt(row_product(row, row, columns));
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        out[blockIdx.x * columns + j] = row[j] * times;
}

template <typename T>
__global__ void weight_norm_gradient(const T* g, const T* w, const T* scale, T factor, T* g_w,
                                     T* g_scale, long long columns) {
    const T *row = w + blockIdx.x * columns, *g_row = g + blockIdx.x * columns;
    const T squares = row_product(row, row, columns), products = row_product(row, g_row, columns);
    const T length = sqrt(squares), times = scale[blockIdx.x] * factor / length,
            along = products / squares;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        g_w[blockIdx.x * columns + j] = (g_row[j] - row[j] * along) * times;
    if (threadIdx.x == 0) g_scale[blockIdx.x] = products / length * factor;
}

// The statistics of each column (mean, 1 / sqrt(var + eps), that times weight, and bias:
// channels.cu), from the moments of its strips (2, strips, columns); the running estimates are
// moved towards the mean and the unbiased variance.
template <typename T>
__global__ void batch_statistics(const T* __restrict__ means, const T* __restrict__ weight,
                                 const T* __restrict__ bias, T* __restrict__ statistics,
                                 T* __restrict__ running_mean, T* __restrict__ running_var, T eps,
                                 T momentum, long long rows, long long columns, long long strip) {
    const long long strips = (rows + strip - 1) / strip, column = blockIdx.x;
    const T* squares = means + strips * columns;
    const T last = rows - (strips - 1) * strip; // rows in the last strip
    T sum = 0, square = 0;
    for (long long s = threadIdx.x; s < strips; s += THREADS)
        sum += (s < strips - 1 ? T(strip) : last) * means[s * columns + column];
    const T mean = block_sum(sum) / T(rows);
    for (long long s = threadIdx.x; s < strips; s += THREADS) {
        const T off = means[s * columns + column] - mean;
        square += squares[s * columns + column] + (s < strips - 1 ? T(strip) : last) * off * off;
    }
    square = block_sum(square);
    if (threadIdx.x) return;
    const T inverse = T(1) / sqrt(square / T(rows) + eps);
    const T results[] = {mean, inverse, inverse * weight[column], bias[column]};
    for (int k = 0; k < 4; ++k) statistics[k * columns + column] = results[k];
    running_mean[column] += momentum * (mean - running_mean[column]);
    running_var[column] += momentum * (square / T(rows - 1) - running_var[column]);
}
