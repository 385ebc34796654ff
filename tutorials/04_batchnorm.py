# %% [markdown]
# # 4. BatchNorm from scratch
#
# **Goal.** Write batch normalisation: forwards, backwards and for evaluation. Then find out by
# experiment what *internal covariate shift* explains, and what it does not.
#
# Lesson 3 chose the first weights so that signals start at a good size. Batch normalisation (Ioffe
# and Szegedy, 2015) puts them back to a good size in *every* step: it takes a mini-batch and, for
# each unit, subtracts the mean over the batch and divides by the standard deviation. Here are 60
# samples of two units, before and after.

# %%
import numpy as np

import tinyprop as tp
from lesson import BLUE, GRAY, GREEN, ORANGE, RED, check, claim, hint, panels, predict, reveal, show

random = np.random.default_rng(0)
# (samples, units)
batch = random.standard_normal((60, 2)) @ np.array([[2.0, 0.5], [0.0, 0.4]]) + [1.5, -1.0]


def batch_norm(x, gamma=1.0, beta=0.0, eps=1e-5):
    """Each unit (column) gets mean beta and standard deviation gamma over the batch (rows)."""
    mean, var = x.mean(axis=0), x.var(axis=0)
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


after = batch_norm(batch)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 7.4, 3.3)
for axes, values, title in ((left, batch, "Before"), (right, after, "After BatchNorm")):
    axes.axhline(0, color=GRAY, linewidth=0.7)
    axes.axvline(0, color=GRAY, linewidth=0.7)
    axes.plot(*values.T, "o", color=BLUE, markersize=3.5, alpha=0.7)
    axes.errorbar(*values.mean(axis=0), *values.std(axis=0)[::-1], "o", color=RED, capsize=4)
    axes.set(title=title, xlim=(-5, 7), ylim=(-4, 4), xlabel="unit 1", ylabel="unit 2")
left.text(0.3, 2.8, "red: mean and\nstandard deviation", color=RED, fontsize=9)
show(
    figure,
    f"Two clouds of {len(batch)} points, unit 2 against unit 1. Before: means "
    f"{batch.mean(axis=0)[0]:.1f} and {batch.mean(axis=0)[1]:.1f}, standard deviations "
    f"{batch.std(axis=0)[0]:.1f} and {batch.std(axis=0)[1]:.1f}. After BatchNorm both means are 0 and "
    "both standard deviations 1; the cloud still leans to the right.",
)

# %%
print(
    "equals tp.nn.BatchNorm:",
    np.allclose(tp.nn.BatchNorm(2)(tp.tensor(batch)).numpy(), after, atol=1e-6),
)
print(
    f"correlation of the two units: {np.corrcoef(batch.T)[0, 1]:.2f} before, "
    f"{np.corrcoef(after.T)[0, 1]:.2f} after"
)

# %% [markdown]
# With $B$ samples $x_1, \dots, x_B$ of one unit,
# $$ \mu = \frac1B \sum_i x_i, \qquad \sigma^2 = \frac1B \sum_i (x_i - \mu)^2, \qquad
# \hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad y_i = \gamma \hat x_i + \beta. $$
# The small $\epsilon$ avoids a division by 0. The scale $\gamma$ and the shift $\beta$ are learnt,
# so that the layer can still have any mean and size, but as parameters of its own rather than as a
# side effect of all the weights below. Note what it does *not* do: it treats each unit alone, so
# correlations between units stay.
#
# ## Backwards
#
# A sample now influences the outputs of the *other* samples: through $\mu$ and through $\sigma$.
# Let $g_i = dL/d\hat x_i$ and leave $\epsilon$ out. We need $d\hat x_i / dx_j$. The numerator $x_i
# - \mu$ has the derivative $[i = j] - \frac1B$. For the denominator, $d\sigma^2/dx_j = \frac2B (x_j
# - \mu)$, so $d\sigma/dx_j = \hat x_j / B$. By the quotient rule,
# $$ \frac{d\hat x_i}{dx_j} = \frac1\sigma \Big( [i = j] - \frac1B - \frac{\hat x_i \hat x_j}{B} \Big),
# \qquad\text{so}\qquad \frac{dL}{dx_j} = \frac1\sigma \Big( g_j - \overline{g} - \hat x_j\,
# \overline{g \hat x} \Big), $$ where a bar is the mean over the batch. In words: take the gradient,
# remove its mean, remove its part along $\hat x$, and divide by $\sigma$. Both removals have a
# reason. Adding a constant to all $x_i$ changes nothing, so the gradient has no part in that
# direction; multiplying all of them by a constant changes nothing either.


