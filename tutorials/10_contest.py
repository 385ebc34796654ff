# %% [markdown]
# # 10. The contest
#
# **Goal.** Train the same network with every normaliser of this course, with batches of 25 images
# and with batches of a single one; compare them fairly, with error bars; and know what such a
# comparison can tell.
#
# The data are images of ten shapes, drawn by arithmetic, leaning, textured, with dots strewn about,
# at 16 x 16 pixels: small enough to train many networks, hard enough that they differ. Each pixel
# has been normalised over the training images (section 4.1 of the paper), which is where
# normalisation starts to propagate.

# %%
import json
import math
from itertools import combinations

import contest
import numpy as np

import tinyprop as tp
from lesson import BLUE, GRAY, RED, check, hint, panels, predict, reveal, show
from tinyprop.report.estimate import student_quantile

data, classes = contest.images(), tp.data.load("shapes", split="test").classes
x, y = data["train"]
low, high = x[:60].min(axis=(0, 2, 3), keepdims=True), x[:60].max(axis=(0, 2, 3), keepdims=True)
figure, every = panels(10, 9.6, 1.4)
for label, axes in enumerate(every):
    image = x[np.flatnonzero(y == label)[0]]
    axes.imshow(np.clip((image - low[0]) / (high - low)[0], 0, 1).transpose(1, 2, 0))
    axes.set_title(classes[label], loc="center", fontsize=8.5)
    axes.axis("off")
show(figure)
print({name: f"{len(labels)} images" for name, (_, labels) in data.items()})

# %% [markdown]
# ## Rules
#
# A fair contest gives everyone the same chance.
#
# - *The same network*: four convolutional layers and two poolings, the same number of filters. The
#   paper's shorthand is `C(filters, size, stride, padding)` and `P(size, stride, padding, mode)`.
# - *The same tuning*: every normaliser is tried with the same two learning rates. The first seed
#   decides which one is better, on *validation* images, which nobody was trained on; the other
#   seeds take it. The score is the error on 2,000 test images, the first 1,000 of which also guided
#   our choice of the two rates.
# - *The same images*: with batches of 25, four passes over 1,200 images; with batches of 1, one
#   pass. Both end with a quarter of the learning rate.
# - *Several seeds*: the seed decides the first weights and the order of the images. Every number is
#   a mean over seeds, with its standard error. A run that diverges counts as an error of 90 %,
#   which is chance.
#
# All runs together take minutes of computing time, so they are recorded in
# [`contest.json`](contest.json); `python tutorials/contest.py` makes it again. One run is short.
# Here is NormProp with batches of 25:

# %%
print(contest.SPEC)
setting = {"norm": "normprop", "batch": 25, "rate": 0.03, "seed": 0}
run = contest.trained(**setting, data=data)
runs = json.loads(contest.RESULTS.read_text())
recorded = next(r for r in runs if r | setting == r)
count = len(data["test"][1])


def chance(error):
    """The standard error of a fraction of so many test images: as of heads of so many coins."""
    return math.sqrt(error * (1 - error) / count)


print(
    f"test error now {run['test']:.1%} +- {chance(run['test']):.1%}, recorded "
    f"{recorded['test']:.1%}"
)

# %% [markdown]
# The error bar after +- says how much another 2,000 test images would change the number. Another
# *seed* may change it by more, so the bars below are computed from the seeds.
#
# ## Batches of 25
#
# First a prediction: what is the largest difference between two normalisers (not counting "none"),
# in percentage points?

# %%
QUESTION = "largest difference at batch size 25, in points"
predict(QUESTION)


# %%
def score(norm, batch):
    """Test errors of all seeds at the learning rate that the first seed chose on validation
    images."""
    rate = contest.best_rate(runs, norm, batch)
    mine = [r for r in runs if (r["norm"], r["batch"], r["rate"]) == (norm, batch, rate)]
    return np.array([r["test"] or 0.9 for r in mine]), rate


def standard_error(errors):
    return errors.std(ddof=1) / math.sqrt(len(errors))


scores = {(norm, batch): score(norm, batch) for norm in contest.NORMS for batch in contest.EPOCHS}
means = {norm: scores[norm, 25][0].mean() for norm in contest.NORMS if norm != "none"}
reveal(QUESTION, 100 * (max(means.values()) - min(means.values())))

figure, every = panels(2, 9.6, 3.4)
for axes, batch, colour in ((every[0], 25, BLUE), (every[1], 1, RED)):
    order = list(contest.NORMS)[::-1]
    for place, norm in enumerate(order):
        errors, _ = scores[norm, batch]
        axes.plot(100 * errors, [place] * len(errors), "o", color=colour, alpha=0.3, markersize=4)
        axes.errorbar(
            [100 * errors.mean()],
            [place],
            xerr=[100 * standard_error(errors)],
            fmt="o",
            color=colour,
            capsize=3,
        )
    axes.axvline(90, color=GRAY, linestyle=":")
    axes.set(title=f"Test error, %, batches of {batch}", xlim=(0, 95), yticks=range(len(order)))
    axes.set_yticklabels([contest.NORMS[norm] for norm in order] if batch == 25 else [])
