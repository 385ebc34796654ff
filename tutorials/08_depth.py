# %% [markdown]
# # 8. Depth
#
# **Goal.** Stack many NormProp layers and see what $\gamma$ does to signals forwards and to
# gradients backwards. Write down the recursion that explains it, mend the forward part exactly,
# understand the theorem that says you cannot have both, and see how residual connections get around
# it.
#
# The paper argues by induction: if a layer's input is normalised, so is its output, so is the next
# one's, and so on. It then recommends starting with $\gamma = 1/1.21$ for the sake of the gradients
# (lesson 7). Here are networks of 25 ReLU layers of 150 units with random weights. Left: the
# variance of a unit over 100 inputs. Right: the square of its mean.

# %%
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, GREEN, ORANGE, RED, check, hint, panels, predict, reveal, show

WIDTH, DEPTH, INPUTS, NETWORKS = 150, 25, 100, 6
C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
CHI = math.pi / (math.pi - 1)  # 1.4669, the mean-square gain of lesson 7
GAMMA = 1 / math.sqrt(CHI)  # 1/1.2112
layers = np.arange(1, DEPTH + 1)


def unit_rows(random, units=WIDTH, inputs=WIDTH):
    w = random.standard_normal((units, inputs))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def statistics(random, gamma, beta=0.0, c1=C1, c2=C2):
    """For each layer of a random network: variance of a unit over inputs, and squared mean;
    averaged over units."""
    x, found = random.standard_normal((INPUTS, WIDTH)), []
    for _ in range(DEPTH):
        u = gamma * x @ unit_rows(random).T  # (inputs, units)
        variance = u.var(axis=0, ddof=1).mean()
        # without the error of the mean
        found.append((variance, (u.mean(axis=0) ** 2).mean() - variance / INPUTS))
        x = (np.maximum(u + beta, 0) - c2) / c1
    return np.array(found).T  # (2, layers)


# mean and standard deviation of relu(1 + Z), see below
exact = tp.moments.gaussian("relu", 1.0, 1.0)
SETTINGS = {
    r"$\gamma = 1$": ((1.0,), BLUE),
    r"$\gamma = 1/1.21$, the paper's": ((GAMMA,), RED),
    r"exact, $\beta = \gamma = 1$": ((1.0, 1.0, exact.std, exact.mean), GREEN),
}
measured = {}
for name, (how, _) in SETTINGS.items():
    random = np.random.default_rng(0)
    # (networks, 2, layers)
    measured[name] = np.array([statistics(random, *how) for _ in range(NETWORKS)])


def draw(axes, row, lines=()):
    for name, (_, colour) in SETTINGS.items():
        mean = measured[name][:, row].mean(axis=0)
        bar = measured[name][:, row].std(axis=0, ddof=1) / math.sqrt(NETWORKS)
        axes.errorbar(
            layers, mean, bar, fmt="o", markersize=3, color=colour, label=name, elinewidth=1
        )
    for colour, line in lines:
        axes.plot(layers, line[row], color=colour, linewidth=1)


figure, (left, right) = panels(2, 9.0, 3.4)
draw(left, 0)
draw(right, 1)
left.set(title="Variance of a unit over inputs", xlabel="layer", yscale="log", ylim=(0.005, 30))
right.set(title="Squared mean of a unit", xlabel="layer", ylim=(-0.05, 0.6))
left.legend(fontsize=8.5, loc="upper left")
show(figure)

