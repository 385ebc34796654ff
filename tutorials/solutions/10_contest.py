# %% [markdown]
# # Solutions of lesson 10: the contest

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

# %% [markdown]
# **10.1** A wrong answer is a coin that shows heads with the probability $p$. The number of heads
# of $n$ coins has the variance $n p (1 - p)$, so the fraction has $p (1 - p)/n$. The two errors are
# independent, so the variance of their difference is the sum of both. For 11.0 % and 12.5 % on
# 2,000 images each, they are 1.5 standard errors apart: that may be chance. It takes $(3/1.5)^2 =
# 4$ times as many images for three. (On the *same* images, the mistakes are not independent: images
# that are hard for one network are hard for the other. Then count only the images on which the two
# disagree; the difference is usually more certain than this formula says.)


# %%
def standard_errors_apart(p, q, n):
    return abs(p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / n)


check("10.1", standard_errors_apart)
print(f"{standard_errors_apart(0.110, 0.125, 2000):.2f} standard errors")

# %% [markdown]
# **10.2** The mean of $n$ independent runs has $1/n$ of the variance of one run. The variance of
# one run is estimated about the mean of the same runs, which is nearer to them than the true mean
# is; dividing by $n - 1$ instead of $n$ makes up for it on average.


# %%
def mean_and_error(errors):
    return errors.mean(), errors.std(ddof=1) / math.sqrt(len(errors))


check("10.2", mean_and_error)

# %% [markdown]
# **10.3** Average over the seeds, so that one lucky run does not decide. Count a run that diverged
# as chance, 0.9: leaving it out would reward a rate that is good when it is lucky. Look at
# validation errors only. Whoever chooses by the test error reports a number that is too good, and
# nobody can tell by how much.


# %%
def best_rate(runs):
    rates = sorted({run["rate"] for run in runs})

    def mean_error(rate):
        return np.mean(
            [0.9 if run["valid"] is None else run["valid"] for run in runs if run["rate"] == rate]
        )

    return min(rates, key=mean_error)


check("10.3", best_rate)
