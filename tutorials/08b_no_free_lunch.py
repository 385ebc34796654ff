# %% [markdown]
# # 8b. Depth: no free lunch
#
# **Goal.** Follow a gradient down the networks of lesson 8, understand the theorem that says you
# cannot keep both signal and gradient in a chain of nonlinear layers, and see how residual
# connections get around it.
#
# Lesson 8 followed the signal. Now send a random gradient in at the top and measure its root mean
# square on the way down. Theory (lesson 7): each layer multiplies the mean square by $\gamma^2 \cdot
# 1.4669$ in the paper's mode. In the exact mode with $\beta = \gamma = 1$, it is $E[s'^2]/c_1^2$, the
# probability of being on divided by the variance. Dots are networks, lines are the theory.

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
from lesson import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    RED,
    check,
    claim,
    hint,
    panels,
    predict,
    reveal,
    show,
)

WIDTH, DEPTH, NETWORKS = 150, 25, 6
C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
CHI = math.pi / (math.pi - 1)  # 1.4669, the mean-square gain of lesson 7
GAMMA = 1 / math.sqrt(CHI)  # 1/1.2112
layers = np.arange(1, DEPTH + 1)
exact = tp.moments.gaussian("relu", 1.0, 1.0)  # mean and standard deviation of relu(1 + Z)
SETTINGS = {  # gamma, beta, c1, c2, colour
    "gamma = 1": (1.0, 0.0, C1, C2, BLUE),
    "gamma = 1/1.21, the paper's": (GAMMA, 0.0, C1, C2, RED),
    "exact, beta = gamma = 1": (1.0, 1.0, exact.std, exact.mean, GREEN),
}


def unit_rows(random, units, inputs):
    w = random.standard_normal((units, inputs))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


# %%
def gradient_sizes(random, gamma, beta, c1, c2):
    """Root mean square of a random gradient, after each layer that it has passed."""
    x, steps = random.standard_normal((40, WIDTH)), []
    for _ in range(DEPTH):
        w = unit_rows(random, WIDTH, WIDTH)
        u = gamma * x @ w.T + beta
        steps.append((w, u > 0))
        x = (np.maximum(u, 0) - c2) / c1
    g, found = random.standard_normal(x.shape), []
    for w, on in reversed(steps):
        g = (g * on * gamma / c1) @ w
        found.append(math.sqrt((g**2).mean()))
    return found


# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.3)
factors, ends = (math.sqrt(CHI), 1.0, exact.jacobian_factor), {}
for (name, (*how, colour)), factor in zip(SETTINGS.items(), factors, strict=True):
    random = np.random.default_rng(1)
    sizes = [gradient_sizes(random, *how) for _ in range(NETWORKS)]
    down = np.exp(np.log(sizes).mean(axis=0))  # the typical size after so many layers
    axes.semilogy(layers, down, "o", markersize=3.5, color=colour)
    axes.semilogy(layers, factor ** layers.astype(float), color=colour, linewidth=1)
    label = name.replace("gamma", r"$\gamma$").replace("beta", r"$\beta$")
    axes.text(DEPTH + 0.6, down[-1], label.replace(", ", ",\n"), color=colour, va="center")
    ends[name] = down[-1]
    print(f"{name:27} after {DEPTH} layers: {down[-1]:.3g}")
axes.set(
    title="Size of the gradient",
    xlabel="layers passed, from the top",
    xlim=(0, 34),
    ylim=(0.5, 200),
)
axes.set_xticks([1, 5, 10, 15, 20, 25])
show(
    figure,
    f"Root mean square of a random gradient against the layers passed, on a logarithmic scale. After "
    f"{DEPTH} layers: " + ", ".join(f"{name}: {end:.3g}" for name, end in ends.items()) + ".",
)

