// Pooling of images (N, H, W, C), one thread for each result: neighboring threads take neighboring
// channels.

struct Window {
    int height, width; // of the image
    int rows, columns; // windows down and across
    int channels;
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int padding_h, padding_w;
};

// Pixels of one image, or windows on it, in one channel: rows h to h_end, columns w to w_end.
struct Range {
    long long start; // the number of the one in row 0, column 0
    int across, channels;
    int h, h_end, w, w_end;

    __device__ int size() const { return (h_end - h) * (w_end - w); }

    // The number of the one in row y, column x. Both move on to the next one; after the last one
    // they stay there.
    __device__ long long next(int& y, int& x) const {
        const long long number = start + ((long long)y * across + x) * channels;
        const bool more = x + 1 < w_end;
        const bool below = y + 1 < h_end;
        if (more) {
            x += 1;
        } else if (below) {
            x = w;
            y += 1;
        }
        return number;
    }
};

// The pixels of window i, which is cut off at the edges of the image.
__device__ Range pixels_of(long long i, const Window& s) {
    const long long channel = i % s.channels;
    const long long place = i / s.channels;
    const long long image = place / s.columns / s.rows;
    const int top = place / s.columns % s.rows * s.stride_h - s.padding_h;
    const int left = place % s.columns * s.stride_w - s.padding_w;
    Range r;
    r.start = image * s.height * s.width * s.channels + channel;
    r.across = s.width;
    r.channels = s.channels;
    r.h = max(top, 0);
    r.h_end = min(top + s.kernel_h, s.height);
    r.w = max(left, 0);
    r.w_end = min(left + s.kernel_w, s.width);
    return r;
}

// The windows that contain pixel i.
__device__ Range windows_of(long long i, const Window& s) {
    const long long channel = i % s.channels;
    const long long place = i / s.channels;
    const long long image = place / s.width / s.height;
    const int h = place / s.width % s.height + s.padding_h;
    const int w = place % s.width + s.padding_w;
    Range r;
    r.start = image * s.rows * s.columns * s.channels + channel;
    r.across = s.columns;
    r.channels = s.channels;
    r.h = h < s.kernel_h ? 0 : (h - s.kernel_h) / s.stride_h + 1;
    r.h_end = min(h / s.stride_h + 1, s.rows);
    r.w = w < s.kernel_w ? 0 : (w - s.kernel_w) / s.stride_w + 1;
    r.w_end = min(w / s.stride_w + 1, s.columns);
    return r;
}

// The largest element of each window, where NaN is the largest, or, if there is a factor, factor *
// the sum. `argmax` gets the number of the first pixel, in scan order, that is the largest.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void pool(
    const T* __restrict__ x, long long* __restrict__ argmax, T* __restrict__ out,
    const Window shape, long long size, T factor) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range p = pixels_of(i, shape);
    int h = p.h, w = p.w;
    long long largest = -1, at[LOADS + 1]; // a window of 3x3 at once
    T top = 0, sum = 0, pixels[LOADS + 1];
    for (int left = p.size(); left > 0; left -= LOADS + 1) {
#pragma unroll
        for (int k = 0; k <= LOADS; ++k) pixels[k] = x[at[k] = p.next(h, w)];
#pragma unroll
        for (int k = 0; k <= LOADS; ++k) {
            sum += k < left ? pixels[k] : T(0);
            const bool first_nan = pixels[k] != pixels[k] && top == top;
            const bool larger = largest < 0 || pixels[k] > top || first_nan;
            largest = larger ? at[k] : largest;
            top = larger ? pixels[k] : top;
        }
    }
    out[i] = factor != 0 ? factor * sum : top;
    if (argmax) argmax[i] = largest;
}

// The transpose: factor * the sum of g over the windows that contain a pixel; with `argmax`, over
// those of which it is the largest pixel.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void unpool(
    const T* __restrict__ g, const long long* __restrict__ argmax, T* __restrict__ out,
    const Window shape, long long size, T factor) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range r = windows_of(i, shape);
    int h = r.h, w = r.w;
    long long largest[LOADS / 2];
    T sum = 0, gs[LOADS / 2];
    for (int left = r.size(); left > 0; left -= LOADS / 2) {
#pragma unroll
        for (int k = 0; k < LOADS / 2; ++k) {
            const long long at = r.next(h, w);
            gs[k] = g[at];
            largest[k] = argmax ? argmax[at] : i;
        }
#pragma unroll
        for (int k = 0; k < LOADS / 2; ++k) {
            const bool counts = k < left && largest[k] == i;
            sum += counts ? gs[k] : T(0);
        }
    }
    out[i] = factor * sum;
}