# %% [markdown]
# Only the green network does what the induction promises; the other two follow the paper's equation
# to the letter. What happens in them?
#
# ## The recursion
#
# We follow two numbers from layer to layer: $q = E[u^2]$, the mean square of a pre-activation $u$,
# over inputs and random weights, and $k$, the mean square of a unit's own mean over inputs. The
# variance of a unit over inputs is $q - k$. Let the layer be wide, so that $u$ is Gaussian (lesson
# 6), with mean 0 and variance $q$ over the random weights.
#
# **The mean square.** The next pre-activation is $u' = \gamma \sum_i w_i o_i/|w|$, and as the row
# $w$ is random, $E[u'^2] = \gamma^2 E[o^2]$, as in lesson 3. With $o = (\mathrm{relu}(u) -
# c_2)/c_1$,
# $$ E[o^2] = \frac{E[\mathrm{relu}(u)^2] - 2 c_2 E[\mathrm{relu}(u)] + c_2^2}{c_1^2}, \qquad
# q' = \frac{\gamma^2}{c_1^2} \Big( \frac q2 - 2 c_2^2 \sqrt q + c_2^2 \Big), $$ because
# $E[\mathrm{relu}(u)^2] = q/2$ and $E[\mathrm{relu}(u)] = c_2 \sqrt q$ for a Gaussian of variance
# $q$.
#
# **The means.** Take two different inputs. Their pre-activations in the same unit share the unit's
# mean, so they are Gaussian with the covariance $k$, that is with the correlation $\rho = k/q$. For
# such a pair, Cho and Saul (2009) have $E[\mathrm{relu}\,\mathrm{relu}] = q\, \kappa(\rho)$ with
# $$ \kappa(\rho) = \frac{\sqrt{1 - \rho^2} + \rho\,(\pi - \arccos\rho)}{2\pi}, \qquad\text{so}\qquad
# k' = \frac{\gamma^2}{c_1^2} \Big( q\, \kappa(k/q) - 2 c_2^2 \sqrt q + c_2^2 \Big). $$ The start is
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

figure, (left, right) = panels(2, 9.0, 3.4)
lines = [(BLUE, recursion(1.0)), (RED, recursion(GAMMA))]
draw(left, 0, lines)
draw(right, 1, lines)
left.set(
    title="Variance over inputs; lines: recursion", xlabel="layer", yscale="log", ylim=(0.005, 30)
)
right.set(title="Squared mean of a unit", xlabel="layer", ylim=(-0.05, 0.6))
show(figure)
for name, (how, _) in SETTINGS.items():
    v = measured[name][:, 0, 8]
    wide = "1" if len(how) > 1 else f"{recursion(how[0])[0, 8]:.4f}"
    label = name.replace("$", "").replace("\\", "")
    print(
        f"{label:27} layer 9: variance {v.mean():.3f} +- {v.std(ddof=1) / NETWORKS**0.5:.3f}, "
        f"wide networks {wide}"
    )
print(f"gamma = 1/1.2112: after 2,000 layers q is {recursion(GAMMA, 2000).sum(axis=0)[-1]:.4f}")

# %% [markdown]
# **With $\gamma = 1/1.21$** the variance has fallen to about 0.06 in layer 9. The induction needs
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
# The mend: take $c_1$ and $c_2$ of what really enters the activation $s$, a Gaussian of mean
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
# ## Backwards
#
# Now the gradients. Send a random one in at the top and measure its root mean square on the way
# down. Theory (lesson 7): each layer multiplies the mean square by $\gamma^2 \cdot 1.4669$ in the
# paper's mode. In the exact mode with $\beta = \gamma = 1$, it is $E[s'^2]/c_1^2$, the probability
# to be on divided by the variance.

# %%
figure, (axes,) = panels(1, 6.5, 3.3)
for name, (how, colour) in SETTINGS.items():
    gamma, beta, c1, c2 = (*how, 0.0, C1, C2) if len(how) == 1 else how
    random, sizes = np.random.default_rng(1), []
    for _ in range(NETWORKS):
        x, steps = random.standard_normal((40, WIDTH)), []
        for _ in range(DEPTH):
            w = unit_rows(random)
            u = gamma * x @ w.T + beta
            steps.append((w, u > 0))
            x = (np.maximum(u, 0) - c2) / c1
        g, found = random.standard_normal(x.shape), []
        for w, on in reversed(steps):
            g = (g * on * gamma / c1) @ w
            found.append(math.sqrt((g**2).mean()))
        sizes.append(found)
    down = np.exp(np.log(sizes).mean(axis=0))  # the typical size after so many layers
    axes.semilogy(layers, down, "o", markersize=3.5, color=colour, label=name)
    print(f"{name.replace('$', '').replace(chr(92), ''):27} after {DEPTH} layers: {down[-1]:.3g}")
for factor, colour in ((math.sqrt(CHI), BLUE), (1.0, RED), (exact.jacobian_factor, GREEN)):
    axes.plot(layers, factor ** layers.astype(float), color=colour, linewidth=1)
axes.set(title="Size of the gradient", xlabel="layers passed, from the top")
axes.legend()
show(figure)

