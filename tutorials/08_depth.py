# %% [markdown]
# # 8. Depth
#
# **Goal.** Stack many NormProp layers and see what $\gamma$ does to the signal. Derive the recursion
# that explains it, and fix it exactly. (Lesson 8b follows the gradient.)
#
# The paper argues by induction: if a layer's input is normalised, so is its output, so is the next
# one's, and so on. It then recommends starting with $\gamma = 1/1.21$ for the sake of the gradients
# (lesson 7). Here are networks of 25 ReLU layers of 150 units with random weights. Left: the
# variance of a unit over 100 inputs. Right: the square of its mean.

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
from lesson import BLUE, GREEN, RED, check, claim, hint, panels, predict, reveal, show

# %%
WIDTH, DEPTH, INPUTS, NETWORKS = 150, 25, 100, 6
C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)


def statistics(random, gamma, beta=0.0, c1=C1, c2=C2):
    """For each layer: variance of a unit over inputs, and squared mean; averaged over units."""
    x, found = random.standard_normal((INPUTS, WIDTH)), []
    for _ in range(DEPTH):
        w = random.standard_normal((WIDTH, WIDTH))
        u = gamma * x @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T  # (inputs, units)
        variance = u.var(axis=0, ddof=1).mean()
        # without the error of the mean
        found.append((variance, (u.mean(axis=0) ** 2).mean() - variance / INPUTS))
        x = (np.maximum(u + beta, 0) - c2) / c1
    return np.array(found).T  # (2, layers)


# %% tags=["hide-input"]
GAMMA = math.sqrt((math.pi - 1) / math.pi)  # 1/1.2112
layers = np.arange(1, DEPTH + 1)
exact = tp.moments.gaussian("relu", 1.0, 1.0)  # mean and standard deviation of relu(1 + Z)
SETTINGS = {
    "gamma = 1": ((1.0,), BLUE),
    "gamma = 1/1.21, the paper's": ((GAMMA,), RED),
    "exact, beta = gamma = 1": ((1.0, 1.0, exact.std, exact.mean), GREEN),
}
measured = {}
for name, (how, _) in SETTINGS.items():
    random = np.random.default_rng(0)
    # (networks, 2, layers)
    measured[name] = np.array([statistics(random, *how) for _ in range(NETWORKS)])


def draw(title, lines=(), words=""):
    figure, both = panels(2, 9.0, 3.4)
    for row, axes in enumerate(both):
        for name, (_, colour) in SETTINGS.items():
            mean = measured[name][:, row].mean(axis=0)
            bar = measured[name][:, row].std(axis=0, ddof=1) / math.sqrt(NETWORKS)
            axes.errorbar(layers, mean, bar, fmt="o", markersize=3, color=colour, elinewidth=1)
        for colour, line in lines:
            axes.plot(layers, line[row], color=colour, linewidth=1)
    left, right = both
    left.set(title=title, xlabel="layer", yscale="log", ylim=(0.005, 30))
    left.text(13, 5.5, r"$\gamma = 1$", color=BLUE, ha="right")
    left.text(10, 0.3, r"exact, $\beta = \gamma = 1$", color=GREEN)
    left.text(1, 0.008, r"$\gamma = 1/1.21$, the paper's", color=RED)
    right.set(title="Squared mean of a unit", xlabel="layer", ylim=(-0.05, 0.6))
    show(
        figure,
        f"Two panels over {DEPTH} layers: variance of a unit over inputs, on a logarithmic scale, and its "
        "squared mean. "
        + " ".join(
            f"{name}: variance {m[0][0]:.2f} in layer 1, {m[0][8]:.2f} in layer 9, {m[0][-1]:.2f} in "
            f"layer {DEPTH}, where the squared mean is {m[1][-1]:.2f}."
            for name, m in ((name, values.mean(axis=0)) for name, values in measured.items())
        )
        + words,
    )


draw("Variance of a unit over inputs")

