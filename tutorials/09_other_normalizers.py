# %% [markdown]
# # 9. The other normalisers
#
# **Goal.** Put LayerNorm, RMSNorm, GroupNorm, WeightNorm, the weight standardisation of NF-nets and
# DyT on the same stage as BatchNorm and NormProp: what each takes its mean over, what leaves it
# unchanged, and what it does to a signal and to a gradient in 20 layers.
#
# A hidden layer of a convolutional network is an array (samples, channels, height, width). Most
# normalisers subtract a mean and divide by a standard deviation; they differ in *what they take the
# mean over*. Below, every square is the whole map of one channel of one sample. To normalise the
# square with the blue frame, each method uses the coloured ones.

# %% tags=["hide-input"]
import math

import numpy as np
from matplotlib.patches import Rectangle

import tinyprop as tp
from lesson import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PINK,
    RED,
    SKY,
    check,
    claim,
    hint,
    panels,
    predict,
    reveal,
    show,
)
from tinyprop.theory.stacks import Stack

# %% tags=["hide-input"]
SAMPLES, CHANNELS = 5, 8

figure, every = panels(5, 9.6, 2.3)
used = {
    name: np.zeros((SAMPLES, CHANNELS))
    for name in ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm")
}
used["BatchNorm"][:, 2] = used["LayerNorm"][1] = used["GroupNorm"][1, :4] = used["InstanceNorm"][
    1, 2
] = 1
used["no statistics"] = np.zeros((SAMPLES, CHANNELS))
for axes, (name, squares) in zip(every, used.items(), strict=True):
    for i in range(SAMPLES):
        for j in range(CHANNELS):
            colour = SKY if squares[i, j] else "white"
            if (i, j) == (1, 2) and squares[i, j]:
                colour = BLUE
            axes.add_patch(
                Rectangle(
                    (j, -i),
                    0.9,
                    0.9,
                    facecolor=colour,
                    edgecolor=BLUE if (i, j) == (1, 2) else GRAY,
                )
            )
    axes.set(
        xlim=(-0.2, CHANNELS), ylim=(-SAMPLES + 0.8, 1.1), aspect="equal", xticks=[], yticks=[]
    )
    axes.set_title(name, loc="center", fontsize=10)
    axes.set_xlabel("channels", fontsize=9)
    axes.spines[:].set_visible(False)
every[0].set_ylabel("samples", fontsize=9)
show(
    figure,
    f"Five grids of {SAMPLES} samples by {CHANNELS} channels. To normalise one framed square, BatchNorm "
    "uses its column, LayerNorm its row, GroupNorm the half of its row that it lies in, InstanceNorm "
    "itself alone, and methods without statistics no square at all.",
)

# %% [markdown]
# | name | what it does to a layer $u = Wx$ |
# |---|---|
# | BatchNorm | each *channel*: minus mean, divided by standard deviation, both taken over samples and places |
# | LayerNorm (Ba et al., 2016) | each *sample*: the same, taken over channels and places |
# | RMSNorm (Zhang and Sennrich, 2019) | each sample: divided by its root mean square; the mean stays |
# | GroupNorm (Wu and He, 2018) | each sample and group of channels: minus mean, divided by standard deviation |
# | InstanceNorm (Ulyanov et al., 2016) | the same, with one channel in each group |
# | WeightNorm (Salimans and Kingma, 2016) | each row of weights: $g\, w/\lvert w\rvert$, with a learnt length $g$ |
# | scaled weight standardisation (NF-nets; Brock et al., 2021) | each row: minus its mean, then length $1/c_1$ |
# | DyT (Zhu et al., 2025) | each number by itself: $\tanh(\alpha u)$, with a learnt $\alpha$ |
# | NormProp | each row: $\gamma\, w/\lvert w\rvert$; then $(s - c_2)/c_1$ |
#
# (The last four use no statistics of the data: that is the empty panel of the figure.) For one
# fully connected layer, each is a line or two:


# %%
def standardized(u, axis):
    return (u - u.mean(axis=axis, keepdims=True)) / u.std(axis=axis, keepdims=True)


def unit_rows(w):
    return w / np.linalg.norm(w, axis=1, keepdims=True)