# %% [markdown]
# There is the dilemma. $\gamma = 1$ keeps the signal, if the network is wide, and blows up the
# gradient; $1/1.21$ keeps the gradient and loses the signal (lesson 8). Is there a better activation,
# or a clever $\gamma$ and $\beta$, that keeps both?
#
# ## No free lunch
#
# No. Let $o(Z)$ be any normalised output, $E[o] = 0$ and $E[o^2] = 1$. Expand it in Hermite
# polynomials, $o = \sum_d a_d h_d(Z)$: like a Fourier series, but for the bell curve. $h_d$ has
# degree $d$, and different $h_d$ are orthonormal, $E[h_c h_d] = [c = d]$. The derivative of $h_d$
# is $\sqrt d\, h_{d-1}$. As $a_0 = E[o] = 0$,
# $$ E[o^2] = \sum_{d \ge 1} a_d^2 = 1, \qquad E[o'^2] = \sum_{d \ge 1} d\,a_d^2 \;\ge\; 1. $$
# The gain of the gradient is the *mean degree* of the activation, written $\chi$. It is 1 only if
# all weight is on degree 1: a line. (This is the Gaussian Poincaré inequality. It needs a function
# without jumps.) To lower the gain, you can only make the activation less nonlinear, for instance by
# $\beta > 0$, which moves ReLU's kink away from the middle.

# %%
QUESTION = "mean-square gain of a ReLU layer with beta = 1"
predict(QUESTION)

# %% tags=["hide-input"]
t = np.linspace(-1, 3, 81)
figure, (axes,) = panels(1, 5.4, 3.2)
gains = {}
for name, colour, place in (
    ("relu", BLUE, (-0.55, 2.05)),
    ("gelu", GREEN, (-0.3, 1.72)),
    ("tanh", RED, (1.9, 1.85)),
    ("softplus", GRAY, (-0.95, 1.3)),
):
    gains[name] = tp.moments.gaussian(name, t, 1.0).jacobian_factor ** 2
    axes.plot(t, gains[name], color=colour)
    axes.text(*place, name, color=colour)
axes.axhline(1, color=BLACK, linewidth=1)
axes.text(-0.95, 0.92, "theorem: never below this line", fontsize=9)
axes.set(
    title=r"Mean-square gain $\chi$ of a normalised layer, $\gamma = 1$",
    xlabel=r"$\beta$",
    ylim=(0.88, 2.6),
)
show(
    figure,
    "The mean-square gain of a normalised layer against beta from -1 to 3, for four activations, and a "
    "line at 1 that no curve crosses. At beta = 0: "
    + ", ".join(f"{name} {gain[20]:.2f}" for name, gain in gains.items())
    + ".",
)

# %%
reveal(QUESTION, gains["relu"][40])
claim("no curve is below 1", all(gain.min() >= 1 for gain in gains.values()))
for beta in (0.0, 1.0, 2.0):
    print(
        f"ReLU, beta {beta:.0f}: gain "
        f"{tp.moments.gaussian('relu', beta, 1.0).jacobian_factor ** 2:.4f} per layer"
    )

# %% [markdown]
# `mode="exact"` therefore starts rectifiers at $\beta = \gamma = 1$: the signal is kept, and the
# gain is 1.12 per layer instead of 1.47, at the price of a layer that is closer to a line.
#
# ## A way out: residual connections
#
# The theorem is about a chain of layers. A *residual* network adds each layer to what it got:
# $$ h_{l+1} = h_l + \alpha f_l(h_l / \sqrt{v_l}), \qquad v_l = 1 + l \alpha^2, $$
# where $f_l$ is a NormProp layer. If $f_l$ has variance 1 and random weights, it is uncorrelated
# with $h_l$, so variances add up: $v_l$ is the variance of $h_l$, and dividing by its root gives
# $f_l$ the normalised input that it needs. The gradient takes both ways, too: the mean-square gain
# of block $l$ is $1 + \chi \alpha^2 / v_l$. For $\alpha = 1$ the product over $L$ blocks is
# $$ \prod_{l=0}^{L-1} \Big( 1 + \frac{\chi}{1 + l} \Big) \approx \text{const} \cdot L^\chi, $$
# a power of the depth instead of an exponential. The theorem still holds, $\chi \ge 1$, but now it
# is an exponent.


# %%
def residual_gain(depth, alpha, chi=CHI):
    gain, v = 1.0, 1.0
    for _ in range(depth):
        gain, v = gain * (1 + chi * alpha**2 / v), v + alpha**2
    return gain


def residual_network(random, depth, alpha, width=300):
    """Measured: variance of h, and mean-square gain of a random gradient."""
    h, v, steps = random.standard_normal((40, width)), 1.0, []
    for _ in range(depth):
        w = unit_rows(random, width, width)
        u = h @ w.T / math.sqrt(v)
        steps.append((w, u > 0, v))
        h, v = h + alpha * (np.maximum(u, 0) - C2) / C1, v + alpha**2
    g = random.standard_normal(h.shape)
    for w, on, v in reversed(steps):
        g = g + alpha * ((g * on / C1) @ w) / math.sqrt(v)
    return (h**2).mean(), (g**2).mean()


