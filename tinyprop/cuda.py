"""The CUDA sources of tinyprop, each with the NumPy formula that it equals; `device.py` launches them.

`T` is the type of the elements, `NAME` the name of the function. Sums are taken in a fixed order, never by atomic
additions: the same run gives the same bits. Images are (N, H, W, C) here, so that neighbouring threads, which take
neighbouring channels, read and write neighbouring elements.
"""

from functools import cache

THREADS = 128  # in a block
TABLE = 64  # arrays that one launch updates: their addresses are arguments of the kernel, of which 4 KB are allowed

Matrix = tuple[tuple[float, ...], ...]
Elementwise = tuple[str, str, str, str]  # name, inputs, outputs, and what is done for each element


def complete(source: str, full_name: str, dtype: str) -> str:
    """The source for elements of a dtype."""
    element = {"float32": "float", "float64": "double"}[dtype]
    head = f"typedef {element} T;\n#define THREADS {THREADS}\n#define TABLE {TABLE}\n"
    return head + source.replace("NAME", full_name)


# -- the end of a NormProp layer

# maximum(x + (bias - shift), -shift)
SHIFTED_RELU: Elementwise = (
    "shifted_relu",
    "T x, T bias, T shift",
    "T out",
    "const T sum = x + (bias - shift); out = sum < -shift ? -shift : sum",  # NaN stays NaN
)

# passed = g * (out > -shift), and sums of passed over strips of rows: (rows, columns) -> (strips, columns)
GATE = """
// Each thread goes down a strip of one column: neighbours read neighbours, and the order of the sum is fixed.
extern "C" __global__ void NAME(const T* g, const T* out, const T* shifts, T shift, T* passed, T* sums,
                                long long rows, int columns, int strip) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    const T kink = shifts ? -shifts[column] : -shift;
    const long long first = (long long)blockIdx.y * strip, end = first + strip < rows ? first + strip : rows;
    T sum = 0;
    for (long long i = first * columns + column; i < end * columns; i += columns) {
        const T part = out[i] > kink ? g[i] : T(0);
        passed[i] = part;
        sum += part;
    }
    sums[(long long)blockIdx.y * columns + column] = sum;
}
"""


# -- weights of a given length

ROWS = """
// The sum of what all threads of a block hold; the order is fixed.
__device__ T block_sum(T mine) {
    __shared__ T all[THREADS];
    all[threadIdx.x] = mine;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
        __syncthreads();
    }
    const T sum = all[0];
    __syncthreads();
    return sum;
}
"""

# w * (scale * factor / length), with the length of each row w[i]
SCALED_ROWS = (
    ROWS
    + """
extern "C" __global__ void NAME(const T* w, const T* scale, T factor, T* out, long long columns) {
    const T* row = w + blockIdx.x * columns;
    T squares = 0;
    for (long long j = threadIdx.x; j < columns; j += THREADS) squares += row[j] * row[j];
    const T times = scale[blockIdx.x] * factor / sqrt(block_sum(squares));
    for (long long j = threadIdx.x; j < columns; j += THREADS) out[blockIdx.x * columns + j] = row[j] * times;
}
"""
)

# with unit = w / length and along = (g * unit).sum(each row):
# (g - unit * along) * (scale * factor / length), and along * factor
SCALED_ROWS_GRADIENT = (
    ROWS
    + """
extern "C" __global__ void NAME(const T* g, const T* w, const T* scale, T factor, T* g_w, T* g_scale,
                                long long columns) {
    const T *row = w + blockIdx.x * columns, *g_row = g + blockIdx.x * columns;
    T squares = 0, products = 0;
    for (long long j = threadIdx.x; j < columns; j += THREADS) {
        squares += row[j] * row[j];
        products += row[j] * g_row[j];
    }
    squares = block_sum(squares);
    products = block_sum(products);
    const T length = sqrt(squares), times = scale[blockIdx.x] * factor / length, along = products / squares;
    for (long long j = threadIdx.x; j < columns; j += THREADS)
        g_w[blockIdx.x * columns + j] = (g_row[j] - row[j] * along) * times;
    if (threadIdx.x == 0) g_scale[blockIdx.x] = products / length * factor;
}
"""
)

# -- all parameters in one launch

# g += decay * w; memory = momentum * memory + g; w -= lr * memory
SGD = """
struct Entry { T* w; T* memory; const T* g; long long end; };  // `end` counts the elements up to here
struct Table { Entry entry[TABLE]; };

extern "C" __global__ void NAME(const Table table, int entries, T lr, T decay, T momentum) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= table.entry[entries - 1].end) return;
    int low = 0, high = entries - 1;  // the first entry that ends after i
    while (low < high) {
        const int middle = (low + high) / 2;
        if (i < table.entry[middle].end) high = middle; else low = middle + 1;
    }
    const Entry e = table.entry[low];
    const long long j = low ? i - table.entry[low - 1].end : i;
    const T w = e.w[j];
    T g = e.g[j] + decay * w;
    if (momentum != 0) e.memory[j] = g = momentum * e.memory[j] + g;
    e.w[j] = w - lr * g;
}
"""

# w /= the length of each row w[i]
UNIT_ROWS = (
    ROWS
    + """
struct Entry { T* w; long long columns; long long end; };  // `end` counts the rows up to here
struct Table { Entry entry[TABLE]; };

extern "C" __global__ void NAME(const Table table) {
    int e = 0;
    while (blockIdx.x >= table.entry[e].end) ++e;
    const long long columns = table.entry[e].columns;
    T* row = table.entry[e].w + (blockIdx.x - (e ? table.entry[e - 1].end : 0)) * columns;
    T squares = 0;
    for (long long j = threadIdx.x; j < columns; j += THREADS) squares += row[j] * row[j];
    const T length = sqrt(block_sum(squares));
    for (long long j = threadIdx.x; j < columns; j += THREADS) row[j] /= length;
}
"""
)

# -- cross-entropy

# -log_softmax(x)[label] for each row of x (rows, classes); a label that is no class costs nothing
CROSS_ENTROPY: Elementwise = (
    "cross_entropy",
    "raw T x, I label, int32 classes",
    "T loss",
    """
    const ptrdiff_t row = (ptrdiff_t)i * classes;
    T top = x[row], total = 0;
    for (int k = 1; k < classes; ++k) top = x[row + k] > top ? x[row + k] : top;
    for (int k = 0; k < classes; ++k) total += exp(x[row + k] - top);
    loss = label >= 0 && label < classes ? log(total) - (x[row + label] - top) : T(0);
    """,
)

# g * (softmax(x) - (classes == label))
CROSS_ENTROPY_GRADIENT: Elementwise = (
    "cross_entropy_gradient",
    "T g, raw T x, I label, int32 classes",
    "raw T g_x",
    """
    const ptrdiff_t row = (ptrdiff_t)i * classes;
    T top = x[row], total = 0;
    for (int k = 1; k < classes; ++k) top = x[row + k] > top ? x[row + k] : top;
    for (int k = 0; k < classes; ++k) total += exp(x[row + k] - top);
    const T weight = label >= 0 && label < classes ? g : T(0);
    for (int k = 0; k < classes; ++k)
        g_x[row + k] = weight * (exp(x[row + k] - top) / total - (k == label ? T(1) : T(0)));
    """,
)

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


# -- measuring

# nothing, for so many cycles of the clock
HOLD = """
extern "C" __global__ void NAME(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""
