# %% [markdown]
# # Solutions of lesson 8: depth

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check

C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)

# %% [markdown]
# **8.1** $c_1^2 E[o^2] = E[(\mathrm{relu}(u) - c_2)^2] = E[\mathrm{relu}(u)^2] - 2 c_2
# E[\mathrm{relu}(u)] + c_2^2$. With $u = \sqrt q\, Z$ and relu$(\sqrt q Z) = \sqrt q\,$relu$(Z)$,
# the first term is $q/2$ and the second $-2 c_2 \cdot c_2 \sqrt q$.


# %%
def next_mean_square(q, gamma):
    return (gamma / C1) ** 2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2)


check("8.1", next_mean_square)

# %% [markdown]
# **8.2** Put in $c_2^2 = \frac{1}{2\pi}$ and $c_1^2 = \frac{\pi - 1}{2\pi}$, and write $r = \sqrt
# q$. Then $q' = q$ is
# $$ \frac{r^2 (\pi - 1)}{\gamma^2} = \pi r^2 - 2r + 1 = (\pi - 1) r^2 + (1 - r)^2, \qquad\text{so}\qquad
# (1 - r)^2 = r^2 \tau^2, \quad \tau^2 = (\pi - 1) \Big( \frac{1}{\gamma^2} - 1 \Big). $$ The two
# roots are $1 - r = \pm r\tau$, that is $r = 1/(1 \pm \tau)$. The smaller one, $q = 1/(1 +
# \tau)^2$, is stable. For $\gamma^2 = (\pi - 1)/\pi$, the paper's choice, $\tau^2 = (\pi -
# 1)\,\frac{1}{\pi - 1} = 1$ and $q = \frac14$.


# %%
def settled(gamma):
    tau = math.sqrt((math.pi - 1) * (1 / gamma**2 - 1))
    return 1 / (1 + tau) ** 2


check("8.2", settled)
q = 0.6
for _ in range(100):
    q = next_mean_square(q, 0.9)
print(f"gamma = 0.9: {q:.6f} after 100 steps of the recursion, {settled(0.9):.6f} by the formula")

# %% [markdown]
# **8.3** The normalised output is $o = \sum_{d \ge 1} a_d h_d / c_1$ with $c_1^2 = \sum_{d \ge 1}
# a_d^2$. Its derivative is $\sum_d a_d \sqrt d\, h_{d-1} / c_1$, and since the $h_d$ are
# orthonormal, $E[o'^2] = \sum_d d a_d^2 / c_1^2$. For tanh, with coefficients by quadrature, it is
# the square of the Jacobian factor, which tinyprop computes from the slope. The polynomials come
# from $h_{d+1} = (x h_d - \sqrt d\, h_{d-1})/\sqrt{d + 1}$.


# %%
def mean_degree(coefficients):
    squares = np.asarray(coefficients) ** 2
    return (np.arange(len(squares)) * squares).sum() / squares[1:].sum()


check("8.3", mean_degree)
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
# **8.4** $L$ layers multiply their gains, so one layer must have $e^{1/L}$. The gain falls as
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


check("8.4", beta_for)
print(f"beta for 50 layers: {beta_for(50):.4f}")