# %%
def batch_norm_gradient(x, g, gamma=1.0, eps=1e-5):
    """The gradient with respect to x, given that with respect to the output."""
    std = np.sqrt(x.var(axis=0) + eps)
    normal, g = (x - x.mean(axis=0)) / std, gamma * g
    return (g - g.mean(axis=0) - normal * (g * normal).mean(axis=0)) / std


g = random.standard_normal(batch.shape)
x = tp.tensor(batch, requires_grad=True)
(theirs,) = tp.grad(tp.nn.BatchNorm(2)(x), [x], g)
ours = batch_norm_gradient(batch, g)
print("equals the engine's:", np.allclose(ours, theirs.numpy(), atol=1e-6))
along_one, along_x = ours.sum(axis=0), (ours * (batch - batch.mean(axis=0))).sum(axis=0)
print(
    f"no part along 1 (below 1e-9): {abs(along_one).max() < 1e-9}, hardly any along x: "
    f"{abs(along_x).max():.0e}"
)

# %% [markdown]
# ## Evaluation
#
# When the network is used, there may be no batch: one image arrives. So BatchNorm keeps running
# averages of $\mu$ and $\sigma^2$ during training, $\text{running} \leftarrow 0.9\, \text{running}
# + 0.1\, \text{batch}$, and uses them in evaluation mode. In training mode, the output for a
# sample depends on the other samples in its batch. With a batch of two this goes to an extreme.

# %%
QUESTION = "largest |output| of BatchNorm for a batch of two"
predict(QUESTION)

# %%
pairs = random.standard_normal((2, 1000)) * random.uniform(0.5, 20, 1000)  # a thousand units
reveal(QUESTION, abs(batch_norm(pairs, eps=0.0)).max())
print(
    f"smallest: {abs(batch_norm(pairs, eps=0.0)).min():.3g}; so with a batch of two, BatchNorm "
    "leaves only signs"
)
try:
    tp.nn.BatchNorm(8)(tp.tensor(np.ones((1, 8), np.float32)))
except tp.ShapeError as refusal:
    print(refusal)

# %% [markdown]
# With one sample, $x - \mu = 0$, and a fully connected layer cannot be normalised at all. In a
# network for images it is different. There, a *convolution* moves one small set of weights, a
# filter, over the image, and computes one number at every place; the map of all these numbers is
# called a *channel* (elective E1 has the details). As all places share the weights, BatchNorm takes
# its statistics over samples *and* places, and a batch of one image is defined. Lesson 10 trains
# with it.
#
# ## Internal covariate shift
#
# To a layer, the layers below are its data set. They are trained at the same time, so its data
# keep changing. Ioffe and Szegedy called this *internal covariate shift* and gave it as the
# reason why BatchNorm helps. Is it? We test it by an experiment: we train a small convolutional
# network on images of ten shapes and watch the standard deviation of what each hidden layer hands on,
# always for the same 60 images. The network is written in the paper's shorthand: `C(filters, size,
# stride, padding)` is a convolution, `P(size, stride, padding, mode)` takes the largest or the mean
# number of each window. The variants:
#
# - *plain*, with He's start;
# - *BatchNorm*;
# - *BatchNorm, jolted*: after each BatchNorm, every channel is multiplied and shifted by random
#   numbers that are new in every step. Santurkar et al. (2018) used this as a control experiment:
#   BatchNorm, with a covariate shift made by hand. One size of the jolt would prove little, so we
#   take three: 0.2, 0.5 and 1;
# - *NormProp*: the weights of each unit have length 1, and two fixed numbers make up for what ReLU
#   does to mean and size. It uses no statistics of the batch. The next two lessons derive it.
#
# Each is trained with three *seeds* of the random numbers: for the first weights, the jolts and the
# order of the images. The cell trains 18 networks, which takes about 15 seconds (a minute in a
# browser). `SEEDS = 1` is a short form: six networks, and no error bars.

