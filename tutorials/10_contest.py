# %% [markdown]
# # 10. The contest
#
# **Goal.** Train the same network with every normaliser of this course, with batches of 25 images
# and with batches of a single one; compare them fairly, with error bars; and know what such a
# comparison can tell.
#
# The data are images of ten shapes, drawn by a program: tilted, textured, strewn with dots. With 16 x
# 16 pixels they are small enough to train many networks, and hard enough that these differ. Each pixel
# has been normalised over the training images (section 4.1 of the paper), which is where
# normalisation starts to propagate.

# %% tags=["hide-input"]
import json
import math
from itertools import combinations

import contest
import numpy as np

import tinyprop as tp
from lesson import BLUE, GRAY, RED, check, claim, hint, panels, predict, reveal, show
from tinyprop.experiments import experiments_at
from tinyprop.experiments.experiment import decide
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.scales import SCALES
from tinyprop.experiments.study import Study
from tinyprop.report.estimate import student_quantile

# %%
data, classes = contest.images(), tp.data.load("shapes", split="test").classes
x, y = data["train"]
low, high = x[:60].min(axis=(0, 2, 3), keepdims=True), x[:60].max(axis=(0, 2, 3), keepdims=True)

# %% tags=["hide-input"]
figure, every = panels(10, 9.6, 1.4)
for label, axes in enumerate(every):
    image = x[np.flatnonzero(y == label)[0]]
    axes.imshow(np.clip((image - low[0]) / (high - low)[0], 0, 1).transpose(1, 2, 0))
    axes.set_title(classes[label], loc="center", fontsize=8.5)
    axes.axis("off")
show(
    figure,
    f"Ten small coloured images of {len(classes)} shapes, one of each class: {', '.join(classes)}. They "
    "lean, have textures, and dots are strewn over them.",
)

# %%
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
    """The standard error of a fraction of all test images, as for the heads of that many coins."""
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

# %% tags=["hide-input"]
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
    axes.set_yticklabels([contest.NORMS[norm] for norm in order])
every[1].text(89, 7.4, "chance", color=GRAY, ha="right", fontsize=9, va="center")
show(
    figure,
    "Two panels: the test errors of eight normalisers with batches of 25 and of 1, a dot for each seed, "
    "and their mean with an error bar. "
    + " ".join(
        f"{name}: {scores[norm, 25][0].mean():.0%} and {scores[norm, 1][0].mean():.0%}."
        for norm, name in contest.NORMS.items()
    ),
)

# %%
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
# With **batches of one**, BatchNorm drops to the last places. In training, its statistics are
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
# **"NormProp is BatchNorm without the drawbacks."** It needs no batch, and the figure shows what that
# is worth with batches of one. But it has drawbacks of its own: its constants hold for normalised,
# Gaussian, uncorrelated inputs (lesson 6), and nothing brings a signal back once it has drifted
# (lesson 8). With batches of 25 it is not ahead here, and further down you see what longer training
# says.
#
# ## How sure is that?
#
# Two means with error bars are compared by their difference, divided by the standard error of the
# difference. With many seeds, chance alone takes this number beyond 2 in one case of twenty. With
# few seeds, the standard errors themselves are uncertain, and the bound is larger. Student's $t$
# distribution gives it, by the *degrees of freedom*: the number of independent deviations behind a
# standard error. If the two groups scatter equally, that is $2 + 2$ for three seeds each. They do
# not: one standard error is often several times the other, and then the difference is hardly more
# certain than its worse half. Welch (1947) counts, for the standard errors $a$ and $b$ of groups of
# $n$,
# $$ \nu = (n - 1)\, \frac{(a^2 + b^2)^2}{a^4 + b^4}, $$
# which is $2(n - 1)$ for $a = b$ and falls to $n - 1$.
#
# And eight contestants make 28 pairs: for a bound that chance exceeds in *any* of them in one case of
# twenty, each pair may do so in one case of 560 only.

# %%
pairs = list(combinations(contest.NORMS, 2))


def apart(one, other, batch):
    """The difference of two means in standard errors, and Welch's degrees of freedom."""
    (first, _), (second, _) = scores[one, batch], scores[other, batch]
    a, b = standard_error(first), standard_error(second)
    freedom = (len(first) - 1) * (a**2 + b**2) ** 2 / (a**4 + b**4)
    return (second.mean() - first.mean()) / math.hypot(a, b), freedom


def bound(freedom, comparisons):
    return student_quantile(1 - 0.05 / comparisons, freedom)


for freedom in (2, 4):
    print(
        f"{freedom} degrees of freedom: the bound is {bound(freedom, 1):.1f} for one pair, "
        f"{bound(freedom, len(pairs)):.1f} for {len(pairs)} pairs"
    )
