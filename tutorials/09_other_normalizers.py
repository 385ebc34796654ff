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

# %%
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
    hint,
    panels,
    predict,
    reveal,
    show,
)
from tinyprop.theory.stacks import Stack

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
show(figure)

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
# A normaliser is known by its invariances. Change something, and see whether the first sample's
# output changes. Make your own table before you run the cell. In how many of the 40 cases of the
# eight normalisers does *nothing* change?

# %%
QUESTION = "cases in which nothing changes, of 40"
predict(QUESTION)

# %%
one_row, one_sample, company = w.copy(), x.copy(), x.copy()
one_row[3] *= 3
one_sample[0] *= 3
company[1:] = random.standard_normal((5, 30))
CHANGES = {
    "all weights x 3": (x, 3 * w),
    "one row x 3": (x, one_row),
    "the sample x 3": (one_sample, w),
    "inputs + 1": (x + 1, w),
    "other company": (company, w),
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
# Read the columns. *All weights*: whoever divides by something that grows with the weights does not
# care. *One row*: BatchNorm and the methods that normalise rows. *The sample*: LayerNorm, RMSNorm
# and GroupNorm do not see how large a sample is; for an image, they remove its contrast. *Inputs +
# 1*: a constant that all inputs share is removed by BatchNorm (it is a constant of the batch) and
# by WS (the row sums to 0). *Company*: only BatchNorm.
#
# ## Twenty layers
#
# Now the instruments of lessons 3 and 8: the variance of a unit over inputs on the way up, and the
# gradient on the way down, for ReLU networks of 128 units with random weights. Dots are measured
# (batches of 64, mean over 4 networks), lines are the theory for wide networks, by
# `tinyprop.theory.stacks`. (Of GroupNorm, whose groups of 8 units are small, the signal is only
# measured.) A normaliser is a name in `tp.nn.normalizers`, or a function of the number of units; its
# weights start as `tp.nn.build` starts them, or by the rule that stands beside it.


# %%
def groups_of_8(units):
    return tp.nn.GroupNorm(units // 8, units)


NETWORKS = {  # normaliser, initial weights, color, line
    "no normaliser, He": ("none", "he", GRAY, "-"),
    "WeightNorm, Glorot": ("weight", "glorot", PINK, "-"),
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
figure, (left, right) = panels(2, 9.6, 4.6)
print(f"{'':27} {'signal, layer 20':>17} {'gradient, layer 1':>18}   theory")
for label, (norm, init, colour, style) in NETWORKS.items():
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
    for axes, name, values, place in (
        (left, "signal", signal, -1),
        (right, "gradient", gradient, 0),
    ):
        axes.semilogy(stack.layers[::2], values[::2], "o", color=colour, markersize=3.5)
        line = stack.predicted(name)
        theory.append("none" if line is None else f"{line[place]:.3g}")
        line = np.full(DEPTH, np.nan) if line is None else line
        axes.semilogy(stack.layers, line, style, color=colour, linewidth=1.2, label=label)
    plain = label.replace("$", "").replace("\\", "")
    print(f"{plain:27} {signal[-1]:17.3g} {gradient[0]:18.3g}   {', '.join(theory)}")
left.set(title="Signal: standard deviation over inputs", xlabel="layer", ylim=(1e-10, 5))
right.set(title="Gradient, relative to the last layer", xlabel="layer")
for axes in (left, right):
    axes.set_xticks([1, 5, 10, 15, 20])
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8.5)
show(figure)

# %% [markdown]
# Two classes appear.
#
# - Those that *remove the mean which ReLU makes*: BatchNorm, LayerNorm after ReLU, WS, NormProp.
#   They keep the signal, and their gradients grow by lesson 8's $\sqrt\chi$ per layer, 1.21 for
#   ReLU at $\beta = 0$ (a little more for BatchNorm, as its batch is finite; less for NormProp in
#   its exact mode, as its $\beta = 1$). Yang et al. (2019) found 1.21 for BatchNorm: it is the same
#   number as NormProp's.
# - Those that *leave it*: He's start, RMSNorm, LayerNorm and GroupNorm *before* ReLU. Their
#   gradients keep their size (those of GroupNorm grow slowly, as its groups are small), but the
#   signal, as seen by a unit over inputs, fades: with every layer all inputs look more alike.
#
# So it matters *where* LayerNorm stands. WeightNorm leaves weights as they were drawn: by Glorot's
# rule, rows have length 1, and half of the mean square is lost in each layer. In practice it is
# started with data (`tp.nn.init.data_dependent_`). DyT does not normalise: $\tanh(\alpha u)$ makes
# large signals smaller, but does not make small ones larger. With larger weights, as `tp.nn.build`
# draws them, it keeps the mean square, but not the signal: like He's start, it leaves the mean.
#
# NF-nets and pre-norm networks live with $\chi > 1$ by the way out of lesson 8: residual blocks,
# whose gain is a power of the depth.
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
