// Images as matrices (rows, columns): a row for each pixel of each image, a column for each channel.
//
// Sums over rows are taken in strips: a thread goes down a strip of one column, so that neighboring threads read
// neighboring elements and the order of the sum is fixed.

struct Strip { long long column, first, end, size; };  // elements first, first + columns, ... before end

__device__ Strip strip_of(long long rows, long long columns, long long strip) {
    const long long column = (long long)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y * strip;
    const long long size = row + strip < rows ? strip : rows - row;
    return {column, row * columns + column, (row + size) * columns, size};
}

// A number for each column, or, if there are none, one number for all.
template <typename T> __device__ T either(const T* several, T one, long long column) {
    return several ? several[column] : one;
}

template <typename T>
__global__ void shifted_relu(const T* x, const T* biases, T bias, const T* shifts, T shift, T* out, long long size,
                             long long columns) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % columns;
    if (i >= size) return;
    const T low = -either(shifts, shift, column), sum = x[i] + (either(biases, bias, column) + low);
    out[i] = sum < low ? low : sum;  // NaN stays NaN
}

// `sums` are those of `passed` over strips: (rows, columns) -> (strips, columns)
template <typename T>
__global__ void shifted_relu_gradient(const T* g, const T* out, const T* shifts, T shift, T* passed, T* sums,
                                      long long rows, long long columns, long long strip) {
    const Strip s = strip_of(rows, columns, strip);
    if (s.column >= columns) return;
    const T low = -either(shifts, shift, s.column);
    T sum = 0;
    for (long long i = s.first; i < s.end; i += columns) sum += passed[i] = out[i] <= low ? T(0) : g[i];
    sums[blockIdx.y * columns + s.column] = sum;
}

// The mean over each strip, and the sum of (x - mean)^2: (rows, columns) -> (2, strips, columns)
template <typename T>
__global__ void strip_moments(const T* x, T* moments, long long rows, long long columns, long long strip) {
    const Strip s = strip_of(rows, columns, strip);
    if (s.column >= columns) return;
    T sum = 0, squares = 0;
    for (long long i = s.first; i < s.end; i += columns) sum += x[i];
    const T mean = sum / T(s.size);
    for (long long i = s.first; i < s.end; i += columns) squares += (x[i] - mean) * (x[i] - mean);
    moments[blockIdx.y * columns + s.column] = mean;
    moments[(gridDim.y + blockIdx.y) * columns + s.column] = squares;
}

// `statistics` are mean and 1 / sqrt(var + eps), here and below
template <typename T>
__global__ void batch_norm(const T* x, const T* statistics, const T* weight, const T* bias, T* out, long long size,
                           long long columns) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % columns;
    if (i >= size) return;
    out[i] = (x[i] - statistics[column]) * (statistics[columns + column] * weight[column]) + bias[column];
}

// The sums of g and of g * (x - mean) / sqrt(var + eps) over strips: (rows, columns) -> (2, strips, columns)
template <typename T>
__global__ void batch_norm_sums(const T* g, const T* x, const T* statistics, T* sums, long long rows,
                                long long columns, long long strip) {
    const Strip s = strip_of(rows, columns, strip);
    if (s.column >= columns) return;
    T sum = 0, along = 0;
    for (long long i = s.first; i < s.end; i += columns) {
        sum += g[i];
        along += g[i] * (x[i] - statistics[s.column]);
    }
    sums[blockIdx.y * columns + s.column] = sum;
    sums[(gridDim.y + blockIdx.y) * columns + s.column] = along * statistics[columns + s.column];
}

// `sums` are those of all strips: (2, columns)
template <typename T>
__global__ void batch_norm_gradient(const T* g, const T* x, const T* statistics, const T* weight, const T* sums,
                                    T* g_x, long long size, long long columns) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % columns;
    if (i >= size) return;
    const T inverse = statistics[columns + column], normal = (x[i] - statistics[column]) * inverse;
    const T mean = (sums[column] + normal * sums[columns + column]) / T(size / columns);
    g_x[i] = (g[i] - mean) * (inverse * weight[column]);
}
