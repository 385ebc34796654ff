// Pooling of images (N, H, W, C), one thread for each result: neighboring threads take neighboring
// channels.

struct Window {
    int height, width, rows, columns, channels; // size of the image, windows down and across
    int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
};

// Pixels of one image, or windows on it, in one channel: rows h to h_end, columns w to w_end.
struct Range {
    long long start;
    int across, channels, h, h_end, w, w_end;
    __device__ int size() const { return (h_end - h) * (w_end - w); }

    // The number of the one in row y, column x, which move on to the next one; the last one comes
    // again and again.
    __device__ long long next(int& y, int& x) const {
        const long long number = start + ((long long)y * across + x) * channels;
        const bool more = x + 1 < w_end, below = y + 1 < h_end;
        x = more ? x + 1 : below ? w : x, y = more || !below ? y : y + 1;
        return number;
    }
};

// The pixels of window i, which is cut off at the edges of the image.
__device__ Range pixels_of(long long i, const Window& s) {
    const long long channel = i % s.channels, image = i / s.channels / s.columns / s.rows;
    const int top = i / s.channels / s.columns % s.rows * s.stride_h - s.padding_h;
    const int left = i / s.channels % s.columns * s.stride_w - s.padding_w;
    return {image * s.height * s.width * s.channels + channel,
            s.width,
            s.channels,
            max(top, 0),
            min(top + s.kernel_h, s.height),
            max(left, 0),
            min(left + s.kernel_w, s.width)};
}

// The windows that contain pixel i.
__device__ Range windows_of(long long i, const Window& s) {
    const long long channel = i % s.channels, image = i / s.channels / s.width / s.height;
    const int h = i / s.channels / s.width % s.height + s.padding_h,
              w = i / s.channels % s.width + s.padding_w;
    return {image * s.rows * s.columns * s.channels + channel,
            s.columns,
            s.channels,
            h < s.kernel_h ? 0 : (h - s.kernel_h) / s.stride_h + 1,
            min(h / s.stride_h + 1, s.rows),
            w < s.kernel_w ? 0 : (w - s.kernel_w) / s.stride_w + 1,
            min(w / s.stride_w + 1, s.columns)};
}

// The largest element of each window, where NaN is the largest, or, if there is a factor, factor *
// the sum. The first pixel, in scan order, that is the largest has argmax.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void pool(
    const T* __restrict__ x, long long* __restrict__ argmax, T* __restrict__ out, const Window shape,
    long long size, T factor) {
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
            const bool wins =
                largest < 0 || pixels[k] > top || (pixels[k] != pixels[k] && top == top);
            largest = wins ? at[k] : largest, top = wins ? pixels[k] : top;
        }
    }
    out[i] = factor != 0 ? factor * sum : top;
    if (argmax) argmax[i] = largest;
}

// The transpose: factor * the sum of g over the windows that contain a pixel, or over those that it
// has argmax.
template <typename T>
__global__ __launch_bounds__(THREADS, BLOCKS)
void unpool(
    const T* __restrict__ g, const long long* __restrict__ argmax, T* __restrict__ out,
    const Window shape, long long size, T factor) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= size) return;
    const Range r = windows_of(i, shape);
    int h = r.h, w = r.w;
    long long winners[LOADS / 2];
    T sum = 0, gs[LOADS / 2];
    for (int left = r.size(); left > 0; left -= LOADS / 2) {
#pragma unroll
        for (int k = 0; k < LOADS / 2; ++k) {
            const long long at = r.next(h, w);
            gs[k] = g[at], winners[k] = argmax ? argmax[at] : i;
        }
#pragma unroll
        for (int k = 0; k < LOADS / 2; ++k) sum += k < left && winners[k] == i ? gs[k] : T(0);
    }
    out[i] = factor * sum;
}
