# %% [markdown]
# # 3. Internal covariate shift, watched live
#
# **Goal.** Train the same network three times, plain, with BatchNorm, with NormProp, and watch what each layer hands on
# to the next while they learn.
#
# To a layer, the layers below are its data set. They are trained at the same time, so its data change under its feet.
# Ioffe and Szegedy (2015) called this *internal covariate shift*, and BatchNorm is their remedy: normalise with the
# mean and standard deviation of the mini-batch. *Normalization Propagation* (Arpit et al., 2016) computes both
# beforehand. Before we compute anything, let us look.

# %%
import numpy as np

import tinyprop as tp
from lesson import BLUE, GRAY, GREEN, ORANGE, RED, panels, show

STEPS, EVERY, SEEDS = 80, 4, 3  # steps of training, between looks, and repetitions
SPEC = "C(12,5,2,2)-C(16,3,1,1)-P(2,2,0,max)-C(24,3,1,1)-C(24,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"  # four hidden layers
KINDS = {"none": "plain", "batch": "BatchNorm", "normprop": "NormProp"}

train, test = tp.data.load("shapes").first(50 * STEPS), tp.data.load("shapes", split="test")
normalise = tp.data.GlobalNormalizer((3, 32, 32)).fit(train.images)
watched = normalise(tp.tensor(test.images[:100]))  # the same 100 images all the time


def watch(norm, seed):
    """Train; at each look, the mean and standard deviation of what every hidden layer hands on; and all losses."""
    tp.manual_seed(seed)
    net = tp.nn.build(SPEC, norm=norm)
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), threads=1)
    looks, losses = [], []
    for i, (images, labels) in enumerate(tp.data.batches(train, 50, np.random.default_rng(seed))):
        if i % EVERY == 0:
            hidden = [s for s in tp.nn.signals(net, watched) if s.layer.endswith(("Activation", "NormPropConv2d"))]
            looks.append([(s.mean, s.std) for s in hidden])
        losses.append(float(step(normalise(tp.tensor(images)), labels)))
    return np.array(looks), np.array(losses)


runs = {norm: [watch(norm, seed) for seed in range(SEEDS)] for norm in KINDS}

figure, every = panels(3, 9.0, 3.1)
for axes, (norm, name) in zip(every, KINDS.items(), strict=True):
    looks, _ = runs[norm][0]
    for layer, colour in enumerate((BLUE, GREEN, ORANGE, RED)):
        axes.semilogy(EVERY * np.arange(len(looks)), looks[:, layer, 1], color=colour, label=f"layer {layer + 1}")
    axes.axhline(1.0, color=GRAY, linewidth=1, linestyle=":")
    axes.set(title=name, xlabel="step", ylim=(0.05, 8))
every[0].legend(fontsize=8.5, ncols=2, loc="upper right")
every[0].set_ylabel("standard deviation of the output")
show(figure)

# %% [markdown]
# Read the figure from left to right.
#
# - **Plain.** The deeper a layer, the fainter what it gets: each layer loses a part of the scale. And it moves most at
#   the top.
# - **BatchNorm.** After every step the scale is put back, so the lines can hardly move. They can only because the layer
#   may learn a scale of its own.
# - **NormProp.** The lines *start* within a factor of two of 1 although nobody looked at the data (why not at 1? Lesson
#   9). Then they move a lot: nothing pulls them back. It promises normalised signals for normalised, Gaussian,
#   unrelated inputs, and training makes them related.
#
# Was that luck? Numbers, with their spread over seeds: the scale of the last hidden layer, and where the loss ends.

# %%
print(f"{'':10} {'std at the start':>18} {'std at the end':>18} {'loss at the end':>18}")
for norm, name in KINDS.items():
    first, last, loss = ([] for _ in range(3))
    for looks, losses in runs[norm]:
        first.append(looks[0, -1, 1])
        last.append(looks[-1, -1, 1])
        loss.append(losses[-10:].mean())
    cells = [f"{np.mean(v):.2f} +- {np.std(v, ddof=1):.2f}" for v in (first, last, loss)]
    print(f"{name:10} {cells[0]:>18} {cells[1]:>18} {cells[2]:>18}")
print(f"mean and standard deviation over {SEEDS} seeds; a network that knows nothing has a loss of {np.log(10):.2f}")

# %% [markdown]
# ## Does the shift explain the speed?
#
# Predict from the first figure who learns fastest, if covariate shift is what slows training down. Then look.

# %%
figure, (axes,) = panels(1, 6.5, 3.1)
for (norm, name), colour in zip(KINDS.items(), (GRAY, RED, BLUE), strict=True):
    curves = np.array([np.convolve(losses, np.ones(8) / 8, "valid") for _, losses in runs[norm]])
    steps = 8 + np.arange(curves.shape[1])
    axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, curves.mean(axis=0), color=colour, label=name)
axes.set(title=f"Training loss, mean of 8 steps; bands: {SEEDS} seeds", xlabel="step")
axes.legend()
show(figure)

# %% [markdown]
# Both remedies work, but not in the order of how still their signals are: NormProp moves most and is not slowest. Keep
# this in mind when somebody explains the success of a normalisation by covariate shift alone. Santurkar et al. (2018)
# found the same for BatchNorm: it helps by making the loss smoother, even where the shift is put back by hand. What
# both have in common is the *start*: signals of one scale, and gradients of one scale, in every layer.
#
# ## What BatchNorm costs
#
# Because its statistics come from the batch, what it says of an image depends on the company the image is in:

# %%
others = normalise(tp.tensor(test.images[100:150])).data
for norm in ("batch", "normprop"):
    tp.manual_seed(0)
    net = tp.nn.build(SPEC, norm=norm)
    answers = []
    for company in (others[:24], others[25:49]):
        batch = np.concatenate([watched.data[:1], company])  # the first image, and 24 others
        answers.append(net(tp.tensor(batch)).data[0])
    print(f"{KINDS[norm]:9}: the answer for one image differs by {abs(answers[0] - answers[1]).max():.2f}")

# %% [markdown]
# NormProp never looks across the batch. So a batch may have any size, even 1, may be cut up and spread over cores, and
# training and testing compute the same function. How it can know mean and spread beforehand is the next lesson.
#
# ## Exercises
#
# 1. How strongly does BatchNorm's answer for an image depend on the batch size? Measure its standard deviation over 20
#    random companies of 3, 15 and 63 other images.
# 2. He et al. (2015) start plain ReLU networks with weights of variance $2 / (\text{inputs})$. Show that this keeps the
#    standard deviation over the layers at the start. Does it keep it during training?
# 3. In the NormProp network, train all but `gamma` and `beta`. How much of the movement is left?
#
# Solutions: [solutions/03_covariate_shift.py](solutions/03_covariate_shift.py).
#
# ## Read next
#
# - [`tinyprop/nn/signals.py`](../tinyprop/nn/signals.py): what we watched with, and the `BatchNorm` of
#   [`tinyprop/nn/statistics.py`](../tinyprop/nn/statistics.py).
# - Ioffe and Szegedy, *Batch normalization*, ICML 2015. Santurkar, Tsipras, Ilyas and Madry, *How does batch
#   normalization help optimization?*, NeurIPS 2018.
#
# Next: [4. The two constants](04_two_constants.ipynb).