depths = np.array([1, 2, 4, 8, 16])
found = {  # (depths, networks)
    alpha: np.array(
        [
            [residual_network(np.random.default_rng(s), d, alpha)[1] for s in range(3)]
            for d in depths
        ]
    )
    for alpha in (1.0, 0.5)
}

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.3)
for (alpha, gains), colour in zip(found.items(), (BLUE, GREEN), strict=True):
    bars = gains.std(axis=1, ddof=1) / math.sqrt(3)
    axes.errorbar(depths, gains.mean(axis=1), bars, fmt="o", color=colour)
    theory = [residual_gain(d, alpha) for d in depths]
    axes.plot(depths, theory, color=colour, linewidth=1)
    axes.text(17, theory[-1], rf"residual, $\alpha = {alpha:g}$", color=colour, va="center")
axes.plot(depths, CHI**depths, color=ORANGE)
axes.text(11, 150, r"chain, $\chi^L$", color=ORANGE, ha="right")
axes.set(
    title="Mean-square gain of the gradient",
    xlabel="layers or blocks",
    xscale="log",
    yscale="log",
    xlim=(0.9, 40),
    ylim=(1, 1e3),
)
axes.set_xticks(depths, [str(d) for d in depths])
axes.set_xticks([], minor=True)
show(
    figure,
    "Mean-square gain of the gradient against the number of layers or blocks, both scales logarithmic. "
    f"After 16: a chain {CHI**16:.0f}, residual networks {found[1.0][-1].mean():.1f} with alpha = 1 and "
    f"{found[0.5][-1].mean():.1f} with alpha = 0.5.",
)

# %%
for depth in (9, 50):
    print(
        f"{depth} layers: chain {CHI**depth:.3g}; residual {residual_gain(depth, 1.0):.3g}, "
        f"signal {1 + depth}"
    )

# %% [markdown]
# (Dots: networks of 300 units. Lines: infinitely wide ones.) The signal grows, too, in a known way,
# and can be divided out; relative to it the gain is only about $L^{\chi - 1}$. All this is about
# random weights, before training. Whether it survives training is an empirical question (lesson 10).
#
# ## Exercises
#
# **8b.1** The mean degree. Given the Hermite coefficients $a_0, a_1, a_2, \dots$ of an activation
# (an array), return the mean-square gain $\chi$ of the normalised layer. ($a_0$ is the mean, which
# is subtracted.)


# %%
def mean_degree(coefficients): ...  # your code


check("8b.1", mean_degree)
# hint("8b.1")

# %% [markdown]
# **8b.2** Which $\beta$ (with $\gamma = 1$, ReLU, exact mode) keeps the mean-square gain of $L$
# layers at $e$? Find it by halving an interval; `tp.moments.gaussian("relu", beta,
# 1.0).jacobian_factor ** 2` is the gain of one layer, and it falls as $\beta$ grows.


# %%
def beta_for(depth): ...  # your code


check("8b.2", beta_for)

# %% [markdown]
# **8b.3** If the blocks of a residual network are small, the product of $1 + \chi \alpha^2/v_l$ is
# nearly $(1 + L \alpha^2)^\chi$. (Compare $\ln(1 + \chi\alpha^2/v)$ with $\chi$ times the growth of
# $\ln v$.) Which $\alpha$ keeps the mean-square gain of $L$ such ReLU blocks at $e$?


# %%
def alpha_for(depth): ...  # your code; CHI is there


check("8b.3", alpha_for)

# %% [markdown]
# Solutions, with derivations: [solutions/08b_no_free_lunch.ipynb](solutions/08b_no_free_lunch.ipynb).
#
# ## Read next
#
# - [`tinyprop/verify/moment_claims.py`](../tinyprop/verify/moment_claims.py); `tinyprop verify G3
#   --explain`; [`tinyprop/nn/residual.py`](../tinyprop/nn/residual.py).
# - De and Smith, *Batch normalization biases residual blocks towards the identity function in deep
#   networks*, NeurIPS 2020.
# - In the [laboratory](../docs/lab/index.html#norm=normprop-exact&depth=30) of the site (`make
#   site`), sliders change the networks of this lesson.
#
# Next: [9. The other normalisers](09_other_normalizers.ipynb).
