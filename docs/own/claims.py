"""Three claims of a paper of your choice, here Klambauer et al. (2017), Self-normalizing networks.

tinyprop verify claims.py -v
"""

import math

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tinyprop.verify import at_most, beside, claim, claimed

ALPHA, LAMBDA = 1.6733, 1.0507  # as the paper prints them


@claim(
    "SNN1",
    "Klambauer et al. (2017), 2",
    "SELU with alpha = 1.6733 and lambda = 1.0507 keeps mean 0 and variance 1.",
    expected="approximate",
)
def fixed_point(mc):
    """For z ~ N(0, 1), E SELU(z) and Var SELU(z) are integrals, which tinyprop computes for any
    function. They are 0 and 1 for alpha = 1.673263 and lambda = 1.050701; the printed digits are
    off by 4e-5 of alpha."""

    def selu(u):
        return LAMBDA * F.where(u > 0.0, u, ALPHA * (F.exp(F.minimum(u, 0.0)) - 1.0))

    def outputs(random, count):
        return {"selu": selu(tp.tensor(random.standard_normal(count)))}

    exact = tp.moments.gaussian(selu, kinks=(0.0,))
    found = mc.tally("selu as printed", outputs, samples=2_000_000, watch=lambda t: t.variance())
    yield claimed("variance", 1.0, exact=float(exact.std**2), measured=found.variance("selu"))
    yield claimed("mean", 0.0, exact=float(exact.mean), measured=found.mean("selu"))
    return f"the mean is {float(exact.mean):.0e}: the constants are rounded"


@claim(
    "SNN2",
    "Klambauer et al. (2017), Theorem 2",
    "A variance between 3 and 16 becomes smaller.",
)
def large_variances_shrink(mc):
    """For u ~ N(0, v), SELU(u) has a variance that grows more slowly than v, because the negative
    side is bounded. Theorem 2 has it for weights of length 1 and sum 0."""

    def outputs(random, count):
        z = random.standard_normal(count)
        return {f"{v:g}": F.selu(tp.tensor(math.sqrt(v) * z)) for v in (3.0, 16.0)}

    found = mc.tally("large variances", outputs, samples=1_000_000, watch=lambda t: t.variance())
    for v in (3.0, 16.0):
        exact = float(tp.moments.gaussian("selu", 0.0, math.sqrt(v)).std ** 2)
        measured = found.variance(f"{v:g}")
        yield claimed(f"variance after v = {v:g}", at_most(v), exact=exact, measured=measured)
    return f"{exact:.1f} instead of 16"


@claim(
    "SNN3",
    "Klambauer et al. (2017), 2",
    "Alpha dropout keeps mean 0 and variance 1.",
)
def alpha_dropout(mc):
    """A unit x of mean 0 and variance 1 is kept with probability q, and is set to A = -lambda alpha
    otherwise. Then the mean is (1 - q) A, and the variance q + A^2 q (1 - q), whatever the law of
    x. a x + b with a = (q + A^2 q (1 - q))^(-1/2) and b = -a (1 - q) A has mean 0 and variance 1.
    Plain dropout, x/q or 0, has the variance 1/q."""
    q = 0.9
    saturated = -LAMBDA * ALPHA
    a = (q + saturated**2 * q * (1.0 - q)) ** -0.5
    b = -a * (1.0 - q) * saturated

    def outputs(random, count):
        x = F.selu(tp.tensor(random.standard_normal(count))).numpy()
        kept = random.random(count) < q
        return {"alpha": a * np.where(kept, x, saturated) + b, "plain": kept * x / q}

    found = mc.tally("alpha dropout", outputs, samples=1_000_000, watch=lambda t: t.variance())
    yield claimed("variance", 1.0, exact=1.0, measured=found.variance("alpha"))
    yield claimed("mean", 0.0, exact=0.0, measured=found.mean("alpha"))
    yield beside("variance with plain dropout", exact=1.0 / q, measured=found.variance("plain"))
    return f"a = {a:.4f} and b = {b:.4f} for q = {q:g}"


if __name__ == "__main__":
    for result in tp.verify.run([fixed_point, large_variances_shrink, alpha_dropout]):
        print(result)
