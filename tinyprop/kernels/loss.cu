// Cross-entropy of logits x (rows, classes), one thread for each row: without g the losses, with g
// the gradient.

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

template <typename T>
__global__ void cross_entropy(const T* x, const long long* labels, const T* g, T* out,
                              long long rows, long long classes) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    const T* logits = x + i * classes;
    T largest = logits[0]; // without it, exp could overflow
    for (long long k = 1; k < classes; ++k) largest = logits[k] > largest ? logits[k] : largest;
    Sum<T> terms = {};
    for (long long k = 0; k < classes; ++k) terms.add(exp(logits[k] - largest));
    const T total = terms.sum;
    const long long label = labels[i];
    const bool counts = label >= 0 && label < classes;
    if (!g) {
        out[i] = counts ? log(total) - (logits[label] - largest) : T(0);
        return;
    }
    for (long long k = 0; k < classes; ++k) {
        const T probability = exp(logits[k] - largest) / total;
        out[i * classes + k] = counts ? g[i] * (probability - T(k == label)) : T(0);
    }
}
