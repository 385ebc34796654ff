# %% [markdown]
# # Solutions of lesson 9: the other normalisers

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check

C1 = math.sqrt((1 - 1 / math.pi) / 2)

# %% [markdown]
# **9.1** After `reshape(samples, groups, -1)`, the last axis holds all numbers of a group: its
# channels, which are neighbours in memory, and their places.


# %%
def group_norm(x, groups, eps):
    y = x.reshape(len(x), groups, -1)  # (N, C, H, W) -> (N, G, C/G*H*W)
    y = (y - y.mean(axis=2, keepdims=True)) / np.sqrt(y.var(axis=2, keepdims=True) + eps)
    return y.reshape(x.shape)


check("9.1", group_norm)

# %% [markdown]
# **9.2** Let the inputs be $x_i = c_2 + \tilde x_i$, with $\tilde x_i$ uncorrelated, of mean 0 and
# variance $c_1^2$. Then $\sum_i w_i x_i = c_2 \sum_i w_i + \sum_i w_i \tilde x_i$. The first term
# is a mean that does not belong to the data; it vanishes if the row sums to 0. The second has the
# variance $c_1^2 |w|^2$, which is 1 for $|w| = 1/c_1$. So WS does with the weights what NormProp
# does with the outputs: it removes $c_2$ and divides by $c_1$.


# %%
def scaled_ws(w):
    rows = w - w.mean(axis=1, keepdims=True)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) / C1


check("9.2", scaled_ws)

# %% [markdown]
# **9.3** With $e = v/|v|$, $w = g e$. Then $dw/dg = e$, so $dL/dg = G \cdot e$. And $de = (dv -
# e\,(e \cdot dv))/|v|$: the part of a change along $v$ does not turn $v$. So $dL/dv = \frac{g}{|v|}
# \big( G - (G \cdot e)\, e \big)$. It is orthogonal to $v$, as in lesson 6.


# %%
def weight_norm_gradients(v, g, gradient):
    length = np.linalg.norm(v)
    unit = v / length
    along = gradient @ unit
    return g / length * (gradient - along * unit), along


check("9.3", weight_norm_gradients)

# %% [markdown]
# **9.4** $\alpha u$ is Gaussian with the standard deviation $\alpha \sqrt v$. As tanh is odd, its
# mean is 0 and its mean square is its variance.


# %%
def dyt_mean_square(alpha, variance):
    m = tp.moments.gaussian("tanh", 0.0, alpha * math.sqrt(variance))
    return m.mean**2 + m.std**2


check("9.4", dyt_mean_square)
for variance in (0.25, 1.0, 4.0):
    print(f"alpha 0.5, variance {variance:g}: mean square {dyt_mean_square(0.5, variance):.4f}")
