// Pooling of images (N, H, W, C), one thread for each result: neighboring threads take neighboring channels.

struct Window {
    int height, width, rows, columns, channels;  // size of the image, windows down and across
    int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
};

// Pixels of one image, or windows on it, in one channel: rows h to h_end, columns w to w_end.
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

// The largest element of each window, where NaN is the largest, or, if there is a factor, factor * the sum. The first
// pixel, in scan order, that is the largest has won.
template <typename T>
__global__ void pool(const T* x, long long* won, T* out, const Window shape, long long size, T factor) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range p = pixels_of(i, shape);
    long long largest = p.at(p.h, p.w);
    T sum = 0;
    for (int h = p.h; h < p.h_end; ++h)
        for (int w = p.w; w < p.w_end; ++w) {
            const long long j = p.at(h, w);
            sum += x[j];
            if (x[j] > x[largest] || (x[j] != x[j] && x[largest] == x[largest])) largest = j;
        }
    out[i] = factor != 0 ? factor * sum : x[largest];
    if (won) won[i] = largest;
}

// The transpose: factor * the sum of g over the windows that contain a pixel, or over those that it has won.
template <typename T>
__global__ void unpool(const T* g, const long long* won, T* out, const Window shape, long long size, T factor) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range r = windows_of(i, shape);
    T sum = 0;
    for (int h = r.h; h < r.h_end; ++h)
        for (int w = r.w; w < r.w_end; ++w)
            if (!won || won[r.at(h, w)] == i) sum += g[r.at(h, w)];
    out[i] = factor * sum;
}