# %% tags=["takes-65s"]
STEPS, EVERY, BATCH, RATE = 100, 5, 40, 0.02
SEEDS = 3  # short: 1
# four hidden layers
SPEC = "C(8,3,1,1)-P(2,2,0,max)-C(16,3,1,1)-C(16,3,1,1)-C(16,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"


def half_size(pixels):
    """32 x 32 images -> 16 x 16"""
    return pixels.astype(np.float32).reshape(len(pixels), 3, 16, 2, 16, 2).mean(axis=(3, 5))


train, test = tp.data.load("shapes").first(BATCH * STEPS), tp.data.load("shapes", split="test")
images = half_size(train.images)
watched = tp.tensor((half_size(test.images[:60]) - images.mean()) / images.std())
images = (images - images.mean()) / images.std()


class Jolt(tp.nn.Module):
    """Multiply and shift each channel by random numbers, new in every pass of training."""

    def __init__(self, channels, seed, size):
        self.shape, self.random, self.size = (1, channels, 1, 1), np.random.default_rng(seed), size

    def forward(self, x):
        scale, shift = self.size * self.random.standard_normal((2, *self.shape)).astype(np.float32)
        return x * tp.tensor(np.exp(scale)) + tp.tensor(shift)


def build(norm, jolt, seed):
    """A network; with a jolt, each BatchNorm (or, without one, each convolution) gets one."""
    tp.manual_seed(seed)
    net = tp.nn.build(SPEC, norm=norm, init="he" if norm == "none" else None)
    if not jolt:
        return net
    jolted, channels = tp.nn.BatchNorm if norm == "batch" else tp.nn.Conv2d, 0
    layers = []
    for layer in net:
        layers.append(layer)
        channels = getattr(layer, "out_channels", channels)
        if isinstance(layer, jolted):
            layers.append(Jolt(channels, seed, jolt))
    return tp.nn.Sequential(*layers)


def watch(norm, jolt, seed):
    """Train. Return the network; at each look, the standard deviation of what every hidden layer
    hands on; and all losses."""
    net = build(norm, jolt, seed)
    optimizer = tp.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    step = tp.train.TrainingStep(net, optimizer, threads=1)
    looks, losses = [], []
    order = np.random.default_rng(seed).permutation(len(images)).reshape(-1, BATCH)
    for i, part in enumerate(order):
        if i % EVERY == 0:
            signals = tp.nn.signals(net, watched)
            looks.append(
                [s.std for s in signals if s.layer.endswith(("Activation", "NormPropConv2d"))]
            )
        losses.append(float(step(tp.tensor(images[part]), train.labels[part])))
    return net, np.array(looks), np.array(losses)


VARIANTS = {  # normaliser, size of the jolt, colour
    "plain": ("none", 0.0, GRAY),
    "BatchNorm": ("batch", 0.0, RED),
    "jolt 0.2": ("batch", 0.2, ORANGE),
    "jolt 0.5": ("batch", 0.5, ORANGE),
    "jolt 1": ("batch", 1.0, ORANGE),
    "NormProp": ("normprop", 0.0, BLUE),
}
runs = {
    name: [watch(norm, jolt, seed) for seed in range(SEEDS)]
    for name, (norm, jolt, _) in VARIANTS.items()
}

# %% tags=["hide-input"]
figure, every = panels(4, 9.6, 2.8)
for axes, name in zip(every, ("plain", "BatchNorm", "jolt 0.5", "NormProp"), strict=True):
    _, looks, _ = runs[name][0]
    for layer, colour in enumerate((BLUE, GREEN, ORANGE, RED)):
        axes.semilogy(EVERY * np.arange(len(looks)), looks[:, layer], color=colour)
    axes.set(title=name, xlabel="step", ylim=(0.08, 8))
    axes.set_yticks([0.1, 1.0], ["0.1", "1"])
every[1].set_title("BatchNorm")
every[2].set_title("BatchNorm, jolt 0.5")
for layer, (height, colour) in enumerate(
    zip((5.6, 3.8, 2.6, 1.75), (BLUE, GREEN, ORANGE, RED), strict=True)
):
    every[0].text(95, height, f"layer {layer + 1}", color=colour, ha="right")