every[1].text(89, 7.4, "chance", color=GRAY, ha="right", fontsize=9, va="center")
show(figure)
print(f"{'':18} {'batches of 25':>22} {'batches of 1':>22}")
for norm, name in contest.NORMS.items():
    cells = []
    for batch in (25, 1):
        errors, rate = scores[norm, batch]
        cells.append(f"{errors.mean():.1%} +- {standard_error(errors):.1%} ({rate:g})")
    print(f"{name:18} {cells[0]:>22} {cells[1]:>22}")
print("mean over seeds, standard error, and the learning rate that validation chose")

# %% [markdown]
# With **batches of 25**, weight standardisation, NormProp and BatchNorm are ahead, and their error
# bars overlap: three seeds do not tell them apart. GroupNorm comes next. DyT never leaves chance.
# One reason may be that it does not normalise (lesson 9), and that this training is short and the
# network has no residual connections, for which it was made.
#
# With **batches of one**, BatchNorm falls back among the last. In training, its statistics are
# those of the places of a single image; in evaluation, they are running averages over images, which
# is another function. NormProp and weight standardisation, which use no statistics of the data,
# have the smallest errors. (That every error is larger than on the left, but DyT's, is no surprise:
# these runs saw each image once instead of four times. Compare within a column.)
#
# LayerNorm depends on no batch, and is far behind on the left as well. Two possible reasons: it
# takes its mean over all channels and places of an image, so it removes brightness and contrast;
# and in front of ReLU, in a chain without residual connections, it lets different inputs become
# alike (lesson 9). To find out, change one of them at a time.
#
# ## How sure is that?
#
# Two means with error bars are compared by their difference, divided by the standard error of the
# difference. With many seeds, chance alone takes this number beyond 2 in one case of twenty. With
# few seeds, the standard errors themselves are uncertain, and the bound is larger; Student's $t$
# distribution gives it. And eight contestants make 28 pairs: for a bound that chance exceeds in
# *any* of them in one case of twenty, each pair may do so in one case of 560 only.

# %%
pairs, freedom = list(combinations(contest.NORMS, 2)), 2 * (len(contest.SEEDS) - 1)
alone, together = (student_quantile(1 - 0.05 / count, freedom) for count in (1, len(pairs)))


def apart(one, other, batch):
    """The difference of two means in standard errors."""
    (a, _), (b, _) = scores[one, batch], scores[other, batch]
    return (b.mean() - a.mean()) / math.hypot(standard_error(a), standard_error(b))


print(
    f"{len(contest.SEEDS)} seeds each: the bound is {alone:.1f} for one pair, {together:.1f} "
    "for "
    f"{len(pairs)} pairs"
)
for batch in (25, 1):
    distances = {
        name: apart("normprop", norm, batch)
        for norm, name in contest.NORMS.items()
        if norm != "normprop"
    }
    print(
        f"batches of {batch}, minus NormProp:",
        ", ".join(f"{name} {z:+.1f}" for name, z in distances.items()),
    )
    sizes = np.array([abs(apart(one, other, batch)) for one, other in pairs])
    print(
        f"   pairs beyond the first bound: {(sizes > alone).sum()}, beyond the second: "
        f"{(sizes > together).sum()}"
    )

# %% [markdown]
# So this is what three seeds separate. With batches of 25, the first three places are not
# separated; all others are beyond the first bound from NormProp, and LayerNorm and DyT also beyond
# the second. With batches of one, NormProp is ahead of all but weight standardisation, BatchNorm
# included, by the first bound; by the second, no pair is separated. If you had chosen *one* pair
# before you saw the figure, as a good experiment does, the first bound would be the right one.
#
# What the contest does not tell: how they compare in larger networks, on photographs, or after long
# training. The paper's own experiments, at their full size and with more seeds, are in
# [REPRODUCTION.md](../REPRODUCTION.md).
#
# ## Exercises
#
# **10.1** Two networks have the test errors $p$ and $q$ on $n$ images each, drawn independently.
# How many standard errors are they apart?


# %%
def standard_errors_apart(p, q, n): ...  # your code


check("10.1", standard_errors_apart)
# hint("10.1")

# %% [markdown]
# **10.2** Given the test errors of several seeds, an array, return their mean and its standard
# error.


# %%
def mean_and_error(errors):
    return ..., ...


check("10.2", mean_and_error)

# %% [markdown]
# **10.3** Choose a learning rate. You get a list of runs, each a dict with `"rate"`, `"seed"`,
# `"valid"` and `"test"` (the errors; `None` if the run diverged). Return the rate that you would
# choose.


# %%
def best_rate(runs): ...  # your code


check("10.3", best_rate)

# %% [markdown]
# Solutions, with derivations: [solutions/10_contest.ipynb](solutions/10_contest.ipynb).
#
# ## Read next
#
# - [`tinyprop/train/step.py`](../tinyprop/train/step.py), then
#   [`train/run.py`](../tinyprop/train/run.py): the loop; `tinyprop train --data cifar10 --norm
#   normprop --width 0.25 --epochs 10 --train-size 10000 --out runs/first`.
# - Arpit et al., *Normalization propagation*, ICML 2016, section 5; that BatchNorm cannot be used
#   with batches of one is in its section 1. Masters and Luschi, *Revisiting small batch training
#   for deep neural networks*, 2018.
#
# That was the course. The electives: [E1](E1_convolution.ipynb), [E2](E2_any_activation.ipynb),
# [E3](E3_gpu.ipynb), [E4](E4_data_parallel.ipynb).
