// One block for each row of a matrix, or for each column of sums: its threads add up, then share
// the sum.

// A sum that remembers what rounding has lost (Kahan), so that it may have many terms.
template <typename T>
struct Sum {
    T sum, lost; // `Sum<T> s = {}` starts at 0

    __device__ void add(T x) {
        const T corrected = x - lost;
        const T next = sum + corrected;
        const T error = (next - sum) - corrected;
        lost = error == error ? error : T(0); // infinity - infinity is NaN
        sum = next;
    }
};

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
    Sum<T> mine = {};
    for (long long j = threadIdx.x; j < columns; j += THREADS) mine.add(a[j] * b[j]);
    return block_sum(mine.sum);
}

// The sum of parts (parts, columns), for each column
template <typename T>
__global__ void totals(const T* sums, T* out, long long parts, long long columns) {
    Sum<T> mine = {};
    for (long long p = threadIdx.x; p < parts; p += THREADS)
        mine.add(sums[p * columns + blockIdx.x]);
    const T sum = block_sum(mine.sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out = w * (scale * factor / length) for each row; without a scale it is 1
template <typename T>
__global__ void weight_norm(const T* w, const T* scale, T factor, T* out, long long columns) {
    const T* row = w + blockIdx.x * columns;
    const T length = sqrt(row_product(row, row, columns));
    const T times = (scale ? scale[blockIdx.x] : T(1)) * factor / length;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        out[blockIdx.x * columns + j] = row[j] * times;
}

template <typename T>
__global__ void weight_norm_gradient(const T* g, const T* w, const T* scale, T factor, T* g_w,
                                     T* g_scale, long long columns) {
    const T* row = w + blockIdx.x * columns;
    const T* g_row = g + blockIdx.x * columns;
    const T squares = row_product(row, row, columns);
    const T products = row_product(row, g_row, columns);
    const T length = sqrt(squares);
    const T times = scale[blockIdx.x] * factor / length;
    const T along = products / squares;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        g_w[blockIdx.x * columns + j] = (g_row[j] - row[j] * along) * times;
    if (threadIdx.x == 0) g_scale[blockIdx.x] = products / length * factor;
}