# %% [markdown]
# Only the green network does what the induction promises; the other two follow the paper's equation
# to the letter. What happens in them?
#
# ## The recursion
#
# We follow two numbers from layer to layer: $q = E[u^2]$, the mean square of a pre-activation $u$,
# over inputs and random weights, and $k$, the mean square of a unit's own mean over inputs. The
# variance of a unit over inputs is $q - k$. The bell curve here is the one *over weights, for a fixed
# input* (lesson 6): $u$ is Gaussian over the random weights, with mean 0 and, in a wide layer, with
# the variance $q$.
#
# **The mean square.** The next pre-activation is $u' = \gamma \sum_i w_i o_i/|w|$, and as the row
# $w$ is random, $E[u'^2] = \gamma^2 E[o^2]$, as in lesson 3. With $o = (\mathrm{relu}(u) -
# c_2)/c_1$,
# $$ E[o^2] = \frac{E[\mathrm{relu}(u)^2] - 2 c_2 E[\mathrm{relu}(u)] + c_2^2}{c_1^2}, \qquad
# q' = \frac{\gamma^2}{c_1^2} \Big( \frac q2 - 2 c_2^2 \sqrt q + c_2^2 \Big), $$ because
# $E[\mathrm{relu}(u)^2] = q/2$ and $E[\mathrm{relu}(u)] = c_2 \sqrt q$ for a Gaussian of variance
# $q$.
#
# **The means.** Take two different inputs and the same unit. Over the random weights their
# pre-activations $u_1$, $u_2$ are Gaussian *together*. They share the unit's mean, so their covariance
# is $k$, and their correlation $\rho = k/q$. We need $\kappa(\rho) = E[\mathrm{relu}(X)\,
# \mathrm{relu}(Y)]$ for two standard normal numbers of correlation $\rho$. Differentiate: for any $f$
# and $g$,
# $$ \frac{d}{d\rho} E[f(X)\, g(Y)] = E[f'(X)\, g'(Y)]. $$
# (Check it for $f = g = x$: $E[XY] = \rho$. In general, write $Y = \rho X + \sqrt{1 - \rho^2} Z$ and
# integrate by parts.) ReLU's slope is 1 where its input is positive, so $\kappa'(\rho)$ is the
# probability that both are positive. $X$ and $Y$ are the coordinates of a random point of the plane
# along two unit vectors at the angle $\arccos\rho$, so both are positive in a sector of the angle $\pi
# - \arccos\rho$, and the probability is $(\pi - \arccos\rho)/(2\pi)$. Integrate from $\kappa(0) =
# c_2^2$:
# $$ \kappa(\rho) = \frac{\sqrt{1 - \rho^2} + \rho\,(\pi - \arccos\rho)}{2\pi}, \qquad\text{so}\qquad
# k' = \frac{\gamma^2}{c_1^2} \Big( q\, \kappa(k/q) - 2 c_2^2 \sqrt q + c_2^2 \Big). $$
# (Cho and Saul, 2009, found this $\kappa$.) The start is
# $q = \gamma^2$, $k = 0$. That is all. First a prediction: with $\gamma = 1/1.21$, what is the
# variance of a unit in layer 9, the last one of the paper's network?

# %%
QUESTION = "variance of a unit in layer 9 with gamma = 1/1.21"
predict(QUESTION)


# %%
def kappa(rho):
    return (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)


def recursion(gamma, depth=DEPTH):
    """Variance over inputs, and squared mean, of each layer of an infinitely wide network: (2,
    depth)."""
    q, k, found = gamma**2, 0.0, []
    for _ in range(depth):
        found.append((q - k, k))
        center = C2**2 - 2 * C2**2 * math.sqrt(q)
        q, k = (
            (gamma / C1) ** 2 * (q / 2 + center),
            (gamma / C1) ** 2 * (q * kappa(min(k / q, 1.0)) + center),
        )
    return np.array(found).T


reveal(QUESTION, recursion(GAMMA)[0, 8])

lines = [(BLUE, recursion(1.0)), (RED, recursion(GAMMA))]

# %% tags=["hide-input"]
variances = [line[0, -1] for _, line in lines]
draw(
    "Variance over inputs; lines: recursion",
    lines,
    f" Lines of the recursion: in layer {DEPTH} the variance is {variances[0]:.2f} with gamma = 1 and "
    f"{variances[1]:.3f} with gamma = 1/1.21.",
)

# %%
for name, (how, _) in SETTINGS.items():
    v = measured[name][:, 0, 8]
    wide = "1" if len(how) > 1 else f"{recursion(how[0])[0, 8]:.4f}"
    print(
        f"{name:27} layer 9: variance {v.mean():.3f} +- {v.std(ddof=1) / NETWORKS**0.5:.3f}, "
        f"wide networks {wide}"
    )
