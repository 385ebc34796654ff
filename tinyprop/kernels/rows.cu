// One block for each row of a matrix, or for each column of sums: its threads add up, then share
// the sum.

// The sum of one number from each thread of the block, in a fixed order.
__device__ double block_sum(double mine) {
    __shared__ double all[THREADS];
    all[threadIdx.x] = mine;
    __syncthreads();
    for (int offset = THREADS / 2; offset > 0; offset /= 2) {
        if (threadIdx.x < offset) all[threadIdx.x] += all[threadIdx.x + offset];
        __syncthreads();
    }
    const double sum = all[0];
    __syncthreads();
    return sum;
}

// The sum of a[j] * b[j] over a row.
template <typename T>
__device__ double row_product(const T* a, const T* b, long long columns) {
    double sum = 0;
    for (long long j = threadIdx.x; j < columns; j += THREADS) sum += double(a[j]) * b[j];
    return block_sum(sum);
}

// The sum of parts (parts, columns), for each column
template <typename T>
__global__ void totals(const T* sums, T* out, long long parts, long long columns) {
    double sum = 0;
    for (long long p = threadIdx.x; p < parts; p += THREADS) sum += sums[p * columns + blockIdx.x];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out = w * (scale * factor / length) for each row; without a scale it is 1
template <typename T>
__global__ void weight_norm(const T* w, const T* scale, T factor, T* out, long long columns) {
    const T* row = w + blockIdx.x * columns;
    const double length = sqrt(row_product(row, row, columns));
    const T times = (scale ? scale[blockIdx.x] : T(1)) * factor / length;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        out[blockIdx.x * columns + j] = row[j] * times;
}

template <typename T>
__global__ void weight_norm_gradient(const T* g, const T* w, const T* scale, T factor, T* g_w,
                                     T* g_scale, long long columns) {
    const T* row = w + blockIdx.x * columns;
    const T* g_row = g + blockIdx.x * columns;
    const double squares = row_product(row, row, columns);
    const double products = row_product(row, g_row, columns);
    const double length = sqrt(squares);
    const T times = scale[blockIdx.x] * factor / length;
    const T along = products / squares;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        g_w[blockIdx.x * columns + j] = (g_row[j] - row[j] * along) * times;
    if (threadIdx.x == 0) g_scale[blockIdx.x] = products / length * factor;
}