C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
# from inputs x (samples, inputs) and weights w (units, inputs) to what enters the activation
LAYERS = {
    "BatchNorm": lambda x, w: standardized(x @ w.T, 0),
    "LayerNorm": lambda x, w: standardized(x @ w.T, 1),
    "RMSNorm": lambda x, w: x @ w.T / np.sqrt(((x @ w.T) ** 2).mean(axis=1, keepdims=True)),
    "GroupNorm": lambda x, w: standardized((x @ w.T).reshape(len(x), -1, 4), 2).reshape(len(x), -1),
    "WeightNorm": lambda x, w: x @ unit_rows(w).T,
    "WS": lambda x, w: x @ unit_rows(w - w.mean(axis=1, keepdims=True)).T / C1,
    "DyT": lambda x, w: np.tanh(0.5 * (x @ w.T)),
    "NormProp": lambda x, w: (np.maximum(x @ unit_rows(w).T, 0) - C2) / C1,
    "nothing": lambda x, w: x @ w.T,
}
random = np.random.default_rng(0)
x, w = random.standard_normal((6, 30)) + 0.5, random.standard_normal((8, 30))
u = tp.tensor(x @ w.T)
for name, theirs in (
    ("LayerNorm", tp.nn.LayerNorm(8)),
    ("GroupNorm", tp.nn.GroupNorm(2, 8)),
    ("DyT", tp.nn.DyT(8)),
):
    print(
        f"{name} equals tinyprop's: {np.allclose(LAYERS[name](x, w), theirs(u).numpy(), atol=1e-4)}"
    )

# %% [markdown]
# ## What leaves them unchanged
#
# To understand a normaliser, ask what it ignores. Change something, and see whether the first
# sample's output changes. Make your own table before you run the cell. In how many of the 40 cases of the
# eight normalisers does *nothing* change?

# %%
QUESTION = "cases in which nothing changes, of 40"
predict(QUESTION)

# %%
one_row, one_sample, others = w.copy(), x.copy(), x.copy()
one_row[3] *= 3
one_sample[0] *= 3
others[1:] = random.standard_normal((5, 30))
CHANGES = {
    "all weights x 3": (x, 3 * w),
    "one row x 3": (x, one_row),
    "the sample x 3": (one_sample, w),
    "inputs + 1": (x + 1, w),
    "other samples": (others, w),
}
print(f"{'':11}" + "".join(f"{name:>17}" for name in CHANGES))
unchanged = 0
for name, layer in LAYERS.items():
    before = layer(x, w)[0]
    same = [np.allclose(layer(*changed)[0], before) for changed in CHANGES.values()]
    unchanged += 0 if name == "nothing" else sum(same)
    print(f"{name:11}" + "".join(f"{'same' if s else '-':>17}" for s in same))
reveal(QUESTION, unchanged)

# %% [markdown]
# Read the columns. *All weights*: every method that divides by something proportional to the weights
# is unaffected. *One row*: BatchNorm and the methods that normalise rows. *The sample*: LayerNorm, RMSNorm
# and GroupNorm do not see how large a sample is; for an image, they remove its contrast. *Inputs +
# 1*: a constant that all inputs share is removed by BatchNorm (it is a constant of the batch) and
# by WS (the row sums to 0). *Other samples*: they change
# the output of BatchNorm only.
#
# **"LayerNorm averages over the whole sample."** In a transformer a sample is a sequence of *tokens*,
# each an array of features, and LayerNorm takes its statistics over the features of *one token*. So a
# token's output does not depend on the other tokens. In a convolutional network, "LayerNorm" mostly
# means all channels *and* places, as in the figure above. Over the features alone (there, over the
# channels of one place) it is another function. Say which one you mean.

# %%
tokens = random.standard_normal((2, 5, 8))  # (samples, tokens, features)
other = tokens.copy()
other[:, 1:] *= 10  # all tokens but the first


def over_token(t):
    return tp.nn.LayerNorm(8)(tp.tensor(t)).numpy()


def over_sample(t):
    return tp.nn.LayerNorm((5, 8))(tp.tensor(t)).numpy()


same = [np.allclose(f(tokens)[:, 0], f(other)[:, 0]) for f in (over_token, over_sample)]
claim("statistics over a token: the first token's output ignores the other tokens", same[0])
ratio = over_sample(other)[:, 0].std() / over_sample(tokens)[:, 0].std()
claim(
    f"statistics over a sample: other tokens ten times as large make it {1 / ratio:.0f} times smaller",
    not same[1] and ratio < 0.5,
)

