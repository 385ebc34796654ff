# %% [markdown]
# # E1. Convolution and pooling as array programs
#
# **Goal.** Turn nested loops into one product of matrices, then make that product six times
# smaller, and see what it costs in digits.
#
# A convolution slides a small window over an image. At each place it multiplies the pixels under
# the window by a filter and adds up. Written literally, that is a loop over images, filters, rows
# and columns; in Python it would take minutes where a network has milliseconds. NumPy is fast when
# one call does all the work.

# %% tags=["hide-input"]
import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, RED, check, hint, panels, predict, reveal, show
from tinyprop.kernels.tiles import TILES, matrices


# %%
def by_loops(x, w):
    """x (N, C, H, W), w (O, C, k, k) -> (N, O, H - k + 1, W - k + 1), literally."""
    (n, _, height, width), (o, _, k, _) = x.shape, w.shape
    out = np.zeros((n, o, height - k + 1, width - k + 1), x.dtype)
    for image in range(n):
        for channel in range(o):
            for i in range(height - k + 1):
                for j in range(width - k + 1):
                    out[image, channel, i, j] = (
                        x[image, :, i : i + k, j : j + k] * w[channel]
                    ).sum()
    return out


# %% tags=["hide-input"]
images = tp.data.load("shapes", split="test").images[3:5].astype(np.float32) / 255  # (2, 3, 32, 32)
blur = np.full((3, 5, 5), 1 / 75, np.float32)
edge = np.zeros((3, 5, 5), np.float32)
edge[:, :, :2], edge[:, :, 3:] = 1 / 30, -1 / 30  # what is to the left, minus what is to the right
filters = np.stack([blur, edge])  # (2, 3, 5, 5)
filtered = by_loops(images, filters)
figure, every = panels(6, 9.0, 1.7)
for i in range(2):
    every[3 * i].imshow(images[i].transpose(1, 2, 0))
    every[3 * i + 1].imshow(filtered[i, 0], cmap="gray")
    every[3 * i + 2].imshow(filtered[i, 1], cmap="gray")
for axes, title in zip(every, 2 * ["image", "blurred", "edges"], strict=True):
    axes.axis("off")
    axes.set_title(title, loc="center")
show(
    figure,
    "Two images of shapes, each beside the same image blurred, and with its vertical edges, where what "
    "is bright on the left is white and what is bright on the right is black.",
)

# %% [markdown]
# ## One product of matrices
#
# A window is a row of $k \cdot k \cdot C$ numbers. All windows are a matrix with a row for each
# place; all filters are a matrix with a column for each. Their product is the convolution. Building
# the first matrix is called *im2col*. The windows overlap, but nothing has to be copied to *look*
# at them: a view whose strides repeat does it.


# %%
def by_one_product(x, w):
    k = w.shape[-1]
    # (N, C, rows, columns, k, k), a view
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))
    n, c, rows, columns, _, _ = windows.shape
    # now it is copied
    matrix = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, c * k * k)
    out = matrix @ w.reshape(len(w), -1).T  # (places, O)
    return out.reshape(n, rows, columns, len(w)).transpose(0, 3, 1, 2)


for name, result in {
    "one product": by_one_product(images, filters),
    "F.conv2d": F.conv2d(images, filters).data,
}.items():
    print(f"{name:12} equals the loops: {np.allclose(result, filtered, atol=1e-6)}")

# %% [markdown]
# Matrix products are what processors do best: every number is fetched once and used many times.
# This is the rule by which tinyprop defines convolution (`functional/convolution.py`). One thing is
# left to improve: the number of multiplications.
#
# ## Fewer multiplications: Winograd convolution
#
# How many multiplications do 2 neighbouring outputs of a filter of 3 need? Directly, $2 \cdot 3 =
# 6$.

# %%
QUESTION = "multiplications for 2 outputs of a filter of 3"
predict(QUESTION)

