// A step of an optimizer: blocks share the elements of all parameters, so one launch updates a
// whole network.

template <typename T>
struct Table {
    // A parameter, its gradient, and running means of the gradient and of its square, or null if
    // there is none. Blocks up to `end` are for it.
    struct {
        T* w;
        const T* g;
        T* mean;
        T* square;
        long long size;
        long long end;
    } entry[TABLE];
};

template <typename T>
struct Numbers {
    T lr, decay, beta1, rest1, beta2, rest2, root, eps;
};

// g += decay * w;  mean = beta1 * mean + rest1 * g;  square = beta2 * square + rest2 * g * g;
// w -= lr * mean / (sqrt(square) / root + eps), with g for a missing mean and 1 for a missing
// square; in a graph, which is recorded once for many steps, the numbers are those that are `live`
// on the device
template <typename T>
__global__ void update(const Table<T> table, const Numbers<T> given, const Numbers<T>* live) {
    int low = 0, high = TABLE - 1; // find the first entry that ends after this block
    while (low < high) {
        const int middle = (low + high) / 2;
        if (blockIdx.x < table.entry[middle].end) high = middle;
        else low = middle + 1;
    }
    const auto e = table.entry[low];
    const long long first_block = low ? table.entry[low - 1].end : 0;
    const long long first = (blockIdx.x - first_block) * EACH * THREADS + threadIdx.x;
    Numbers<T> n = given;
    if (live) n = *live;
    T w[EACH], g[EACH], means[EACH], squares[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long j = first + k * THREADS;
        const bool mine = j < e.size;
        w[k] = mine ? e.w[j] : T(0);
        g[k] = mine ? e.g[j] : T(0);
        means[k] = mine && e.mean ? e.mean[j] : T(0);
        squares[k] = mine && e.square ? e.square[j] : T(0);
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long j = first + k * THREADS;
        if (j >= e.size) return;
        const T slope = g[k] + n.decay * w[k];
        T step = n.lr * slope;
        if (e.mean) {
            const T mean = n.beta1 * means[k] + n.rest1 * slope;
            e.mean[j] = mean;
            step = n.lr * mean;
        }
        if (e.square) {
            const T square = n.beta2 * squares[k] + n.rest2 * slope * slope;
            e.square[j] = square;
            step /= sqrt(square) / n.root + n.eps;
        }
        e.w[j] = w[k] - step;
    }
}
