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
# **E2.2** Take the recursion as it is, $L$ times. It is not $(1 + \epsilon)^{-L}$, and not symmetric.
# Near $q = 1$ the mean square without an error has slope 1 and curvature: by lesson 8, $q' = q +
# (\sqrt q - 1)^2/(\pi - 1)$. If $c_1$ is too large, $q$ falls below 1, where this term pushes it back,
# and it settles. If $c_1$ is too small, $q$ rises above 1, where the same term drives it further, and
# it explodes, however small the error is, if the network is deep enough.


# %%
def size_after(depth, epsilon):
    c1, c2 = math.sqrt((1 - 1 / math.pi) / 2), 1 / math.sqrt(2 * math.pi)
    q = 1.0
    for _ in range(depth):
        q = (q / 2 - 2 * c2**2 * math.sqrt(q) + c2**2) / ((1 + epsilon) * c1) ** 2
    return math.sqrt(q)


check("E2.2", size_after)
for epsilon in (0.01, -0.01):
    print(
        f"100 layers, {epsilon:+.0%}: {size_after(100, epsilon):.2g}; "
        f"(1 + epsilon)^-100 would be {(1 + epsilon) ** -100:.2g}"
    )
print(f"5 million samples (one standard error): {size_after(100, -math.sqrt(1.102 / 5e6)):.3f}")

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
