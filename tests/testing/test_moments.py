"""check_moments finds wrong closed forms and missing kinks, and lets sound activations pass."""

import math

import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, quick_only
from tinyprop.moments import gaussian
from tinyprop.testing import CheckError, check_moments

NAMES = list(tp.activations)


@pytest.mark.parametrize("name", quick_only(["prelu", "hardtanh", "gelu"], NAMES))
def test_our_activations_are_sound(name):
    check_moments(name)


OWN = {
    "softsign": tp.Activation(lambda u: u / (1.0 + abs(u))),
    "wave": tp.Activation(lambda u: u * F.sin(8.0 * u)),
    "cubic": tp.Activation(lambda u: u**3 - u),
    "exponential": tp.Activation(F.exp),
    "smoothstep": tp.Activation(lambda u: F.clip(u, 0, 1) ** 2 * (3.0 - 2.0 * F.clip(u, 0, 1))),
    "steep": tp.Activation(lambda u: F.sigmoid(1e4 * u)),
    "steps": tp.Activation(lambda u: F.where(u > 0.3, 1.0 + 0.0 * u, 0.1 * u), kinks=(0.3,)),
    "shrink": tp.Activation(lambda u: F.where(abs(u) > 0.5, u, 0.0 * u), kinks=(-0.5, 0.5)),
    "waves": tp.Activation(
        lambda u: abs(F.sin(3.0 * u)), kinks=[k * math.pi / 3.0 for k in range(-8, 9)]
    ),
    "learnt": tp.Activation(lambda u, a: F.tanh(a * u) + u, parameters={"a": 0.5}),
}


@pytest.mark.parametrize("name", quick_only(["smoothstep", "steps"], OWN))
def test_sound_functions_of_a_stranger_pass(name):
    check_moments(OWN[name])


def perturbed(field, factor, power=1.0):
    """ReLU with one moment that is off by a factor, or scales with the wrong power of std."""

    def moments(mean, std):
        found = gaussian("relu", mean, std)
        values = {name: getattr(found, name) for name in ("mean", "std", "slope2")}
        values[field] = values[field] * factor * std ** (power - 1.0)
        return values["mean"], values["std"], values["slope2"]

    return tp.Activation(F.relu, "wrong", kinks=(0.0,), moments=moments)


def relu_dual(factor):
    def covariance(rho, means, stds):
        return factor * tp.moments.dual("relu", rho, means, stds).covariance

    relu = tp.activations["relu"]
    return tp.Activation(F.relu, "wrong", (0.0,), moments=relu.moments, dual=covariance)


def ignores_its_parameter(mean, std, a):
    """The closed form of a = 0.25 alone."""
    found = gaussian("prelu", mean, std, a=0.25)
    return found.mean, found.std, found.slope2


def finite_slope(mean, std):
    """Of a function that jumps, with the slope that autograd sees."""
    found = gaussian(lambda u: F.where(u > 0.0, 1.0 + 0.0 * u, 0.0 * u), mean, std)
    return found.mean, found.std, 0.0 * mean


class BlindRelu(tp.Op):
    """ReLU with the slope 0.9."""

    def forward(self, x):
        return x * (x > 0)

    def backward(self, g, x):
        return 0.9 * g * (x > 0)


FAULTS = {
    "variance off by 1e-4": (perturbed("std", 1.0 + 5e-5), "closed form", "by quadrature"),
    "std off by 1e-9": (perturbed("std", 1.0 + 1e-9), "closed form", "by quadrature"),
    "mean off by 1e-3": (perturbed("mean", 1.001), "moments", "by simulation"),
    "E s'^2 off by 1 %": (perturbed("slope2", 1.01), "moments", "E s'^2"),
    "wrong away from N(0, 1)": (perturbed("std", 1.0, 1.1), "moments", "N(0.7, 0.4^2)"),
    "a covariance off by 1e-3": (relu_dual(1.001), "dual", "correlation of 0.6"),
    "a parameter without effect": (
        tp.Activation(
            F.prelu, "wrong", (0.0,), parameters={"a": 0.25}, moments=ignores_its_parameter
        ),
        "moments",
        "by the closed form",
    ),
    "a missing kink": (
        tp.Activation(lambda u: F.clip(u, -1.0, 2.0), kinks=(-1.0,)),
        "kinks",
        "jumps from 1 to 0 at 2",
    ),
    "all kinks missing": (
        tp.Activation(lambda u: abs(F.sin(3.0 * u))),
        "kinks",
        "15 such places are missing",
    ),
    "a faint kink": (tp.Activation(lambda u: u + 1e-3 * F.relu(u - 0.7)), "kinks", "at 0.7"),
    "a missing jump": (
        tp.Activation(lambda u: F.where(u > 1.0, u + 1.0, u)),
        "kinks",
        "the function jumps from 1 to 2 at 1",
    ),
    "a slope that is finite at a jump": (
        tp.Activation(
            lambda u: F.where(u > 0.0, 1.0 + 0.0 * u, 0.0 * u),
            kinks=(0.0,),
            moments=finite_slope,
        ),
        "kinks",
        "its slope is infinite",
    ),
    "not homogeneous": (
        tp.Activation(lambda u: F.relu(u - 0.1), kinks=(0.1,), homogeneous=True),
        "homogeneous",
        "homogeneous=True says",
    ),
    "no rectifier": (
        tp.Activation(F.tanh, rectifier=True),
        "rectifier",
        "s(-10) = -1, and s(10) = 1",
        "try:  rectifier=False",
    ),
    "two moments": (
        tp.Activation(F.relu, "mine", (0.0,), moments=lambda mean, std: (mean, std)),
        "moments",
        "moments= of mine, which returns a tuple of 2",
        "rule: moments(mean, std) returns a tuple",
    ),
    "NaN far out": (
        tp.Activation(lambda u: F.sqrt(u + 5.0)),
        "moments",
        "a function that is nan at u = ",
        "rule: it must be finite within 8 standard deviations",
    ),
    "a wrong gradient": (
        tp.Activation(lambda u: BlindRelu()(u), "blind", kinks=(0.0,)),
        "moments",
        "E s'^2",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name):
    activation, check, *words = FAULTS[name]
    with pytest.raises(CheckError) as caught:
        check_moments(activation, seed=4)
    failures = {failure.check: str(failure) for failure in caught.value.failures}
    assert check in failures, failures
    for word in words:
        assert word in failures[check]


def test_parameters_may_be_given():
    check_moments("leaky_relu", samples=1024, a=0.3)
    assert_explained(TypeError, lambda: check_moments("relu", a=0.3), "parameter 'a'")
    assert_explained(ValueError, lambda: check_moments("relu", samples=1), "samples=1")
    assert_explained(ValueError, lambda: check_moments("relu", error_probability=1.0), "between")


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """At a stated error probability of 5 %, of 225 checks at most 23 raise an alarm: 5 % is 11, and
    24 or more have a probability of 0.1 %."""
    alarms = 0
    for name in NAMES:
        for seed in range(15):
            try:
                check_moments(name, samples=256, error_probability=0.05, seed=seed)
            except CheckError:
                alarms += 1
    assert alarms <= 23
