"""The CUDA sources of tinyprop, each with the NumPy formula that it equals; `device.py` launches them.

Those that go over windows and tiles of images are in `cuda_images.py`.

`T` is the type of the elements, `NAME` the name of the function. Sums are taken in a fixed order, never by atomic
additions: the same run gives the same bits. Images are (N, H, W, C) here, so that neighbouring threads, which take
neighbouring channels, read and write neighbouring elements.
"""

THREADS = 128  # in a block
TABLE = 64  # arrays that one launch updates: their addresses are arguments of the kernel, of which 4 KB are allowed

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

# -- normalisation by the statistics of a batch

# over strips of rows, the mean of each column, and the sum of (x - mean)^2: (rows, columns) -> (2, strips, columns)
STRIP_MOMENTS = """
extern "C" __global__ void NAME(const T* x, T* moments, long long rows, int columns, int strip) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    const long long first = (long long)blockIdx.y * strip, end = first + strip < rows ? first + strip : rows;
    T sum = 0, squares = 0;
    for (long long i = first * columns + column; i < end * columns; i += columns) sum += x[i];
    const T mean = sum / T(end - first);
    for (long long i = first * columns + column; i < end * columns; i += columns) {
        const T off = x[i] - mean;
        squares += off * off;
    }
    moments[(long long)blockIdx.y * columns + column] = mean;
    moments[(long long)(gridDim.y + blockIdx.y) * columns + column] = squares;
}
"""

# mean and 1 / sqrt(var + eps) of each column, from the moments of its strips: (2, strips, columns) -> (2, columns);
# running_mean += momentum * (mean - running_mean), and running_var likewise, with rows / (rows - 1) * var
BATCH_STATISTICS = (
    ROWS
    + """
extern "C" __global__ void NAME(const T* moments, T* statistics, T eps, T momentum, T* running_mean, T* running_var,
                                long long rows, int columns, int strip, int strips) {
    const int column = blockIdx.x;
    const T last = rows - (long long)(strips - 1) * strip;  // rows of the last strip
    T sum = 0, squares = 0;
    for (int s = threadIdx.x; s < strips; s += THREADS)
        sum += (s < strips - 1 ? T(strip) : last) * moments[(long long)s * columns + column];
    const T mean = block_sum(sum) / T(rows);
    for (int s = threadIdx.x; s < strips; s += THREADS) {
        const T off = moments[(long long)s * columns + column] - mean;
        squares += moments[(long long)(strips + s) * columns + column] + (s < strips - 1 ? T(strip) : last) * off * off;
    }
    squares = block_sum(squares);
    if (threadIdx.x) return;
    statistics[column] = mean;
    statistics[columns + column] = T(1) / sqrt(squares / T(rows) + eps);
    running_mean[column] += momentum * (mean - running_mean[column]);
    running_var[column] += momentum * (squares / T(rows - 1) - running_var[column]);
}
"""
)

# (x - mean) / sqrt(var + eps) * weight + bias
BATCH_NORM: Elementwise = (
    "batch_norm",
    "T x, T mean, T inverse, T weight, T bias",
    "T out",
    "out = (x - mean) * (inverse * weight) + bias",
)

# sums of g and of g * (x - mean) / sqrt(var + eps) over strips of rows: (rows, columns) -> (2, strips, columns)
BATCH_NORM_SUMS = """
extern "C" __global__ void NAME(const T* g, const T* x, const T* statistics, T* sums, long long rows, int columns,
                                int strip) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    const T mean = statistics[column], inverse = statistics[columns + column];
    const long long first = (long long)blockIdx.y * strip, end = first + strip < rows ? first + strip : rows;
    T sum = 0, along = 0;
    for (long long i = first * columns + column; i < end * columns; i += columns) {
        sum += g[i];
        along += g[i] * (x[i] - mean);
    }
    sums[(long long)blockIdx.y * columns + column] = sum;
    sums[(long long)(gridDim.y + blockIdx.y) * columns + column] = along * inverse;
}
"""

# with normal = (x - mean) / sqrt(var + eps): (g - mean(g) - normal * mean(g * normal)) / sqrt(var + eps) * weight
BATCH_NORM_GRADIENT: Elementwise = (
    "batch_norm_gradient",
    "T g, T x, T mean, T inverse, T weight, T sum, T along, T rows",
    "T g_x",
    "g_x = (g - (sum + (x - mean) * inverse * along) / rows) * (inverse * weight)",
)

# -- all parameters in one launch


def _every_parameter(numbers: str, update: str) -> str:
    """A kernel that goes over the elements of all w; g has the weight decay in it already."""
    return (
        (
            """
struct Entry { T* w; T* memory; const T* g; long long end; };  // `end` counts the elements up to here
struct Table { Entry entry[TABLE]; };

extern "C" __global__ void NAME(const Table table, int entries, T lr, T decay, NUMBERS) {
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
    UPDATE
}
"""
        )
        .replace("NUMBERS", numbers)
        .replace("UPDATE", update)
    )


# g += decay * w; memory = momentum * memory + g; w -= lr * memory
SGD = _every_parameter(
    "T momentum",
    """if (momentum != 0) e.memory[j] = g = momentum * e.memory[j] + g;
    e.w[j] = w - lr * g;""",
)

# g += decay * w; memory = alpha * memory + (1 - alpha) * g * g; w -= lr * g / (sqrt(memory) + eps)
RMSPROP = _every_parameter(
    "T alpha, T rest, T eps",  # rest is 1 - alpha, which would lose digits here
    """const T square = e.memory[j] = alpha * e.memory[j] + rest * g * g;
    e.w[j] = w - lr * g / (sqrt(square) + eps);""",
)

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

# -- measuring

# nothing, for so many cycles of the clock
HOLD = """
extern "C" __global__ void NAME(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""