# %% [markdown]
# The trick is about polynomials, and is called *Toom-Cook*. A polynomial with 3 coefficients times
# one with 2 has 4 coefficients. Multiplied term by term, that takes 6 multiplications. But a
# polynomial with 4 coefficients is also known by its *values* at 4 points, and values are
# multiplied one by one. So evaluate both factors at 4 points, multiply the values (4
# multiplications), and interpolate. Let $V_n$ be the matrix that evaluates a polynomial with $n$
# coefficients at the points: row $p$ is $1, p, p^2, \dots$ Then the product of $a$ and $b$ is
# $$ V_4^{-1} \big[ (V_3 a) \odot (V_2 b) \big]. $$
# For a fixed $a$ this is a linear map from the 2 numbers $b$ to 4 numbers. Sliding the filter $a$
# over 4 pixels $x$ is the *transposed* map, from 4 numbers to 2. So transpose every factor, and
# reverse their order:
# $$ V_2^T \big[ (V_3 a) \odot (V_4^{-T} x) \big]. $$
# This is *Winograd convolution*. Only the filter is evaluated at the points. The pixels go through
# the transposed interpolation, and the products through the transposed evaluation. The three
# matrices are called the filter, input and output transforms. They only add, and scale by fixed
# small numbers; and since each pixel is transformed once for all filters and each filter once for
# all images, they hardly count. Take the points 0, 1, -1 and infinity (the value at infinity is the
# leading coefficient):


# %%
def transforms(step, k, points):
    """The input, filter and output transforms for `step` neighbouring outputs of a filter of k."""

    def evaluate(n):
        return np.array(
            [[float(p) ** i for i in range(n)] for p in points] + [[0.0] * (n - 1) + [1.0]]
        )

    return np.linalg.inv(evaluate(step + k - 1)).T, evaluate(k), evaluate(step).T


of_input, of_filter, of_output = transforms(2, 3, (0, 1, -1))
pixels, weights = np.array([3.0, 1.0, 4.0, 1.0]), np.array([2.0, 7.0, 1.0])
products = (of_input @ pixels) * (of_filter @ weights)
reveal(QUESTION, products.size)
print("Winograd:", of_output @ products)
print("directly:", np.correlate(pixels, weights, "valid"))

# %% [markdown]
# In two dimensions the transforms are applied along rows and columns, and the saving is squared. An
# image is cut into *tiles*, each with the pixels that a few neighbouring outputs need. Larger tiles
# save more. Why not take huge ones? Because powers of the points grow, and rounding with them. Let
# us measure: for a 5 x 5 filter, the multiplications per output, and the error in float32.

# %%
POINTS = (0, 1, -1, 2, -2, 0.5, -0.5, 4, -4, 0.25, -0.25)
CASES = 2000
random = np.random.default_rng(0)
sizes, counts, errors = range(1, 8), [], []
for step in sizes:
    size = step + 4  # of the tile
    # the same along rows and columns
    three = [np.kron(m, m) for m in transforms(step, 5, POINTS[: size - 1])]
    x, w = random.standard_normal((size * size, CASES)), random.standard_normal((25, CASES))
    exact = three[2] @ ((three[0] @ x) * (three[1] @ w))  # float64
    of_input, of_filter, of_output, x, w = (a.astype(np.float32) for a in (*three, x, w))
    rounded = of_output @ ((of_input @ x) * (of_filter @ w))
    errors.append(np.sqrt(((rounded - exact) ** 2).mean() / (exact**2).mean()))
    counts.append(size * size / step**2)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.3)
axes.loglog(counts, errors, "o-", color=BLUE)
for step, count, error in zip(sizes, counts, errors, strict=True):
    axes.annotate(
        f"{step} x {step}", (count, error), (7, 5), textcoords="offset points", color=BLUE
    )
axes.plot(counts[3:4], errors[3:4], "o", color=RED, markersize=9, zorder=3)
axes.annotate(
    "tinyprop", (counts[3], errors[3]), (-12, -4), textcoords="offset points", color=RED, ha="right"
)
axes.set_xticks([2.5, 4, 6.25, 10, 25], ["2.5", "4", "6.25", "10", "25"])
axes.set_xticks([], minor=True)
axes.margins(y=0.12)
axes.set(
    title="Relative rounding error of tiles, 5 x 5 filter", xlabel="multiplications per output"
)
show(
    figure,
    "Relative rounding error of tiles against multiplications per output, for tiles of 1 x 1 to 7 x 7 "
    + "outputs: fewer multiplications, larger errors. "
    + " ".join(
        f"{step} x {step}: {count:.2g} multiplications, {error:.0e}."
        for step, count, error in zip(sizes, counts, errors, strict=True)
    ),
)

