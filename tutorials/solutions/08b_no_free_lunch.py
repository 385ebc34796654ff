# %% [markdown]
# # Solutions of lesson 8b: no free lunch

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check

CHI = math.pi / (math.pi - 1)

# %% [markdown]
# **8b.1** The normalised output is $o = \sum_{d \ge 1} a_d h_d / c_1$ with $c_1^2 = \sum_{d \ge 1}
# a_d^2$. Its derivative is $\sum_d a_d \sqrt d\, h_{d-1} / c_1$, and since the $h_d$ are
# orthonormal, $E[o'^2] = \sum_d d a_d^2 / c_1^2$. For tanh, with coefficients by quadrature, it is
# the square of the Jacobian factor, which tinyprop computes from the slope. The polynomials come
# from $h_{d+1} = (x h_d - \sqrt d\, h_{d-1})/\sqrt{d + 1}$.


# %%
def mean_degree(coefficients):
    squares = np.asarray(coefficients) ** 2
    return (np.arange(len(squares)) * squares).sum() / squares[1:].sum()


check("8b.1", mean_degree)
nodes, weights = np.polynomial.legendre.leggauss(300)
z = 10 * nodes
bell = 10 * weights * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
before, h, coefficients = np.zeros_like(z), np.ones_like(z), []
for k in range(60):
    coefficients.append(bell @ (np.tanh(z) * h))
    before, h = h, (z * h - math.sqrt(k) * before) / math.sqrt(k + 1)
factor = tp.moments.gaussian("tanh").jacobian_factor
print(f"tanh: mean degree {mean_degree(coefficients):.6f}, gain {factor**2:.6f}")

# %% [markdown]
# **8b.2** $L$ layers multiply their gains, so one layer must have $e^{1/L}$. The gain falls as
# $\beta$ grows, because the kink moves away from the middle of the bell curve, so halving the
# interval finds the place.


# %%
def beta_for(depth):
    low, high = 0.0, 5.0
    for _ in range(50):
        middle = (low + high) / 2
        gain = tp.moments.gaussian("relu", middle, 1.0).jacobian_factor ** 2
        low, high = (middle, high) if gain > math.exp(1 / depth) else (low, middle)
    return low


check("8b.2", beta_for)
print(f"beta for 50 layers: {beta_for(50):.4f}")

# %% [markdown]
# **8b.3** $v$ grows by $\alpha^2$ in each block, so for small $\alpha^2$, $\ln v$ grows by
# $\alpha^2/v$, and $\ln(1 + \chi\alpha^2/v) \approx \chi\alpha^2/v$ is $\chi$ times that. Add up: the
# log of the gain is $\chi \ln v_L = \chi \ln(1 + L\alpha^2)$. It is 1 for $1 + L\alpha^2 = e^{1/\chi}$.


# %%
def alpha_for(depth):
    return math.sqrt((math.exp(1 / CHI) - 1) / depth)


check("8b.3", alpha_for)
gain, v = 1.0, 1.0
for _ in range(100):
    gain, v = gain * (1 + CHI * alpha_for(100) ** 2 / v), v + alpha_for(100) ** 2
print(f"100 blocks: gain {gain:.3f}, e = {math.e:.3f}")
