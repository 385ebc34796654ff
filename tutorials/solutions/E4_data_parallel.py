# %% [markdown]
# # Solutions of elective E4: one network, four processes

# %%
import math
import sys
from itertools import pairwise

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

# %% [markdown]
# **E4.1** Rank $r$ of $n$ gets the samples from $\lceil S r/n \rceil$ to $\lceil S (r + 1)/n
# \rceil$. The ends of one share are the beginnings of the next, so nothing is lost or taken twice.
# With 3 samples on 4 ranks the last one gets none: it adds a gradient of 0, and takes part in the
# sums.


# %%
def shares(samples, ranks):
    ends = [math.ceil(samples * r / ranks) for r in range(ranks + 1)]
    return [end - start for start, end in pairwise(ends)]


check("E4.1", shares)
print(shares(24, 4), shares(3, 4))

# %% [markdown]
# **E4.2** A float64 has 53 binary digits, so next to $10^{16}$ the numbers are 2 apart: $10^{16} +
# 1$ is rounded to $10^{16}$, and the 1 is lost. If the large numbers meet first, it survives.

# %%
three_numbers = (1.0, 1e16, -1e16)

check("E4.2", three_numbers)

# %% [markdown]
# **E4.3** Try all $n$. With 100 ms of computing and 8 ms to send the gradients, the meeting takes
# nearly 16 ms as soon as there are a few ranks, and computing $100/n$: the bytes decide, not the
# latency.


# %%
def too_many_ranks(compute, send):
    n = 1
    while 0.05 * math.log2(n) + 2 * (n - 1) / n * send <= compute / n:
        n += 1
    return n


check("E4.3", too_many_ranks)
print(f"100 ms of computing, 8 ms to send: from {too_many_ranks(100, 8)} ranks on")
