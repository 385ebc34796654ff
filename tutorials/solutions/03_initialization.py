# %% [markdown]
# # Solutions of lesson 3: how to start

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

# %% [markdown]
# **3.1** Half of the $u$ are positive and keep their square, the other half are multiplied by $a$.
# So $E[s(u)^2] = \frac12 (1 + a^2)\, E[u^2]$, and a layer multiplies the mean square by $n v (1 +
# a^2)/2$. It is 1 for $v = 2 / (n (1 + a^2))$. For $a = 0$ this is He's $2/n$; for $a = \pm 1$,
# where no size is lost, it is $1/n$.


# %%
def he_std(inputs, a):
    return math.sqrt(2 / (inputs * (1 + a * a)))


check("3.1", he_std)

# %% [markdown]
# **3.2** A uniform number on $[-r, r]$ has the density $1/(2r)$, so its variance is $\int_{-r}^{r}
# \frac{x^2}{2r}\, dx = \frac{r^2}{3}$. With $\frac{r^2}{3} = \frac{2}{n + m}$ the bound is $r =
# \sqrt{6/(n + m)}$.


# %%
def glorot_bound(inputs, outputs):
    return math.sqrt(6 / (inputs + outputs))


check("3.2", glorot_bound)

# %% [markdown]
# **3.3** The inputs have mean square 1. The first product makes it $c$. From then on, ReLU and a
# product multiply it by $c/2$, and that happens $L - 1$ times: $E[u^2] = c\,(c/2)^{L-1}$.


# %%
def size_in_layer(c, layer):
    return math.sqrt(c * (c / 2) ** (layer - 1))


check("3.3", size_in_layer)

# %% [markdown]
# **3.4** If $u$ is standard normal, the next $u$ has the mean square $n \cdot \frac{g^2}{n} \cdot
# E[s(Z)^2]$, which is 1 for $g = 1/\sqrt{E[s(Z)^2]}$. It is the mean of the square that counts, not
# the variance: nothing here removes the mean. With a million samples, the error is about 0.1 %;
# `tp.nn.init.gain` integrates and has all digits.


# %%
def gain(s):
    z = np.random.default_rng(0).standard_normal(1_000_000)
    return np.mean(s(z) ** 2) ** -0.5


check("3.4", gain)