# %% [markdown]
# ## What becomes of two inputs
#
# Before the experiment, a prediction in a few lines. Follow two unrelated inputs through a wide ReLU
# network. Lesson 8 derived $\kappa(\rho)$, the mean product of two ReLU outputs whose
# pre-activations have the correlation $\rho$; that of an output with itself is $\kappa(1) = 1/2$. A
# normaliser before the activation, or none, sets only the size. Then the next correlation is
# $\kappa(\rho)/\kappa(1) = 2\kappa(\rho)$. A normaliser that also removes the mean $c_2$ of the
# outputs subtracts $c_2^2$ from both: $(\kappa(\rho) - c_2^2)/c_1^2$.


# %%
def kappa(rho):
    return (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)


def correlation(layers, mean_removed, rho=0.0):
    for _ in range(layers):
        rho = (kappa(rho) - C2**2) / C1**2 if mean_removed else 2 * kappa(rho)
        rho = min(rho, 1.0)
    return rho


for start in (0.0, 0.5):
    print(
        f"correlation {start:g} of two inputs, after 20 layers: {correlation(20, False, start):.3f} if the "
        f"mean stays, {correlation(20, True, start):.3f} if it is removed"
    )

# %% [markdown]
# So where the mean stays, all inputs become alike: the part of a signal that tells them apart has a
# standard deviation of $\sqrt{1 - \rho}$. Where it is removed, unrelated inputs stay unrelated.
#
# ## Twenty layers
#
# Now the instruments of lessons 3, 8 and 8b: the variance of a unit over inputs on the way up, and the
# gradient on the way down, for ReLU networks of 128 units with random weights. Dots are measured
# (batches of 64, mean over 4 networks), lines are the theory for wide networks: recursions like the one
# above, which `tinyprop.theory.stacks` has for every normaliser. (For the signal of GroupNorm, whose groups of
# 8 units are small, there is no theory here.) A normaliser is a name in `tp.nn.normalizers`, or a function of the number of units; its
# weights start as `tp.nn.build` starts them, or by the rule that stands beside it.


# %%
def groups_of_8(units):
    return tp.nn.GroupNorm(units // 8, units)


NETWORKS = {  # normaliser, initial weights, color, line
    "no normaliser, He": ("none", "he", GRAY, "-"),
    "WeightNorm, rows of 1": ("weight", "glorot", PINK, "-"),
    "DyT, Glorot": ("dyt", "glorot", ORANGE, "-"),
    "BatchNorm": ("batch", None, RED, "-"),
    "LayerNorm before ReLU": ("layer", None, GREEN, "-"),
    "LayerNorm after ReLU": ("layer-after", "glorot", SKY, "-"),
    "RMSNorm before ReLU": ("rms", None, GREEN, "--"),
    "GroupNorm before ReLU": (groups_of_8, None, ORANGE, "--"),
    "NF-net (WS)": ("ws", None, BLACK, "-"),
    r"NormProp, exact, $\beta = 1$": ("normprop-exact", None, BLUE, "-"),
}
DEPTH, WIDTH, BATCH = 20, 128, 64
curves = {}
print(f"{'':27} {'signal, layer 20':>17} {'gradient, layer 1':>18}   theory")
for label, (norm, init, _, _) in NETWORKS.items():
    stack = Stack(norm, "relu", DEPTH, WIDTH, BATCH, residual=False, init=init)
    signals, gradients = [], []
    for seed in range(4):
        tp.manual_seed(seed)
        random = np.random.default_rng(seed)
        h = tp.tensor(random.standard_normal((BATCH, WIDTH), np.float32), requires_grad=True)
        outputs = []
        for layer in stack.network():
            h = layer(h)
            outputs.append(h)
        signals.append([t.data.var(axis=0, ddof=1).mean() for t in outputs])
        found = tp.grad(h, outputs, random.standard_normal(h.shape, np.float32))
        gradients.append([(g.data**2).mean() for g in found])
    signal, gradient = np.sqrt(np.mean(signals, axis=0)), np.sqrt(np.mean(gradients, axis=0))
    theory = []
    lines = {name: stack.predicted(name) for name in ("signal", "gradient")}
    curves[label] = signal, gradient, lines
    theory = [
        "none" if line is None else f"{line[place]:.3g}"
        for line, place in zip(lines.values(), (-1, 0), strict=True)
    ]
    plain = label.replace("$", "").replace("\\", "")
    print(f"{plain:27} {signal[-1]:17.3g} {gradient[0]:18.3g}   {', '.join(theory)}")
_, gradient, _ = curves["WeightNorm, rows of 1"]
per_layer = gradient[0] ** (2 / (DEPTH - 1))
claim(
    f"WeightNorm multiplies the gradient's mean square by {per_layer:.2f} a layer; LeCun's rule, by 1/2",
    abs(per_layer - 0.5) < 0.03,
)
claim(
    f"the correlation of two inputs predicts the faded signal: {math.sqrt(1 - correlation(19, False)):.3f}",
    abs(math.sqrt(1 - correlation(19, False)) / curves["no normaliser, He"][2]["signal"][-1] - 1)
    < 0.05,
)
kept = {label: signal[-1] > 0.9 for label, (signal, _, _) in curves.items()}
grown = {label: gradient[0] > 2 for label, (_, gradient, _) in curves.items()}
claim(
    "each that keeps the signal lets the gradient grow",
    all(grown[label] for label in curves if kept[label]),
)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 9.6, 4.4)
for (signal, gradient, lines), (_, _, colour, style) in zip(
    curves.values(), NETWORKS.values(), strict=True
):
    places = np.arange(1, DEPTH + 1)
    for axes, values, line in zip((left, right), (signal, gradient), lines.values(), strict=True):
        axes.semilogy(places[::2], values[::2], "o", color=colour, markersize=3.5)
        if line is not None:
            axes.semilogy(places, line, style, color=colour, linewidth=1.2)
