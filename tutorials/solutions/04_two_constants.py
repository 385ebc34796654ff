"""Solutions of lesson 4: the two constants."""

import math

import tinyprop as tp

# Exercise 1. By symmetry E[X; X > 0] = c2 and E[X; X < 0] = -c2, and each half has half of the second moment: mean = c2
# - a c2, second moment = 1/2 + a^2/2.

for a in (-2.0, 0.0, 0.25, 1.0, 3.0):
    mean = (1 - a) / math.sqrt(2 * math.pi)
    variance = (1 + a * a) / 2 - mean**2
    assert math.isclose(variance, ((1 + a * a) - (1 - a) ** 2 / math.pi) / 2)
    prelu = tp.moments.gaussian("prelu", a=a)
    assert math.isclose(prelu.mean, mean, abs_tol=1e-14)
    assert math.isclose(prelu.std, math.sqrt(variance))

# Exercise 2. The variance has a relative standard error of sqrt((kurtosis - 1) / N), its root half of that. ReLU of a
# normal number has E y^3 = 2 c2 and E y^4 = 3/2, about its mean:

c2 = 1 / math.sqrt(2 * math.pi)
variance = 0.5 - c2**2
fourth = 1.5 - 4 * c2 * (2 * c2) + 6 * c2**2 * 0.5 - 3 * c2**4
kurtosis = fourth / variance**2
assert math.isclose(kurtosis - 3, 2.407639241597, rel_tol=1e-9)


def samples_needed(error):
    return (kurtosis - 1) / 4 / error**2


print(f"{samples_needed(0.00064):.2g} samples for 0.064 %, {samples_needed(1e-10):.2g} for ten digits")
assert 2.6e6 < samples_needed(0.00064) < 2.8e6
assert samples_needed(1e-10) > 1e20  # a million samples a second would take millions of years
measured = tp.moments.simulate("relu", samples=100_000)
assert math.isclose(measured.std_error / measured.std, math.sqrt((kurtosis - 1) / 4 / 100_000), rel_tol=0.05)

# Exercise 3. A number that is subtracted from a row does not change its variance: this is 1/std of the normal numbers
# themselves. The recipe's expectation is sqrt(256/255), and the standard error for N normal numbers is 1/sqrt(2 N).

draws = 1024 * 256
expected, error = math.sqrt(256 / 255), 1 / math.sqrt(2 * draws)
z = (1.0002083778381348 - expected) / error
print(f"{z:.2f} standard errors from what the recipe gives on average: nothing strange")
assert abs(z) < 2