every[0].set_ylabel("standard deviation")
show(
    figure,
    "Four panels: the standard deviation of the outputs of four hidden layers over "
    f"{STEPS} steps of training, seed 0. "
    + " ".join(
        f"{name}: between {runs[name][0][1].min():.2f} and {runs[name][0][1].max():.2f}."
        for name in ("plain", "BatchNorm", "jolt 0.5", "NormProp")
    ),
)

# %% [markdown]
# How much does a line move? Add up the changes of its logarithm from look to look, over the whole
# training: that is its *movement*. Beside it, the loss at the end, each as a mean over the seeds
# with its *standard error*, the standard deviation of the seeds divided by the root of their number
# (lesson 5 says why).


# %%
def mean_and_error(values):
    return np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0


def movement(looks):
    return abs(np.diff(np.log(looks), axis=0)).sum(axis=0).mean()


moved = {k: mean_and_error([movement(looks) for _, looks, _ in v]) for k, v in runs.items()}
ends = {k: mean_and_error([losses[-10:].mean() for _, _, losses in v]) for k, v in runs.items()}
for name in VARIANTS:
    print(
        f"{name:10} movement {moved[name][0]:.1f} +- {moved[name][1]:.1f}, "
        f"loss at the end {ends[name][0]:.2f} +- {ends[name][1]:.2f}"
    )
chance = np.log(10)
print(f"a network that knows nothing has a loss of {chance:.2f}")

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 9.2, 3.2)
for name, (_, _, colour) in VARIANTS.items():
    curves = [np.convolve(losses, np.ones(10) / 10, "valid") for _, _, losses in runs[name]]
    mean, steps = np.mean(curves, axis=0), 10 + np.arange(STEPS - 9)
    left.fill_between(
        steps, np.min(curves, axis=0), np.max(curves, axis=0), color=colour, alpha=0.15
    )
    left.plot(steps, mean, color=colour, linewidth=1.4)
    (x, dx), (y, dy) = moved[name], ends[name]
    right.errorbar([x], [y], [dy], [dx], fmt="o", color=colour, capsize=2, markersize=4)
    place = {"plain": (7, 5), "jolt 1": (-14, 7)}.get(name, (7, -10))
    right.annotate(name, (x, y), place, textcoords="offset points", color=colour, fontsize=9)
right.plot(
    *np.array([(moved[n][0], ends[n][0]) for n in VARIANTS if n[0] in "Bj"]).T,
    color=ORANGE,
    linewidth=1,
    zorder=0,
)
for axes in (left, right):
    axes.axhline(chance, color=GRAY, linestyle=":", linewidth=1)
left.set(title=f"Training loss, mean of 10 steps; {SEEDS} seeds, bands", xlabel="step")
right.set(title="Loss at the end", xlabel="movement", xlim=(0, 10.5))
right.text(10.4, chance - 0.012, "chance", color=GRAY, fontsize=9, ha="right", va="top")
show(
    figure,
    "Left: training loss against steps for the six variants. Right: loss at the end against "
    "movement. "
    + " ".join(
        f"{name}: movement {moved[name][0]:.1f}, loss {ends[name][0]:.2f}." for name in VARIANTS
    )
    + f" Chance is {chance:.2f}.",
)

# %% [markdown]
# Now judge the explanation by this figure. Each sentence below is computed from the runs above.


# %%
def change(name, other, table):
    return table[name][0] - table[other][0]