# a label beside the last dot of its curve, or as near to it as its neighbours allow
order = sorted(curves, key=lambda label: curves[label][0][-1])
height = -np.inf
for label in order:
    _, _, colour, style = NETWORKS[label]
    end = math.log10(curves[label][0][-1])
    height = max(end - 2.4 if end > -1 else end, height + 0.55)
    left.plot([DEPTH + 0.3, DEPTH + 2.2], [10**end, 10**height], color=colour, linewidth=0.6)
    left.text(DEPTH + 2.5, 10**height, label, color=colour, fontsize=8.5, va="center")
left.set(title="Signal: standard deviation over inputs", xlabel="layer", ylim=(1e-10, 1e3))
left.set_xlim(0, 38)
right.set(title="Gradient, relative to the last layer", xlabel="layer")
for axes in (left, right):
    axes.set_xticks([1, 5, 10, 15, 20])
show(
    figure,
    "Two panels over 20 layers, on logarithmic scales: the signal, as a standard deviation over inputs, and "
    "the gradient relative to the last layer. In layer 20 and layer 1: "
    + " ".join(
        f"{label.replace('$', '').replace(chr(92), '')}: signal {signal[-1]:.2g}, gradient {gradient[0]:.2g}."
        for label, (signal, gradient, _) in curves.items()
    ),
)

# %% [markdown]
# Two classes appear.
#
# - Those that *remove the mean that ReLU makes*: BatchNorm, LayerNorm after ReLU, WS, NormProp.
#   They keep the signal, and their gradients grow by lesson 8b's $\sqrt\chi$ per layer, 1.21 for
#   ReLU at $\beta = 0$ (a little more for BatchNorm in finite batches; less for NormProp in its
#   exact mode, as its $\beta = 1$). Yang et al. (2019) found 1.21 for BatchNorm: it is the same
#   number as NormProp's.
# - Those that *leave it*: He's start, RMSNorm, LayerNorm and GroupNorm *before* ReLU. Their
#   gradients keep their size (those of GroupNorm grow slowly, the faster the smaller its groups), but
#   the signal, as seen by a unit over inputs, fades: with every layer all inputs look more alike.
#
# Both sentences in brackets about sizes can be checked by changing the size:


# %%
def first_gradient(norm):
    """Root mean square of the gradient in layer 1, relative to the last layer."""
    squares = []
    for seed in range(4):
        tp.manual_seed(seed)
        random = np.random.default_rng(seed)
        x = tp.tensor(random.standard_normal((BATCH, WIDTH), np.float32), requires_grad=True)
        layers = Stack(norm, "relu", DEPTH, WIDTH, BATCH, residual=False).network()
        first = h = layers[0](x)
        for layer in layers[1:]:
            h = layer(h)
        (g,) = tp.grad(h, [first], random.standard_normal(h.shape, np.float32))
        squares.append((g.data**2).mean())
    return math.sqrt(np.mean(squares))


