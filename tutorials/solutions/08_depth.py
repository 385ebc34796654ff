# %% [markdown]
# # Solutions of lesson 8: depth

# %%
import math
import sys

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
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
# **8.3** A layer takes $q$ to $2 \cdot q/2 = q$ and the covariance $\rho q$ to $2 q\,\kappa(\rho)$. So
# $\rho' = 2\kappa(\rho)$, which is never below $\rho$, and equal only at 1: all inputs become alike.


# %%
def kappa(rho):
    return (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)


def correlation_after(rho, depth):
    for _ in range(depth):
        rho = min(2 * kappa(rho), 1.0)
    return rho


check("8.3", correlation_after)
print(f"two unrelated inputs after 20 layers: {correlation_after(0.0, 20):.4f}")