claim(
    "without a jolt, BatchNorm's layers move least of all; those of the plain network move "
    f"{moved['plain'][0] / moved['BatchNorm'][0]:.0f} times as much",
    min(moved, key=lambda name: moved[name][0]) == "BatchNorm",
)
claim(
    "the jolt has a dose-response: with 0.2, 0.5 and 1 the loss is higher by "
    + ", ".join(f"{change(f'jolt {size}', 'BatchNorm', ends):.2f}" for size in ("0.2", "0.5", "1")),
    ends["BatchNorm"][0] < ends["jolt 0.2"][0] < ends["jolt 0.5"][0] < ends["jolt 1"][0],
)
claim(
    f"with 0.5, BatchNorm moves by {moved['jolt 0.5'][0]:.1f}, more than the plain network, and "
    f"keeps {(chance - ends['jolt 0.5'][0]) / (chance - ends['BatchNorm'][0]):.0%} of what it learnt",
    moved["jolt 0.5"][0] > moved["plain"][0]
    and chance - ends["jolt 0.5"][0] < 0.5 * (chance - ends["BatchNorm"][0]),
)
claim(
    f"NormProp moves {moved['NormProp'][0] / moved['BatchNorm'][0]:.0f} times as much as BatchNorm, "
    f"and its loss is {-change('NormProp', 'BatchNorm', ends):.2f} lower",
    moved["NormProp"][0] > 4 * moved["BatchNorm"][0] and change("NormProp", "BatchNorm", ends) < 0,
)
good = np.array([looks[0] for _, looks, _ in runs["plain"]])  # before the first step
claim(
    "the plain network starts with signals of a good size, standard deviations between "
    f"{good.min():.2f} and {good.max():.2f}, and ends at {ends['plain'][0]:.2f}, near chance",
    ends["plain"][0] > chance - 0.1 and 0.2 < good.min() <= good.max() < 5,
)

# %% [markdown]
# The jolts do *not* show that a covariate shift is harmless. A small one does little harm, a large
# one prevents learning, and a jolt is also noise in every step, which a shift during training is
# not. So this control experiment, with one size of jolt, decides nothing.
#
# The argument rests on the blue point. NormProp's layers move several times as much as BatchNorm's,
# and it learns at least as fast. So keeping the layers still is *not necessary* for fast training.
# The grey point adds: a good start is *not sufficient*. These are 100 steps of one small network;
# lesson 10 has longer runs.
#
# What BatchNorm certainly changes is the function that is being minimised: scaling the weights of a
# layer has no effect, and two directions are removed from every gradient. Santurkar et al. measured
# that the loss becomes smoother along the gradient, so that longer steps are safe.
#
# ## Four things people say
#
# **"BatchNorm helps because it is noisy."** A batch is a random sample, so its standard deviation
# scatters. By how much? Measure it, put noise of that size into the plain network (the random
# numbers of the jolt), and see whether it learns.

# %% tags=["takes-7s"]
NOISY = 2  # short: 1
net, _, _ = runs["BatchNorm"][0]
inputs = []  # what enters the first BatchNorm, for each of 40 batches: (B, C, H, W)
for part in np.arange(40 * BATCH).reshape(-1, BATCH):
    inputs.append(net[0](tp.tensor(images[part])).numpy())
stds = np.array([u.std(axis=(0, 2, 3)) for u in inputs])  # (batches, channels)
means = np.array([u.mean(axis=(0, 2, 3)) for u in inputs])
noise = max(np.log(stds).std(axis=0).mean(), (means / stds).std(axis=0).mean())
noisy = mean_and_error([watch("none", noise, seed)[2][-10:].mean() for seed in range(NOISY)])
print(f"size of the noise: {noise:.2f}; loss of the plain network with it: {noisy[0]:.2f}")
claim(
    f"noise of BatchNorm's size changes the plain network's loss by {noisy[0] - ends['plain'][0]:+.2f}, "
    f"BatchNorm changes it by {change('BatchNorm', 'plain', ends):+.2f}",
    abs(noisy[0] - ends["plain"][0]) < 0.3 * abs(change("BatchNorm", "plain", ends)),
)

# %% [markdown]
# So noise alone makes no network train fast. (That BatchNorm would be as fast without its noise does
# not follow; and whether noise helps on *new* images, as a regulariser, is another question.)
#
# **"`eval()` only saves time."** In training mode a prediction depends on the other images of the
# batch, and merely predicting changes the network: it moves the running averages.

# %%
others = [tp.tensor(images[k : k + 7]) for k in (0, 7)]  # two ways to fill a batch


def predictions(net):
    """The class of each watched image, in a batch with either group of others."""
    return [
        [
            int(net(tp.tensor(np.concatenate([image[None], group.data]))).numpy()[0].argmax())
            for image in watched.data
        ]
        for group in others
    ]


