# %% [markdown]
# # Solutions of lesson 5: the two constants

# %%
import math
import sys

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

C2 = 1 / math.sqrt(2 * math.pi)

# %% [markdown]
# **5.1** The positive half of the bell curve gives $E[X; X > 0] = \int_0^\infty x \varphi = c_2$.
# The negative half gives $-c_2$, and PReLU multiplies it by $a$. So the mean is $c_2 - a c_2 = (1 -
# a)/\sqrt{2\pi}$. Each half has half of $E[X^2] = 1$, and the negative half is multiplied by $a^2$:
# the mean square is $\frac12 (1 + a^2)$. Hence
# $$ \mathrm{Var} = \frac{1 + a^2}{2} - \frac{(1 - a)^2}{2\pi}
# = \frac12 \Big( (1 + a^2) - \frac{(1 - a)^2}{\pi} \Big). $$


# %%
def prelu_constants(a):
    mean = (1 - a) * C2
    return mean, math.sqrt((1 + a * a) / 2 - mean**2)


check("5.1", prelu_constants)

# %% [markdown]
# **5.2** About the mean $m = c_2$ the fourth moment is $E[y^4] - 4m E[y^3] + 6m^2 E[y^2] - 4m^3
# E[y] + m^4 = \frac32 - 8 c_2^2 + 3 c_2^2 - 3 c_2^4$. Divided by $c_1^4$ it is $\kappa = 5.41$:
# ReLU of a normal number has heavier tails than the normal number, whose $\kappa$ is 3. From
# $\epsilon^2 = (\kappa - 1)/(4N)$ follows $N = (\kappa - 1)/(4\epsilon^2)$.


# %%
def samples_needed(error):
    variance = 0.5 - C2**2
    fourth = 1.5 - 5 * C2**2 - 3 * C2**4
    return (fourth / variance**2 - 1) / (4 * error**2)


check("5.2", samples_needed)
for error in (0.00064, 1e-10):
    print(f"relative error {error:.2g}: {samples_needed(error):.2g} samples")

# %% [markdown]
# **5.3** With $X = \mu + Z$, ReLU is not 0 for $Z > -\mu$:
# $$ E \max(0, X) = \int_{-\mu}^\infty (\mu + z)\, \varphi(z)\, dz
# = \mu\, \Phi(\mu) + \Big[ -\varphi(z) \Big]_{-\mu}^\infty = \mu\, \Phi(\mu) + \varphi(\mu), $$
# since $\int_{-\mu}^\infty \varphi = \Phi(\mu)$ by symmetry. At $\mu = 0$ it is $\varphi(0) = c_2$.


# %%
def shifted_relu_mean(mu):
    phi = math.exp(-mu * mu / 2) / math.sqrt(2 * math.pi)
    return mu * 0.5 * math.erfc(-mu / math.sqrt(2)) + phi


check("5.3", shifted_relu_mean)

# %% [markdown]
# **5.4** The variance of a row of 256 numbers about its own mean is $\frac{255}{256}$ on average,
# so the recipe gives $\sqrt{256/255}$ for the normal numbers themselves. It averages over $N = 1024
# \cdot 256$ numbers, so its standard error is $1/\sqrt{2N}$. The table's value is within two
# standard errors: it is what the recipe would give by chance, though it is nearer to the exact 1
# than the recipe's average. Nothing follows from one number; it does not contradict the recipe.

# %%
standard_errors_away = (1.0002083778381348 - math.sqrt(256 / 255)) * math.sqrt(2 * 1024 * 256)
print(f"{standard_errors_away:.2f} standard errors")

check("5.4", standard_errors_away)
