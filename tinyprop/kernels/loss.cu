// Cross-entropy of logits x (rows, classes), one thread for each row. A label that is no class costs nothing.

__device__ bool is_class(long long label, long long classes) { return label >= 0 && label < classes; }

// The largest logit of a row, and the sum of exp(logit - largest), which cannot overflow.
template <typename T> __device__ void soft_sum(const T* x, long long classes, T& largest, T& total) {
    largest = x[0];
    for (long long k = 1; k < classes; ++k) largest = x[k] > largest ? x[k] : largest;
    total = 0;
    for (long long k = 0; k < classes; ++k) total += exp(x[k] - largest);
}

template <typename T>
__global__ void cross_entropy(const T* x, const long long* labels, T* losses, long long rows, long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    T largest, total;
    soft_sum(x + i * classes, classes, largest, total);
    losses[i] = is_class(labels[i], classes) ? log(total) - (x[i * classes + labels[i]] - largest) : T(0);
}

template <typename T>
__global__ void cross_entropy_gradient(const T* g, const T* x, const long long* labels, T* g_x, long long rows,
                                       long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    T largest, total;
    soft_sum(x + i * classes, classes, largest, total);
    for (long long k = 0; k < classes; ++k) {
        const T difference = exp(x[i * classes + k] - largest) / total - T(k == labels[i]);
        g_x[i * classes + k] = is_class(labels[i], classes) ? g[i] * difference : T(0);
    }
}
