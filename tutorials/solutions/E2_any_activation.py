# %% [markdown]
# # Solutions of elective E2: any activation

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check

# %% [markdown]
# **E2.1** Gauss-Legendre points are made for $\int_{-1}^1$. With $z = 9t$, $\int_{-9}^9 f(z)\,dz =
# 9 \int_{-1}^1 f(9t)\,dt$, so points and weights are multiplied by 9, and the bell curve is part of
# $f$.


# %%
def constants(s):
    points, weights = np.polynomial.legendre.leggauss(160)
    z = 9 * points
    bell = 9 * weights * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    mean = bell @ s(z)
    return mean, math.sqrt(bell @ s(z) ** 2 - mean**2)


check("E2.1", constants)
mean, std = constants(np.vectorize(math.erf))
print(f"erf: variance {std**2:.12f}; (2/pi) arcsin(2/3) = {2 / math.pi * math.asin(2 / 3):.12f}")

# %% [markdown]
# **E2.2** All layers use the same constant, so their errors do not average out: $(1 + \epsilon)^L =
# 1 + \delta$, that is $\epsilon = (1 + \delta)^{1/L} - 1 \approx \delta/L$. With $\epsilon^2 =
# 1.102/N$, $N \approx 1.102\,(L/\delta)^2$.


# %%
def samples_for(depth, delta):
    return 1.102 / ((1 + delta) ** (1 / depth) - 1) ** 2


check("E2.2", samples_for)
print(f"100 layers, 1 %: {samples_for(100, 0.01):.1e} samples")

# %% [markdown]
# **E2.3** Differentiate $2 c_1^2 = (1 + a^2) - (1 - a)^2/\pi$: $4 c_1 \frac{dc_1}{da} = 2a +
# \frac{2(1 - a)}{\pi}$.


# %%
def slope_of_c1(a):
    c1 = math.sqrt((1 + a * a - (1 - a) ** 2 / math.pi) / 2)
    return (a + (1 - a) / math.pi) / (2 * c1)


check("E2.3", slope_of_c1)
a = tp.tensor(0.25, requires_grad=True)
(slope,) = tp.grad(tp.moments.gaussian("prelu", a=a).std, [a])
print(f"a = 0.25: by the engine {slope.item():.6f}, by hand {slope_of_c1(0.25):.6f}")
