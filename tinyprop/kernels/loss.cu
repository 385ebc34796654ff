// Cross-entropy of logits x (rows, classes), one thread for each row: without g the losses, with g
// the gradient.

template <typename T>
__global__ void cross_entropy(const T* x, const long long* labels, const T* g, T* out,
                              long long rows, long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    const T* logits = x + i * classes;
    T largest = logits[0]; // without it, exp could overflow
    for (long long k = 1; k < classes; ++k) largest = logits[k] > largest ? logits[k] : largest;
    double total = 0;
    for (long long k = 0; k < classes; ++k) total += exp(logits[k] - largest);
    const long long label = labels[i];
    const bool counts = label >= 0 && label < classes;
    if (!g) {
        out[i] = counts ? log(T(total)) - (logits[label] - largest) : T(0);
        return;
    }
    for (long long k = 0; k < classes; ++k) {
        const T probability = exp(logits[k] - largest) / T(total);
        out[i * classes + k] = counts ? g[i] * (probability - T(k == label)) : T(0);
    }
}
