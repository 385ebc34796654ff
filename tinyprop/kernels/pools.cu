// Pooling of images (N, H, W, C), one thread for each result: neighboring threads take neighboring channels.

struct Window {
    int height, width, rows, columns, channels;  // size of the image, windows down and across
    int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
};

// Pixels of one image, or windows on it, in one channel: from (h, w) to before (h_end, w_end).
struct Range {
    long long start;
    int across, channels, h, h_end, w, w_end;
    __device__ long long at(int y, int x) const { return start + ((long long)y * across + x) * channels; }
};

// The pixels of window i, which is cut off at the edges of the image.
__device__ Range pixels_of(long long i, const Window& s) {
    const long long channel = i % s.channels, image = i / s.channels / s.columns / s.rows;
    const int top = i / s.channels / s.columns % s.rows * s.stride_h - s.padding_h;
    const int left = i / s.channels % s.columns * s.stride_w - s.padding_w;
    return {image * s.height * s.width * s.channels + channel, s.width, s.channels, max(top, 0),
            min(top + s.kernel_h, s.height), max(left, 0), min(left + s.kernel_w, s.width)};
}

// The windows that contain pixel i.
__device__ Range windows_of(long long i, const Window& s) {
    const long long channel = i % s.channels, image = i / s.channels / s.width / s.height;
    const int h = i / s.channels / s.width % s.height + s.padding_h, w = i / s.channels % s.width + s.padding_w;
    return {image * s.rows * s.columns * s.channels + channel, s.columns, s.channels,
            h < s.kernel_h ? 0 : (h - s.kernel_h) / s.stride_h + 1, min(h / s.stride_h + 1, s.rows),
            w < s.kernel_w ? 0 : (w - s.kernel_w) / s.stride_w + 1, min(w / s.stride_w + 1, s.columns)};
}

template <typename T> __global__ void max_pool(const T* x, T* out, const Window shape, long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range p = pixels_of(i, shape);
    T best = x[p.at(p.h, p.w)];
    for (int h = p.h; h < p.h_end; ++h)
        for (int w = p.w; w < p.w_end; ++w) {
            const T value = x[p.at(h, w)];
            if (value > best || value != value) best = value;  // NaN is the largest
        }
    out[i] = best;
}

// Whether a value is the largest one; the comparison of NaN with itself is false.
template <typename T> __device__ bool is_largest(T value, T largest) { return value == largest || value != value; }

// Whether element i is the first one in its window, in scan order, that is the largest.
template <typename T> __device__ bool is_first(long long i, const T* x, T largest, const Range& p) {
    for (int h = p.h; h < p.h_end; ++h)
        for (int w = p.w; w < p.w_end; ++w)
            if (is_largest(x[p.at(h, w)], largest)) return p.at(h, w) == i;
    return false;
}

template <typename T>
__global__ void max_pool_gradient(const T* g, const T* x, const T* out, T* g_x, const Window shape, long long size) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range r = windows_of(i, shape);
    T sum = 0;
    for (int h = r.h; h < r.h_end; ++h)
        for (int w = r.w; w < r.w_end; ++w) {
            const long long j = r.at(h, w);
            if (is_largest(x[i], out[j]) && is_first(i, x, out[j], pixels_of(j, shape))) sum += g[j];
        }
    g_x[i] = sum;
}

// The transpose adds up the windows that contain a pixel, where average_pool adds up the pixels of a window.
template <typename T>
__global__ void average_pool(const T* x, T* out, const Window shape, long long size, T factor, long long transposed) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range r = transposed ? windows_of(i, shape) : pixels_of(i, shape);
    T sum = 0;
    for (int h = r.h; h < r.h_end; ++h)
        for (int w = r.w; w < r.w_end; ++w) sum += x[r.at(h, w)];
    out[i] = sum * factor;
}