passing = {}
for batch in (25, 1):
    found = {pair: apart(*pair, batch) for pair in pairs}
    passing[batch] = [
        [pair for pair, (z, freedom) in found.items() if abs(z) > bound(freedom, count)]
        for count in (1, len(pairs))
    ]
    print(
        f"batches of {batch}: beyond the bound for one pair {len(passing[batch][0])} pairs, beyond "
        f"that for {len(pairs)} pairs {len(passing[batch][1])}"
    )
    for norm, name in contest.NORMS.items():
        if norm != "normprop":
            z, freedom = apart("normprop", norm, batch)
            print(
                f"   {name + ' minus NormProp':27} {z:+5.1f} standard errors, {freedom:.1f} degrees of "
                f"freedom, bound {bound(freedom, 1):.1f}: {'apart' if abs(z) > bound(freedom, 1) else '-'}"
            )
claim(
    "no pair passes the stricter bound, with either batch",
    not passing[25][1] and not passing[1][1],
)
naive = sum(abs(apart(*pair, 25)[0]) > bound(4, len(pairs)) for pair in pairs)
claim(
    f"with 4 degrees of freedom for all pairs, {naive} would pass it with batches of 25", naive > 0
)
leaders = list(combinations(("ws", "normprop", "batch"), 2))
claim(
    "with batches of 25, the first three places are not separated by the bound for one pair",
    not any(pair in passing[25][0] or pair[::-1] in passing[25][0] for pair in leaders),
)

# %% [markdown]
# So three seeds separate very little. By the bound for one pair, the table marks what is apart; by
# the bound for all pairs, nothing is. If you had chosen *one* pair before you saw the figure, as a
# good experiment does, the first bound would be the right one. More seeds help twice: the error bars
# shrink, and the bound falls.
#
# ## What the project itself has found
#
# The contest cannot say how they compare in larger networks, on photographs, or after longer
# training. For that, tinyprop keeps a *ledger* of finished runs in `figures/runs`: the paper's
# network and data (CIFAR-10), with more seeds, claims and rules that were registered before the runs
# (later changes are listed on its pages),
# and two scales. The *short* one has 1,000 steps, or 5 epochs. The *plateau* one has small images, a
# quarter of the width, and 32 epochs, the last two at a rate that falls to 0. This cell reads the
# ledger and judges one claim: NormProp ends at least as good as BatchNorm.

# %%
ledger = Ledger(contest.RESULTS.parent.parent / "figures" / "runs")
is_here = ledger.folder.is_dir()
verdicts, differences = {}, {}
for scale in ("short", "plateau") if is_here else ():
    make = experiments_at(SCALES[scale])["convergence"]
    study = Study([make], SCALES[scale], ledger, contest.RESULTS.parent / "runs")
    (experiment,) = study.experiments()
    decide([experiment])
    finding = next(f for f in experiment.findings if f.claim.is_about_the_end)
    (label,) = finding.comparisons
    print(f'{scale}: "{finding.claim.text}" {finding.runs} seeds: {finding.verdict}')
    for comparison in finding.comparisons[label]:
        print(f"   {label}, {comparison.measure.name}: {comparison}")
    for gate in finding.gates.values():
        print(
            f"   late epochs minus earlier ones, {finding.claim.control or 'BatchNorm'}: "
            f"{gate.drift:.1f} points; the gate asks for at most {gate.points:g}"
        )
    verdicts[scale] = finding.verdict
    differences[scale] = finding.comparisons[label]
if is_here:
    accuracy = {scale: found[0].difference.mean for scale, found in differences.items()}
    claim(
        f"in short runs NormProp is {-accuracy['short']:.1f} points worse, and the verdict is "
        f"{verdicts['short']!r}",
        verdicts["short"] == "not supported" and differences["short"][0].outcome == "worse",
    )
    claim(
        f"trained longer, the difference is {accuracy['plateau']:+.1f} points, and the verdict is "
        f"{verdicts['plateau']!r}",
        verdicts["plateau"] == "not testable at this scale",
    )
else:
    print("The ledger is not here: it is in a clone of the repository, in figures/runs.")

# %% [markdown]
# Read the two verdicts together. In short runs NormProp is clearly behind BatchNorm. Trained longer,
# the deficit is gone, and its test loss is even lower; but BatchNorm's accuracy was still changing by
# more than the registered gate allows, so the claim about the *end* of training counts as not testable
# at this scale. A gate that was registered beforehand keeps us from choosing, afterwards, the moment at
# which to compare. That NormProp is *better* than BatchNorm, these runs do not show.
# [REPRODUCTION.md](../REPRODUCTION.md) has the verdicts on all claims of the paper that have runs so
# far, and says which are still missing.
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
