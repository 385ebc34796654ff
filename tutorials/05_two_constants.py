# %% [markdown]
# # 5. The two constants
#
# **Goal.** Derive the two numbers that Normalization Propagation rests on, measure them with honest
# error bars, and find out why a famous table has them wrong in the fourth digit.
#
# BatchNorm *measures* mean and standard deviation in every batch. Normalization Propagation
# (NormProp for short; Arpit et al., 2016) *computes* them. If the number $X$ that enters a ReLU is
# standard normal (a bell curve with mean 0 and standard deviation 1), what comes out is not: it has
# a mean $c_2$ above 0 and a standard deviation $c_1$ below 1. Subtract the one, divide by the
# other, and the output is normalised again, without a look at any batch:
# $$ o = \frac{\max(0, X) - c_2}{c_1}. $$

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, RED, check, hint, panels, predict, reveal, show

# %%
random = np.random.default_rng(0)
x = random.standard_normal(200_000)
relu = np.maximum(x, 0)
c2, c1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)

# %% tags=["hide-input"]
figure, every = panels(3, 9.0, 2.7)
titles = ("before: $X$", r"after ReLU: $\max(0, X)$", r"normalised: $(\max(0, X) - c_2) / c_1$")
for axes, values, title in zip(every, (x, relu, (relu - c2) / c1), titles, strict=True):
    axes.hist(values, bins=np.linspace(-3, 4, 71), density=True, color=BLUE, alpha=0.75)
    mean, std = values.mean(), values.std()
    axes.errorbar([mean], [0.75], xerr=[std], fmt="o", color=RED, capsize=4, linewidth=1.8)
    label = f"mean {abs(mean):.2f}, std {std:.2f}"
    axes.text(3.9, 0.84, label, color=RED, va="center", ha="right", fontsize=9)
    axes.set(title=title, ylim=(0, 0.9), xlim=(-3, 4), yticks=[])
show(
    figure,
    f"Three histograms. X: a bell curve, mean {x.mean():.2f}, standard deviation {x.std():.2f}. After "
    f"ReLU: half of it at 0, mean {relu.mean():.2f}, standard deviation {relu.std():.2f}. Normalised: the "
    "same shape, shifted and stretched to mean 0 and standard deviation 1.",
)

# %% [markdown]
# ## Derive them
#
# Half of the time $X$ is negative and ReLU gives 0; the other half it gives $|X|$. So with the
# density $\varphi(x) = e^{-x^2/2} / \sqrt{2\pi}$, whose derivative is $-x\,\varphi(x)$,
# $$ c_2 = \int_0^\infty x\,\varphi(x)\,dx = \Big[-\varphi(x)\Big]_0^\infty = \varphi(0) = \frac{1}{\sqrt{2\pi}}. $$
# The mean of the square is half of $E X^2 = 1$, and so
# $$ c_1^2 = \frac12 - c_2^2 = \frac12 \Big(1 - \frac1\pi\Big). $$
# This is the paper's Remark 1. `tp.moments.gaussian` knows it, and the same for any mean, spread
# and activation.

# %%
exact = tp.moments.gaussian("relu")
print(f"c2 = {c2:.12f}   tinyprop {exact.mean:.12f}")
print(f"c1 = {c1:.12f}   tinyprop {exact.std:.12f}")

# %% [markdown]
# ## Measure them, with error bars
#
# An estimate without an error bar says nothing. Draw $N$ normal numbers, apply ReLU, take the mean.
# Another draw would give another mean; the standard deviation of these means is called the
# *standard error*, and it is $c_1 / \sqrt N$: a hundred times the samples for one more digit. For
# the standard deviation it follows from the fourth moment (exercise 5.2).

# %%
QUESTION = "standard error of c2 with 10,000 samples"
predict(QUESTION)

# %%
sizes = [10**k for k in range(2, 7)]
estimates = [tp.moments.simulate("relu", samples=n, seed=n) for n in sizes]
for n, e in zip(sizes, estimates, strict=True):
    print(
        f"{n:9,} samples: c2 = {e.mean:.5f} +- {e.mean_error:.5f}   c1 = {e.std:.5f} +- "
        f"{e.std_error:.5f}"
    )
reveal(QUESTION, estimates[2].mean_error)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.9)
axes.axhline(0, color=BLACK, linewidth=1)
for shift, name, colour in ((0.93, "mean", BLUE), (1.07, "std", RED)):
    off = [getattr(e, name) - getattr(exact, name) for e in estimates]
    bars = [2.576 * getattr(e, f"{name}_error") for e in estimates]
    axes.errorbar(np.array(sizes) * shift, off, bars, fmt="o", color=colour, capsize=3)
axes.text(84, 0.1, "$c_2$", color=BLUE, ha="right")
axes.text(127, 0.1, "$c_1$", color=RED)
axes.set(
    title="Estimate minus exact value; bars: 99 %",
    xlabel="samples",
    xscale="log",
    xlim=(50, 2e6),
    ylim=(-0.18, 0.18),
)
show(
    figure,
    "Estimates of the two constants minus their exact values, with 99 % error bars that contain 0 and "
    + "shrink with the samples: for c2 from "
    + f"{2.576 * estimates[0].mean_error:.2f} with {sizes[0]} to {2.576 * estimates[-1].mean_error:.4f} "
    + f"with {sizes[-1]:,}.",
)

# %% [markdown]
# With 10,000 samples, two digits are right. The formula costs nothing and has them all. Where there
# is no formula, numerical integration does it: for a smooth function, about a hundred well-chosen
# points do what a million samples cannot (elective E2).
#
# ## A famous table
#
# Normalizer-free networks (Brock et al., 2021) multiply each activation by a constant, which is
# $1/c_1$. Their table says 1.7139588594436646 for ReLU. Seventeen digits! But:

# %%
TABLE = 1.7139588594436646
print(f"exact {1 / c1:.10f}, table {TABLE:.10f}: {TABLE * c1 - 1:+.3%}")

# %% [markdown]
# Where do 0.064 % come from? The recipe that circulates with it (we have it from code that uses the
# table, not from its authors): draw 1024 rows of 256 normal numbers, apply ReLU, take the variance
# *of each row*, average, and return one over the root. There are two errors in it. One is chance.
# The other is small print: the variance of a row is taken about the *row's own* mean, which was
# fitted to the same 256 numbers, so it is too small by the factor 255/256 on average, and the
# constant is too large. Let us repeat the recipe with many seeds.


# %%
def recipe(seed):
    y = np.maximum(np.random.default_rng(seed).standard_normal((1024, 256), np.float32), 0)
    return y.var(axis=1).mean() ** -0.5


SEEDS = 200
errors = np.array([recipe(seed) for seed in range(SEEDS)]) * c1 - 1
bias = math.sqrt(256 / 255) - 1
scatter = errors.std(ddof=1)
print(
    f"mean error of the recipe {errors.mean():+.3%} +- {scatter / math.sqrt(SEEDS):.3%}, "
    f"expected {bias:+.3%}"
)
print(f"one draw scatters by {scatter:.3%}; the table is off by {TABLE * c1 - 1:+.3%}")

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.9)
axes.hist(100 * errors, bins=24, color=BLUE, alpha=0.75)
axes.axvline(0, color=BLACK, linewidth=1)
axes.axvline(100 * bias, color=GRAY, linestyle=":")
axes.axvline(100 * (TABLE * c1 - 1), color=RED)
top = axes.get_ylim()[1]
axes.set(
    title=f"The recipe with {SEEDS} seeds: error of $1/c_1$, %", ylim=(0, 1.2 * top), yticks=[]
)
axes.text(100 * (TABLE * c1 - 1) + 0.01, 1.1 * top, "table", color=RED)
axes.text(100 * bias + 0.01, 1.1 * top, "255/256", color=GRAY)
axes.text(-0.01, 1.1 * top, "exact", color=BLACK, ha="right")
show(
    figure,
    f"A histogram of the error of the recipe over {SEEDS} seeds, centred at {errors.mean():+.3%} with a "
    f"standard deviation of {scatter:.3%}. Lines: exact at 0, 255/256 at {bias:+.3%}, the table at "
    f"{TABLE * c1 - 1:+.3%}, well inside the histogram.",
)

# %% [markdown]
# The table is what an ordinary draw of this recipe looks like. That does not prove that it was made
# so, and the error does no harm in training. But only three of the seventeen digits are right, and
# nothing in the table says so. `tinyprop verify` therefore prints four things for every claim:
# exact value, estimate, error bar, verdict.

# %%
for r in tp.verify.run(["C01", "C02", "C31"]):
    print(f"{r.id}: exact {r.exact:.6f}, measured {r.estimate:.6f}: {r.verdict}")

# %% [markdown]
# ## Exercises
#
# **5.1** PReLU is $x$ above 0 and $a x$ below (Remark 2 of the paper). Return its mean and its
# standard deviation for standard normal $x$.


# %%
def prelu_constants(a):
    return ..., ...


check("5.1", prelu_constants)
# hint("5.1")

# %% [markdown]
# **5.2** How many samples does $c_1$ need for a relative standard error $\epsilon$? The standard
# deviation of $N$ samples has the relative standard error $\sqrt{(\kappa - 1)/(4N)}$, where
# $\kappa$ is the kurtosis, the fourth moment about the mean divided by the squared variance. For
# ReLU you can compute it from $E[y] = c_2$, $E[y^2] = \frac12$, $E[y^3] = 2 c_2$ and $E[y^4] =
# \frac32$.


# %%
def samples_needed(error): ...  # your code


check("5.2", samples_needed)

# %% [markdown]
# **5.3** The mean of a *shifted* ReLU: for $X$ with mean $\mu$ and standard
# deviation 1, what is $E \max(0, X)$? You may use $\varphi$, and $\Phi(t) = \int_{-\infty}^t
# \varphi$, which is `0.5 * math.erfc(-t / math.sqrt(2))`.


# %%
def shifted_relu_mean(mu): ...  # your code


check("5.3", shifted_relu_mean)

# %% [markdown]
# **5.4** The same table has 1.0002083778381348 for `log_softmax`, which subtracts one number from
# each row, and so does not change the variance of the row. If the recipe above made it, with other
# normal numbers, how many standard errors is it away from what the recipe gives on average? (The
# standard deviation of $N$ normal numbers has the relative standard error $1/\sqrt{2N}$.)

# %%
standard_errors_away = ...  # your number

check("5.4", standard_errors_away)

# %% [markdown]
# Solutions, with derivations: [solutions/05_two_constants.ipynb](solutions/05_two_constants.ipynb).
#
# ## Read next
#
# - [`tinyprop/moments/gaussian.py`](../tinyprop/moments/gaussian.py) and the rules, one for each
#   activation, in [`tinyprop/moments/rules.py`](../tinyprop/moments/rules.py); `tinyprop verify C31
#   --explain`.
# - Arpit et al., *Normalization propagation*, ICML 2016, section 3.2. Brock, De and Smith,
#   *Characterizing signal propagation to close the performance gap in unnormalized ResNets*, ICLR
#   2021. Klambauer et al., *Self-normalizing neural networks*, NeurIPS 2017: constants solved for,
#   not sampled.
#
# Next: [6. NormProp from equation to layer](06_normprop_layer.ipynb).