# %% [markdown]
# There is the dilemma. $\gamma = 1$ keeps the signal (nearly) and blows up the gradient; $1/1.21$
# keeps the gradient and loses the signal. Is there a better activation, or a clever $\gamma$ and
# $\beta$, that keeps both?
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
# without jumps.) All one can do is to make the activation less nonlinear, for instance by $\beta >
# 0$, which moves ReLU's kink away from the middle.

# %%
t = np.linspace(-1, 3, 81)
figure, (axes,) = panels(1, 6.5, 3.2)
for name, colour in (("relu", BLUE), ("gelu", GREEN), ("tanh", RED), ("softplus", GRAY)):
    axes.plot(t, tp.moments.gaussian(name, t, 1.0).jacobian_factor ** 2, color=colour, label=name)
axes.axhline(1, color=BLACK, linewidth=1)
axes.text(-0.95, 0.92, "theorem: never below this line", fontsize=9)
axes.set(
    title=r"Mean-square gain $\chi$ of a normalised layer, $\gamma = 1$",
    xlabel=r"$\beta$",
    ylim=(0.88, 2.6),
)
axes.legend()
show(figure)
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


figure, (axes,) = panels(1, 6.5, 3.3)
depths = np.array([1, 2, 4, 8, 16])
for alpha, colour in ((1.0, BLUE), (0.5, GREEN)):
    found = np.array(
        [
            [residual_network(np.random.default_rng(s), d, alpha)[1] for s in range(3)]
            for d in depths
        ]
    )
    bars = found.std(axis=1, ddof=1) / math.sqrt(3)
    axes.errorbar(
        depths,
        found.mean(axis=1),
        bars,
        fmt="o",
        color=colour,
        label=rf"residual, $\alpha = {alpha:g}$",
    )
    axes.plot(depths, [residual_gain(d, alpha) for d in depths], color=colour, linewidth=1)
axes.plot(depths, CHI**depths, color=ORANGE, label=r"chain, $\chi^L$")
axes.set(
    title="Mean-square gain of the gradient",
    xlabel="layers or blocks",
    xscale="log",
    yscale="log",
    ylim=(1, 1e3),
)
axes.set_xticks(depths, [str(d) for d in depths])
axes.set_xticks([], minor=True)
axes.legend()
show(figure)
for depth in (9, 50):
    print(
        f"{depth} layers: chain {CHI**depth:.3g}; residual {residual_gain(depth, 1.0):.3g}, "
        f"signal {1 + depth}"
    )

# %% [markdown]
# (Dots: networks of 300 units. Lines: infinitely wide ones.) The signal grows, too, in a known way,
# and can be divided out; relative to it the gain is only about $L^{\chi - 1}$. All this is about
# random weights, before training. What training makes of it, only training can tell (lesson 10).
#
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
# **8.3** The mean degree. Given the Hermite coefficients $a_0, a_1, a_2, \dots$ of an activation
# (an array), return the mean-square gain $\chi$ of the normalised layer. ($a_0$ is the mean, which
# is subtracted.)


# %%
def mean_degree(coefficients): ...  # your code


check("8.3", mean_degree)

# %% [markdown]
# **8.4** Which $\beta$ (with $\gamma = 1$, ReLU, exact mode) keeps the mean-square gain of $L$
# layers at $e$? Find it by halving an interval; `tp.moments.gaussian("relu", beta,
# 1.0).jacobian_factor ** 2` is the gain of one layer, and it falls as $\beta$ grows.


# %%
def beta_for(depth): ...  # your code


check("8.4", beta_for)

# %% [markdown]
# Solutions, with derivations: [solutions/08_depth.ipynb](solutions/08_depth.ipynb).
#
# ## Read next
#
# - [`tinyprop/verify/depth_claims.py`](../tinyprop/verify/depth_claims.py), `moment_claims.py`;
#   `tinyprop verify C21 G3 --explain`; [`tinyprop/nn/residual.py`](../tinyprop/nn/residual.py).
# - Poole et al., *Exponential expressivity in deep neural networks through transient chaos*,
#   NeurIPS 2016. Schoenholz et al., *Deep information propagation*, ICLR 2017: the recursion, its
#   fixed points, and what they mean for training. De and Smith, *Batch normalization biases
#   residual blocks towards the identity function in deep networks*, NeurIPS 2020.
# - In the [laboratory](../docs/lab/index.html#norm=normprop-exact&depth=30) of the site (`make
#   site`), sliders change the networks of this lesson.
#
# Next: [9. The other normalisers](09_other_normalizers.ipynb).
