// Cross-entropy of logits x (rows, classes), one thread for each row. A label that is no class costs nothing.

// The largest logit of a row, and the sum of exp(logit - largest), which cannot overflow.
template <typename T> __device__ void soft_sum(const T* x, long long classes, T& largest, T& total) {
    largest = x[0];
    for (long long k = 1; k < classes; ++k) largest = x[k] > largest ? x[k] : largest;
    total = 0;
    for (long long k = 0; k < classes; ++k) total += exp(x[k] - largest);
}

template <typename T, typename Label>
__global__ void cross_entropy(const T* x, const Label* labels, T* losses, long long rows, long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    const long long label = labels[i];
    T largest, total;
    soft_sum(x + i * classes, classes, largest, total);
    losses[i] = label >= 0 && label < classes ? log(total) - (x[i * classes + label] - largest) : T(0);
}

template <typename T, typename Label>
__global__ void cross_entropy_gradient(const T* g, const T* x, const Label* labels, T* g_x, long long rows,
                                       long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    const long long label = labels[i];
    T largest, total;
    soft_sum(x + i * classes, classes, largest, total);
    for (long long k = 0; k < classes; ++k) {
        const T difference = exp(x[i * classes + k] - largest) / total - T(k == label);
        g_x[i * classes + k] = label >= 0 && label < classes ? g[i] * difference : T(0);
    }
}
