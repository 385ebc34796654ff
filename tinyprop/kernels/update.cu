// A step of an optimizer: one thread for each element of all parameters, so one launch updates a whole network.

template <typename T> struct Table {
    // A parameter, its gradient, and running means of the gradient and of its square, or null if there is none.
    struct { T* w; const T* g; T *mean, *square; long long end; } entry[TABLE];  // `end` counts the elements up to here
};

// g += decay * w;  mean = beta1 * mean + rest1 * g;  square = beta2 * square + rest2 * g * g;
// w -= lr * mean / (sqrt(square) / root + eps), with g for a missing mean and 1 for a missing square
template <typename T>
__global__ void update(const Table<T> table, T lr, T decay, T beta1, T rest1, T beta2, T rest2, T root, T eps) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= table.entry[TABLE - 1].end) return;
    int low = 0, high = TABLE - 1;  // find the first entry that ends after i
    while (low < high) {
        const int middle = (low + high) / 2;
        if (i < table.entry[middle].end) high = middle; else low = middle + 1;
    }
    const auto e = table.entry[low];
    const long long j = low ? i - table.entry[low - 1].end : i;
    const T w = e.w[j], g = e.g[j] + decay * w;
    T step = lr * g;
    if (e.mean) step = lr * (e.mean[j] = beta1 * e.mean[j] + rest1 * g);
    if (e.square) step /= sqrt(e.square[j] = beta2 * e.square[j] + rest2 * g * g) / root + eps;
    e.w[j] = w - step;
}
