"""The CUDA sources for windows and tiles of images, each with the NumPy formula that it equals: see `cuda.py`."""

from functools import cache

from .cuda import Elementwise

Matrix = tuple[tuple[float, ...], ...]

# -- pooling

WINDOW = "int32 height, int32 width, int32 rows, int32 columns, int32 channels, " + ", ".join(
    f"int32 {name}_{axis}" for name in ("kernel", "stride", "padding") for axis in ("h", "w")
)

# Where the window of output element i lies, cut off at the edges of the image.
PLACE = """
    const int channel = i % channels, column = i / channels % columns, row = i / channels / columns % rows;
    const ptrdiff_t image = (ptrdiff_t)(i / channels / columns / rows) * height * width * channels + channel;
    const int top = row * stride_h - padding_h, left = column * stride_w - padding_w;
    const int first_h = top < 0 ? 0 : top, first_w = left < 0 ? 0 : left;
    const int end_h = top + kernel_h < height ? top + kernel_h : height;
    const int end_w = left + kernel_w < width ? left + kernel_w : width;
"""

# The windows that pixel i lies in, from the first to before the end.
PIXEL = """
    const int channel = i % channels, w = i / channels % width, h = i / channels / width % height;
    const ptrdiff_t number = i / channels / width / height;
    const int row_0 = h + padding_h < kernel_h ? 0 : (h + padding_h - kernel_h) / stride_h + 1;
    const int column_0 = w + padding_w < kernel_w ? 0 : (w + padding_w - kernel_w) / stride_w + 1;
    const int last_row = (h + padding_h) / stride_h, last_column = (w + padding_w) / stride_w;
    const int row_end = last_row < rows ? last_row + 1 : rows;
    const int column_end = last_column < columns ? last_column + 1 : columns;
"""

# the largest element of each window
MAX_POOL: Elementwise = (
    "max_pool",
    "raw T x, " + WINDOW,
    "T out",
    PLACE
    + """
    T best = x[image + ((ptrdiff_t)first_h * width + first_w) * channels];
    for (int h = first_h; h < end_h; ++h)
        for (int w = first_w; w < end_w; ++w) {
            const T value = x[image + ((ptrdiff_t)h * width + w) * channels];
            if (value > best || value != value) best = value;  // NaN wins
        }
    out = best;
    """,
)

# g of each window to the first of its elements, in scan order, that is the largest
MAX_POOL_GRADIENT: Elementwise = (
    "max_pool_gradient",
    "raw T g, raw T x, raw T largest, " + WINDOW,
    "T g_x",
    PIXEL
    + """
    const T mine = x[i];
    T sum = 0;
    for (int row = row_0; row < row_end; ++row)
        for (int column = column_0; column < column_end; ++column) {
            const ptrdiff_t window = ((number * rows + row) * columns + column) * channels + channel;
            if (mine != largest[window]) continue;
            const int top = row * stride_h - padding_h, left = column * stride_w - padding_w;
            bool first = true;
            for (int a = top < 0 ? 0 : top; a <= h && first; ++a) {
                const int end = a == h ? w : left + kernel_w < width ? left + kernel_w : width;
                for (int b = left < 0 ? 0 : left; b < end && first; ++b)
                    first = x[((number * height + a) * width + b) * channels + channel] != mine;
            }
            if (first) sum += g[window];
        }
    g_x = sum;
    """,
)

# the sum of each window, times a factor
AVERAGE_POOL: Elementwise = (
    "average_pool",
    "raw T x, T factor, " + WINDOW,
    "T out",
    PLACE
    + """
    T sum = 0;
    for (int h = first_h; h < end_h; ++h)
        for (int w = first_w; w < end_w; ++w) sum += x[image + ((ptrdiff_t)h * width + w) * channels];
    out = sum * factor;
    """,
)

# g of each window, times a factor, to all of its elements
AVERAGE_POOL_GRADIENT: Elementwise = (
    "average_pool_gradient",
    "raw T g, T factor, " + WINDOW,
    "T g_x",
    PIXEL
    + """
    T sum = 0;
    for (int row = row_0; row < row_end; ++row)
        for (int column = column_0; column < column_end; ++column)
            sum += g[((number * rows + row) * columns + column) * channels + channel];
    g_x = sum * factor;
    """,
)

# -- tiles of images

# target patch = matrix @ source patch @ matrix.T, for each tile and channel. A patch is a square at the crossing of
# a tile and a channel; its elements lie on a grid, and beyond the edges of the grid they are 0, or not written.
MAP_TILES = """
struct Patches {
    long long to_image, to_down, to_across, to_channel, to_row, to_column;  // strides, in elements
    long long step, first_row, first_column, rows, columns;  // a tile starts at number * step + first
};

extern "C" __global__ void NAME(const T* source, T* target, const Patches from, const Patches to,
                                unsigned down, unsigned across, unsigned channels, unsigned all) {
    constexpr T matrix[TARGET][SOURCE] = MATRIX;
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= all) return;
    const unsigned channel = i % channels, x = i / channels % across, y = i / channels / across % down;
    const unsigned image = i / channels / across / down;
    source += image * from.to_image + y * from.to_down + x * from.to_across + channel * from.to_channel;
    target += image * to.to_image + y * to.to_down + x * to.to_across + channel * to.to_channel;

    T half[TARGET][SOURCE];  // matrix @ source patch
    #pragma unroll
    for (int b = 0; b < SOURCE; ++b) {
        T pixels[SOURCE];
        const long long column = from.first_column + b;
        const bool inside = x * from.step + column >= 0 && x * from.step + column < from.columns;
        #pragma unroll
        for (int a = 0; a < SOURCE; ++a) {
            const long long row = from.first_row + a;
            const bool meets = inside && y * from.step + row >= 0 && y * from.step + row < from.rows;
            pixels[a] = meets ? source[row * from.to_row + column * from.to_column] : T(0);
        }
        #pragma unroll
        for (int p = 0; p < TARGET; ++p) {
            T sum = 0;
            #pragma unroll
            for (int a = 0; a < SOURCE; ++a) sum += matrix[p][a] * pixels[a];
            half[p][b] = sum;
        }
    }
    #pragma unroll
    for (int p = 0; p < TARGET; ++p) {
        #pragma unroll
        for (int q = 0; q < TARGET; ++q) {
            T sum = 0;
            #pragma unroll
            for (int b = 0; b < SOURCE; ++b) sum += half[p][b] * matrix[q][b];
            if (y * to.step + p < to.rows && x * to.step + q < to.columns)
                target[p * to.to_row + q * to.to_column] = sum;
        }
    }
}
"""


@cache
def map_tiles(matrix: Matrix) -> str:
    """The source with the numbers of a matrix in it, so that those that are 0 or 1 cost nothing."""
    numbers = ", ".join("{" + ", ".join(f"T({value!r})" for value in row) + "}" for row in matrix)
    return f"#define TARGET {len(matrix)}\n#define SOURCE {len(matrix[0])}\n" + MAP_TILES.replace(
        "MATRIX", "{" + numbers + "}"
    )
