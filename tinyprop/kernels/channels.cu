// Images as matrices: a row for each pixel of each image, a column for each channel. Sums over rows are taken in
// strips: a thread goes down a strip of one column, so neighbors read neighbors, and the order of the sum is fixed.

struct Matrix { long long rows, columns, strip; };  // `strip` is the number of rows in a strip

struct Strip {
    long long column, first, end, size, sum;  // elements first, first + columns, ... before end; where its sum goes
    __device__ Strip(const Matrix& m) : column((long long)blockIdx.x * THREADS + threadIdx.x) {
        const long long row = blockIdx.y * m.strip;
        size = row + m.strip < m.rows ? m.strip : m.rows - row;
        first = row * m.columns + column, end = (row + size) * m.columns, sum = blockIdx.y * m.columns + column;
    }
};

// A number for each column, or one for all if there is no array.
template <typename T> __device__ T either(const T* several, T one, long long i) { return several ? several[i] : one; }

template <typename T>
__global__ void shifted_relu(const T* x, const T* biases, T bias, const T* shifts, T shift, T* out, const Matrix m) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % m.columns;
    if (i >= m.rows * m.columns) return;
    const T low = -either(shifts, shift, column), sum = x[i] + (either(biases, bias, column) + low);
    out[i] = sum < low ? low : sum;  // NaN stays NaN
}

// `sums` are those of `passed` over strips: (strips, columns)
template <typename T>
__global__ void shifted_relu_gradient(const T* g, const T* out, const T* shifts, T shift, T* passed, T* sums,
                                      const Matrix m) {
    const Strip s(m);
    if (s.column >= m.columns) return;
    const T low = -either(shifts, shift, s.column);
    T sum = 0;
    for (long long i = s.first; i < s.end; i += m.columns) sum += passed[i] = out[i] <= low ? T(0) : g[i];
    sums[s.sum] = sum;
}

// The mean over each strip, and the sum of (x - mean)^2: two matrices (strips, columns)
template <typename T> __global__ void strip_moments(const T* x, T* means, T* squares, const Matrix m) {
    const Strip s(m);
    if (s.column >= m.columns) return;
    T sum = 0, square = 0;
    for (long long i = s.first; i < s.end; i += m.columns) sum += x[i];
    const T mean = sum / T(s.size);
    for (long long i = s.first; i < s.end; i += m.columns) square += (x[i] - mean) * (x[i] - mean);
    means[s.sum] = mean;
    squares[s.sum] = square;
}

// `inverse` is 1 / sqrt(var + eps), here and below
template <typename T>
__global__ void batch_norm(const T* x, const T* mean, const T* inverse, const T* weight, const T* bias, T* out,
                           const Matrix m) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % m.columns;
    if (i >= m.rows * m.columns) return;
    out[i] = (x[i] - mean[column]) * (inverse[column] * weight[column]) + bias[column];
}

// The sums of g and of g * (x - mean) * inverse over strips: two matrices (strips, columns)
template <typename T>
__global__ void batch_norm_sums(const T* g, const T* x, const T* mean, const T* inverse, T* sums, T* products,
                                const Matrix m) {
    const Strip s(m);
    if (s.column >= m.columns) return;
    T sum = 0, product = 0;
    for (long long i = s.first; i < s.end; i += m.columns) {
        sum += g[i];
        product += g[i] * (x[i] - mean[s.column]);
    }
    sums[s.sum] = sum;
    products[s.sum] = product * inverse[s.column];
}

// `total` and `along` are the sums of all strips
template <typename T>
__global__ void batch_norm_gradient(const T* g, const T* x, const T* mean, const T* inverse, const T* weight,
                                    const T* total, const T* along, T* g_x, const Matrix m) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x, column = i % m.columns;
    if (i >= m.rows * m.columns) return;
    const T normal = (x[i] - mean[column]) * inverse[column];
    const T rest = g[i] - (total[column] + normal * along[column]) / T(m.rows);
    g_x[i] = rest * (inverse[column] * weight[column]);
}
