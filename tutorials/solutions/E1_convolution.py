# %% [markdown]
# # Solutions of elective E1: convolution and pooling as array programs

# %%
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

# %% [markdown]
# **E1.1** Padding happens before the windows are taken, and a stride is a slice of the windows:
# both are done without a loop, and without copying more than the padded image.


# %%
def convolution(x, w, stride=1, padding=0):
    k = w.shape[-1]
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))[
        :, :, ::stride, ::stride
    ]
    n, c, rows, columns, _, _ = windows.shape
    matrix = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, c * k * k)
    return (
        (matrix @ w.reshape(len(w), -1).T).reshape(n, rows, columns, len(w)).transpose(0, 3, 1, 2)
    )


check("E1.1", convolution)

# %% [markdown]
# **E1.2** In one dimension: $y_i = \sum_j w_j x_{i+j}$, so $dL/dx_p = \sum_j g_{p-j} w_j$. The
# index of $g$ runs backwards where that of $w$ runs forwards: the filter is turned. With $i = p -
# j$ and $g$ padded by $k - 1$ on both sides, this is a convolution with the turned filter. In two
# dimensions, both axes are turned. Inputs and outputs change places, so the axes O and C of the
# filters are swapped.


# %%
def image_gradient(g, w):
    k = w.shape[-1]
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)  # (O, C, k, k) -> (C, O, k, k)
    return convolution(g, turned, padding=k - 1)


check("E1.2", image_gradient)

# %% [markdown]
# **E1.3** Along one axis, $m$ outputs of a filter of $k$ see $m + k - 1$ pixels. A polynomial with
# $k$ coefficients times one with $m$ has $m + k - 1$ coefficients, and takes as many products of
# values. Along two axes both numbers are squared. For $m = 4$, $k = 5$ it is $(8/4)^2 = 4$ instead
# of 25.


# %%
def multiplications(m, k):
    return ((m + k - 1) / m) ** 2


check("E1.3", multiplications)