kept = net[1].running_mean.data.copy()
net.eval()
one, two = predictions(net)
stays = np.array_equal(kept, net[1].running_mean.data)
net.train()
three, four = predictions(net)
differ = sum(a != b for a, b in zip(three, four, strict=True))
claim(
    f"with eval(), other images in the batch change {sum(a != b for a, b in zip(one, two, strict=True))} of 60",
    one == two,
)
claim(f"without it, they change {differ} of 60 predictions", differ > 0)
claim(
    "predicting with eval() leaves the running mean as it is, predicting without it does not",
    stays and not np.array_equal(kept, net[1].running_mean.data),
)

# %% [markdown]
# **"$\gamma$ and $\beta$ can undo it, so it does nothing."** With $\gamma = \sigma$ and $\beta =
# \mu$ they do undo it, for one batch and one set of weights. But then change the weights: three
# times as large, and the plain unit's output is three times as large; BatchNorm's stays. What the
# layer *can* compute is the same; what a step of training *does* is not.

# %%
gamma, beta = batch.std(axis=0), batch.mean(axis=0)
undone = batch_norm(batch, gamma, beta, eps=0.0)
tripled = batch_norm(3 * batch, gamma, beta, eps=0.0)
claim("gamma = sigma and beta = mu undo the normalisation", np.allclose(undone, batch))
claim("with weights three times as large, the output is still that", np.allclose(tripled, batch))

# %% [markdown]
# **"The layer below needs its bias."** A bias adds a constant to all samples of a unit, and BatchNorm
# subtracts it again. So its gradient is 0, exactly up to rounding; $\beta$ does its work.
# `tp.nn.build` leaves it out.

# %%
weight = tp.tensor(random.standard_normal((2, 2)), requires_grad=True)
bias = tp.tensor(np.zeros(2), requires_grad=True)
out = tp.nn.BatchNorm(2)(tp.tensor(batch) @ weight + bias)
to_weight, to_bias = tp.grad(out, [weight, bias], g)
ratio = abs(to_bias.numpy()).max() / abs(to_weight.numpy()).max()
claim("the bias has a gradient of 0 (below 1e-9 of that of the weights)", ratio < 1e-9)

# %% [markdown]
# ## Exercises
#
# **4.1** BatchNorm for images. $x$ has the shape (samples, channels, height, width), and a channel
# is normalised over samples *and* places. Return the normalised array, with $\gamma = 1$, $\beta =
# 0$ and the given $\epsilon$.


# %%
def batch_norm_images(x, eps): ...  # your code


check("4.1", batch_norm_images)
# hint("4.1")

# %% [markdown]
# **4.2** Backwards through $\hat x$ of one unit, without $\epsilon$. Given the samples $x$, of
# shape $(B,)$, and $g = dL/d\hat x$, return $dL/dx$. Try it yourself before you look above.


# %%
def normalized_gradient(x, g): ...  # your code


check("4.2", normalized_gradient)

# %% [markdown]
# **4.3** Evaluation mode. Given the batch means of all training steps in order, an array of shape
# (steps,), return the running mean after them. It starts at 0, and `momentum` is the weight of the
# new batch.


# %%
def running_mean(batch_means, momentum): ...  # your code


check("4.3", running_mean)

# %% [markdown]
# **4.4** What is the largest value that BatchNorm (with $\epsilon = 0$) can give to a sample in a
# batch of $B$?


# %%
def largest_output(batch_size): ...  # your code


check("4.4", largest_output)

# %% [markdown]
# Solutions, with derivations: [solutions/04_batchnorm.ipynb](solutions/04_batchnorm.ipynb).
#
# ## Read next
#
# - [`tinyprop/functional/normalization.py`](../tinyprop/functional/normalization.py): `Normalize`
#   is this lesson's forward and backward, for BatchNorm, LayerNorm and GroupNorm at once.
# - Ioffe and Szegedy, *Batch normalization*, ICML 2015. Santurkar, Tsipras, Ilyas and Madry, *How
#   does batch normalization help optimization?*, NeurIPS 2018. `tinyprop verify N01 N02 N04
#   --explain`.
# - In the [laboratory](../docs/lab/index.html#norm=batch&depth=30&batch=2) of the site (`make
#   site`), sliders change the networks of this lesson.
#
# Next: [5. The two constants](05_two_constants.ipynb).