def in_groups_of(size):
    return first_gradient(lambda units: tp.nn.GroupNorm(units // size, units))


by_batch = {
    size: Stack("batch", "relu", DEPTH, WIDTH, size, residual=False).predicted("gradient")[0]
    for size in (16, 64, 1024)
}
gains = [gradient ** (1 / (DEPTH - 1)) for gradient in by_batch.values()]
claim(
    "BatchNorm's gradient grows in a layer, with batches of 16, 64 and 1,024, by "
    + ", ".join(f"{gain:.3f}" for gain in gains)
    + f"; with endless ones, by {math.sqrt(math.pi / (math.pi - 1)):.3f}",
    gains == sorted(gains, reverse=True),
)
by_group = [in_groups_of(size) for size in (4, 8, 32, 128)]
claim(
    "GroupNorm's gradient grows in 19 layers, with groups of 4, 8, 32 and 128 units, by "
    + ", ".join(f"{gradient:.1f}" for gradient in by_group),
    by_group == sorted(by_group, reverse=True),
)

# %% [markdown]
# So it matters *where* LayerNorm stands. WeightNorm, with its lengths $g = 1$, gives every row of
# weights the length 1, that is weights of variance $1/n$: LeCun's rule (1998), which is right for a
# layer without ReLU. Half of the mean square is lost in each layer (lesson 3). In practice it is
# started with data (`tp.nn.init.data_dependent_`). DyT does not normalise: $\tanh(\alpha u)$ makes
# large signals smaller, but does not make small ones larger. With larger weights, as `tp.nn.build`
# draws them, it keeps the mean square, but not the signal: like He's start, it leaves the mean.
#
# NF-nets, and networks that normalise the input of each residual block (pre-norm), live with $\chi >
# 1$ by the way out of lesson 8b: the gain of residual blocks is a power of the depth.
#
# ## Exercises
#
# **9.1** GroupNorm for images: $x$ is (samples, channels, height, width), and the channels are cut
# into `groups` groups of neighbours. Return the normalised array. (One group is LayerNorm, one
# channel per group is InstanceNorm.)


# %%
def group_norm(x, groups, eps): ...  # your code


check("9.1", group_norm)
# hint("9.1")

# %% [markdown]
# **9.2** Scaled weight standardisation: rows of sum 0 and length $1/c_1$. Why does sum 0 help? The
# inputs are ReLU outputs, which all have the mean $c_2$.


# %%
def scaled_ws(w): ...  # your code: w is (units, inputs)


check("9.2", scaled_ws)

# %% [markdown]
# **9.3** A row of weights of WeightNorm: $w = g\, v/|v|$. Given $v$, the number $g$ and the
# gradient $G$ with respect to $w$ (a vector), return the gradients with respect to $v$ and $g$.


# %%
def weight_norm_gradients(v, g, gradient):
    return ..., ...


check("9.3", weight_norm_gradients)

# %% [markdown]
# **9.4** DyT does not normalise. Return the mean square of $\tanh(\alpha u)$ for Gaussian $u$ of
# mean 0 and a given variance; three digits are enough. For LayerNorm it would be 1, whatever the
# variance.


# %%
def dyt_mean_square(alpha, variance): ...  # your code


check("9.4", dyt_mean_square)

# %% [markdown]
# Solutions, with derivations:
# [solutions/09_other_normalizers.ipynb](solutions/09_other_normalizers.ipynb).
#
# ## Read next
#
# - [`tinyprop/nn/statistics.py`](../tinyprop/nn/statistics.py),
#   [`tinyprop/nn/weights.py`](../tinyprop/nn/weights.py); `tinyprop compare` draws the figure above
#   for any of them, with singular values and correlations; `tinyprop verify N13 N14 N18 N28
#   --explain`.
# - Yang, Pennington, Rao, Sohl-Dickstein and Schoenholz, *A mean field theory of batch
#   normalization*, ICLR 2019. Xiong et al., *On layer normalization in the Transformer
#   architecture*, ICML 2020.
# - In the [laboratory](../docs/lab/index.html#norm=layer&depth=20) of the site (`make site`),
#   sliders change the networks of this lesson.
#
# Next: [10. The contest](10_contest.ipynb).