# %%
print(
    f"4 x 4 outputs: {counts[3]:g} multiplications per output instead of 25, "
    f"{25 / counts[3]:g} "
    "times fewer"
)

# %% [markdown]
# tinyprop takes tiles of 4 x 4 outputs, with points chosen for small errors, when there are enough
# channels to pay for the transforms (`pays` in `kernels/tiles.py`). float64 never uses tiles,
# and `F.exact_convolution()` forbids them. They are an *override*: a faster way, registered beside
# the rule. `with tp.plain():` computes everything by the rules.

# %%
x, w = random.standard_normal((2, 32, 16, 16)), random.standard_normal((32, 32, 5, 5))
exact = F.conv2d(x, w, padding=2).data
x, w = x.astype(np.float32), w.astype(np.float32)
by_tiles = F.conv2d(x, w, padding=2).data
with F.exact_convolution():
    plain = F.conv2d(x, w, padding=2).data
for name, result in {"Winograd": by_tiles, "plain product": plain}.items():
    error = np.sqrt(((result - exact) ** 2).mean() / (exact**2).mean())
    print(f"{name:14} relative error {error:.0e}")
print("outputs of a tile along an axis, and points, for each filter size:", TILES)
ours, theirs = transforms(4, 5, TILES[5][1]), matrices(5)
same = [
    np.array_equal(m, theirs[name])
    for m, name in zip(ours, ("input", "filter", "output"), strict=True)
]
print("our transforms are tinyprop's:", all(same))

# %% [markdown]
# ## Pooling, taken apart
#
# Max-pooling takes the largest pixel of each window. The largest of 3 x 3 is the largest of 3 row
# maxima: first along the rows, then along the columns, 2k slices instead of k². Slices, never
# pixels: the loop below runs three times.


# %%
def max_along(x, axis, k=3):
    length = x.shape[axis] - k + 1
    shifted = [np.take(x, range(i, i + length), axis) for i in range(k)]
    return np.maximum.reduce(shifted)


pooled = max_along(max_along(images, 2), 3)
print("equals F.max_pool2d:", np.array_equal(pooled, F.max_pool2d(images, 3, stride=1).data))

# %% tags=["hide-input"]
figure, every = panels(3, 6.0, 2.2)
steps = {"image": images, "rows": max_along(images, 3), "rows, columns": pooled}
for axes, (title, picture) in zip(every, steps.items(), strict=True):
    axes.imshow(picture[1].transpose(1, 2, 0))
    axes.set_title(title, loc="center")
    axes.axis("off")
show(
    figure,
    "An image, its largest values along rows, and then along rows and columns: bright parts grow.",
)

# %% [markdown]
# ## Exercises
#
# **E1.1** Give `by_one_product` a stride and a padding: pad the image with zeros on all sides
# first, then take every `stride`-th window in both directions.


# %%
def convolution(x, w, stride, padding): ...  # your code


check("E1.1", convolution)
# hint("E1.1")

# %% [markdown]
# **E1.2** The gradient with respect to the image is a convolution, too. Given $g$, the gradient
# with respect to the output of a convolution with stride 1 and no padding, of shape (N, O, rows,
# columns), and the filters $w$ (O, C, k, k), return the gradient with respect to the image. You may
# use `by_one_product`.


# %%
def image_gradient(g, w): ...  # your code


check("E1.2", image_gradient)

# %% [markdown]
# **E1.3** How many multiplications per output does Winograd convolution need, for tiles of $m
# \times m$ outputs and a filter of $k \times k$?


# %%
def multiplications(m, k): ...  # your code


check("E1.3", multiplications)

# %% [markdown]
# Solutions, with derivations: [solutions/E1_convolution.ipynb](solutions/E1_convolution.ipynb).
#
# ## Read next
#
# - [`tinyprop/functional/convolution.py`](../tinyprop/functional/convolution.py), `pooling.py`
#   beside it, `windows.py` in the same room; then the overrides in
#   [`tinyprop/kernels/tiles.py`](../tinyprop/kernels/tiles.py) and `pointwise.py`.
# - [`benchmarks/README.md`](../benchmarks/README.md): how to measure what tiles gain on your
#   machine.
# - Lavin and Gray, *Fast algorithms for convolutional neural networks*, CVPR 2016.
#
# Back to the [course](README.md).