faded = measured["gamma = 1/1.21, the paper's"][:, 0, 8].mean()
claim(
    f"with gamma = 1/1.21 the recursion is right to {abs(faded / recursion(GAMMA)[0, 8] - 1):.0%} in layer 9",
    abs(faded / recursion(GAMMA)[0, 8] - 1) < 0.1,
)
print(f"gamma = 1/1.2112: after 2,000 layers q is {recursion(GAMMA, 2000).sum(axis=0)[-1]:.4f}")

# %% [markdown]
# **With $\gamma = 1/1.21$** the variance has fallen to 0.065 in layer 9. The induction needs
# $\gamma = 1$: with a smaller one, $u$ is smaller, but $c_1$ and $c_2$ are still those of $\gamma =
# 1$. Too much is subtracted, units get means of their own, and what they say about the *input*
# fades. In the end $q$ settles at exactly $1/4$, all of it means: every input then looks the same.
#
# **With $\gamma = 1$** infinitely wide networks stay at $q = 1$. But put $\gamma = 1$ into the
# recursion, and with $c_1^2 = \frac12 - c_2^2$ you find
# $$ q' = q + \frac{(\sqrt q - 1)^2}{\pi - 1}. $$
# This never falls. In a network of finite width $q$ moves by chance, up as well as down; what goes
# above 1 keeps growing. The blue dots leave their line.
#
# [`figures/gamma.gif`](../figures/gamma.gif) shows the distribution in 30 layers while $\gamma$ is
# swept from 0.7 to 1.
#
# ## The exact mode
#
# The fix: take $c_1$ and $c_2$ of what really enters the activation $s$, a Gaussian of mean
# $\beta$ and standard deviation $\gamma$. With $z = w \cdot x / |w|$,
# $$ o = \frac{s(\gamma z + \beta) - c_2(\gamma, \beta)}{c_1(\gamma, \beta)}. $$
# Then mean 0 and variance 1 hold for *every* $\gamma$ and $\beta$, also while they are learnt; the
# gradient passes through both constants. In tinyprop this is `mode="exact"`.

# %%
x = tp.tensor(np.random.default_rng(0).standard_normal((20_000, 20), np.float32))
for mode in ("paper", "exact"):
    layer = tp.nn.NormPropLinear(20, 10, gamma=0.6, mode=mode)
    layer.beta.data[...] = 0.4
    out = layer(x).data
    print(
        f"{mode}: gamma 0.6, beta 0.4: mean {out.mean():+.2f}, standard deviation {out.std():.2f}"
    )

# %% [markdown]
# ## Exercises
#
# **8.1** Write one step of the recursion for the mean square: from $q$ to $q'$.


# %%
def next_mean_square(q, gamma): ...  # your code; C1 and C2 are there


check("8.1", next_mean_square)
# hint("8.1")

# %% [markdown]
# **8.2** Where does $q$ settle? Solve $q' = q$ for $\gamma \le 1$, and return the smaller solution.
# (It is a quadratic equation for $\sqrt q$.)


# %%
def settled(gamma): ...  # your code


check("8.2", settled)

# %% [markdown]
# **8.3** Without a normaliser and with He's weights, $o = \mathrm{relu}(u)$ and the weights have the
# variance $2/n$. Then $q' = q$. Two inputs have the correlation $\rho$ in layer 1. Return their
# correlation after $L$ more layers. What becomes of it when $L$ grows?


# %%
def correlation_after(rho, depth): ...  # your code; kappa is there


check("8.3", correlation_after)

# %% [markdown]
# Solutions, with derivations: [solutions/08_depth.ipynb](solutions/08_depth.ipynb).
#
# ## Read next
#
# - [`tinyprop/verify/depth_claims.py`](../tinyprop/verify/depth_claims.py); `tinyprop verify C21
#   --explain`; [`tinyprop/theory`](../tinyprop/theory): the same recursion for every normaliser.
# - Poole et al., *Exponential expressivity in deep neural networks through transient chaos*,
#   NeurIPS 2016. Schoenholz et al., *Deep information propagation*, ICLR 2017: the recursion, its
#   fixed points, and what they mean for training. Cho and Saul, *Kernel methods for deep learning*,
#   NeurIPS 2009.
# - In the [laboratory](../docs/lab/index.html#norm=normprop-exact&depth=30) of the site (`make
#   site`), sliders change the networks of this lesson.
#
# Next: [8b. Depth: no free lunch](08b_no_free_lunch.ipynb).
