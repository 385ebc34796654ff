# %% [markdown]
# # Solutions of lesson 4: BatchNorm from scratch

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

# %% [markdown]
# **4.1** A filter is moved over the whole image, so all places of a channel are computed with the
# same weights: they are samples of one unit. Mean and variance are taken over the axes 0, 2 and 3.
# `keepdims=True` leaves the shape $(1, C, 1, 1)$, which broadcasts.


# %%
def batch_norm_images(x, eps):
    mean, var = x.mean(axis=(0, 2, 3), keepdims=True), x.var(axis=(0, 2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


check("4.1", batch_norm_images)

# %% [markdown]
# **4.2** From $d\hat x_i/dx_j = \frac1\sigma ([i = j] - \frac1B - \frac{\hat x_i \hat x_j}{B})$:
# $$ \frac{dL}{dx_j} = \sum_i g_i \frac{d\hat x_i}{dx_j}
# = \frac1\sigma \Big( g_j - \frac1B \sum_i g_i - \hat x_j \frac1B \sum_i g_i \hat x_i \Big). $$ The
# matrix in brackets is a projection: it removes what is along $(1, \dots, 1)$ and along $\hat x$.
# These two are orthogonal, as $\hat x$ has mean 0, and $\hat x$ has length $\sqrt B$, which
# explains both factors $1/B$.


# %%
def normalized_gradient(x, g):
    std = x.std()
    normal = (x - x.mean()) / std
    return (g - g.mean() - normal * (g * normal).mean()) / std


check("4.2", normalized_gradient)

# %% [markdown]
# **4.3** The weight of a batch falls by $1 - m$ with every later batch: it is an exponential moving
# average, with a memory of about $1/m$ steps. That it starts at 0 matters for the first steps only.


# %%
def running_mean(batch_means, momentum):
    running = 0.0
    for mean in batch_means:
        running = (1 - momentum) * running + momentum * mean
    return running


check("4.3", running_mean)

# %% [markdown]
# **4.4** The outputs have sum 0 and squares that add up to $B$. Let one output be $a$. The others
# sum to $-a$, so by the Cauchy-Schwarz inequality their squares add up to at least $a^2/(B - 1)$.
# Hence $a^2 + a^2/(B - 1) \le B$, that is $a^2 \le B - 1$. Equality holds when the others are
# equal: one outlier. For $B = 2$ it *always* holds, so both outputs are $\pm 1$.


# %%
def largest_output(batch_size):
    return math.sqrt(batch_size - 1)


check("4.4", largest_output)
