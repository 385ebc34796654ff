"""The ledger: complete, exact, honest, and able to notice what is wrong."""

import pkgutil
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from mpmath import mp

import tinyprop as tp
from tests.helpers import quick_only
from tinyprop.verify import (
    Case,
    Estimate,
    Sampler,
    canonical_claims,
    closed_forms,
    init_claims,
    judge,
    pooling_claims,
    residual_claims,
)
from tinyprop.verify.case import UNSETTLED
from tinyprop.verify.ledger import LEDGER, key
from tinyprop.verify.networks import gaussian, random_layer, singular_values, whole_jacobian

IDS = [f"C{i:02}" for i in range(1, 46)] + [f"G{i}" for i in range(1, 7)]
OTHERS = [f"N{i:02}" for i in range(1, 31)]
FAMILIES = ("normprop", "batchnorm", "layernorm", "init", "residual", "dyt")


# these take a quarter of a second or more
EXPENSIVE = ["C15", "C20", "C37", "C38", "G1", "G2", "G4", "N03", "N08", "N12", "N21", "N24"]
EXPENSIVE += ["N25", "N29", "N30"]
QUICK = [id for id in IDS + OTHERS if id not in EXPENSIVE]


def test_every_claim_is_there():
    assert [claim.id for claim in tp.verify.claims("all")] == IDS + OTHERS


@pytest.mark.parametrize("id", quick_only(QUICK, IDS + OTHERS))
def test_a_claim_is_settled_as_derived_and_says_what_it_is_about(id):
    claim = LEDGER[key(id)]
    (result,) = tp.verify.run([id], samples=20_000 if id in IDS else 1000, seed=1)
    assert result.verdict == claim.expected
    assert claim.statement.endswith(".")
    assert len(claim.derivation) > 40
    assert claim.section
    assert 10 < len(result.reason) < 120
    assert str(result).startswith(f"{id} {claim.statement} {result.verdict}: ")


def test_every_claim_has_one_family_and_the_papers_are_the_default():
    families = {family: [claim.id for claim in tp.verify.claims(family)] for family in FAMILIES}
    assert sorted(id for ids in families.values() for id in ids) == IDS + OTHERS
    assert families["normprop"] == [claim.id for claim in tp.verify.claims()] == IDS
    assert (families["layernorm"], families["dyt"]) == (["N13", "N14", "N15"], ["N28", "N29"])
    assert [r.id for r in tp.verify.run(family="layernorm", samples=1000)] == families["layernorm"]
    with pytest.raises(ValueError, match="no family 'norm'\nrule: it is one of normprop,"):
        tp.verify.claims("norm")
    with pytest.raises(ValueError, match="rule: claims or a family, not both"):
        tp.verify.run(["N01"], family="batchnorm")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_run_is_as_expected(family):
    assert [r.id for r in tp.verify.run(family=family) if not r.as_expected] == []


@pytest.mark.slow
def test_no_two_claims_share_random_numbers(monkeypatch):
    """They are separate evidence. Samples of the same name are the same."""
    names = {}
    tally = Sampler.tally

    def noted(sampler, name, *args, **settings):
        names[id].add(name)
        return tally(sampler, name, *args, **settings)

    monkeypatch.setattr(Sampler, "tally", noted)
    for id in IDS + OTHERS:
        names[id] = set()
        tp.verify.run([id], samples=1000)
    for one, other in combinations(names, 2):
        assert not names[one] & names[other], (one, other)


mp.dps = 30
PI = mp.pi
C1 = mp.sqrt((1 - 1 / PI) / 2)
CHI = PI / (PI - 1)


def normal_mean(f):
    """E f(Z)."""
    return mp.quad(lambda z: f(z) * mp.npdf(z), [-12, -2, 0, 2, 12])


def selu(z):
    alpha, scale = mp.mpf("1.6732632423543772848"), mp.mpf("1.0507009873554804934")
    # and its slope
    return scale * (z if z > 0 else alpha * mp.expm1(z)), scale * (
        1 if z > 0 else alpha * mp.exp(z)
    )


def largest(k, f):
    """E f of the largest of k normals."""
    return mp.quad(
        lambda x: f(x) * k * mp.npdf(x) * mp.ncdf(x) ** (k - 1), [-10, -4, -1, 0, 1, 2, 4, 10]
    )


REFERENCES = {
    "C01": lambda: 1 / mp.sqrt(2 * PI),
    "C02": lambda: (1 - 1 / PI) / 2,
    "C03": lambda: 3 / mp.sqrt(2 * PI),
    "C04": lambda: (5 - 9 / PI) / 2,
    "C08": lambda: mp.sqrt(mp.mpf(255) / 511),
    "C12": lambda: CHI,
    "C13": lambda: mp.mpf("0.1") * (PI - mp.acos(mp.mpf("0.1"))) / (2 * PI * C1**2),
    "C14": lambda: CHI,
    "C15": lambda: (1 + mp.sqrt(0.5)) / C1,
    "C17": lambda: CHI**9,
    "C18": lambda: mp.mpf("7.62802757606374"),
    "C19": lambda: CHI / mp.mpf("1.21") ** 2,
    "C22": lambda: ((mp.sqrt(0.75) + (PI - mp.acos(0.5)) / 2) - 1) / (2 * PI * C1**2),
    "C25": lambda: largest(9, lambda x: max(x, mp.mpf(0))),
    "C31": lambda: mp.sqrt(normal_mean(lambda z: mp.tanh(z) ** 2)),
    "C34": lambda: mp.mpf(147) / 51,
    "C36": lambda: mp.mpf(2),
    "C37": lambda: mp.sqrt(3) / 4,
    "C41": lambda: -mp.mpf(3) / 4 / (mp.sqrt(2 * PI) * C1),
    "C45": lambda: mp.sqrt(2 / PI),
    "G2": lambda: mp.ncdf(1) / (2 * mp.ncdf(1) + mp.npdf(1) - (mp.ncdf(1) + mp.npdf(1)) ** 2),
    "N03": lambda: mp.sqrt(CHI),
    "N04": lambda: mp.sqrt(31) * mp.gamma(mp.mpf(31) / 2) / (2 * mp.sqrt(PI) * mp.gamma(16)),
    "N05": lambda: mp.mpf(6) / 5,
    "N08": lambda: (mp.sqrt(1 - mp.mpf(1) / 49) + mp.acos(mp.mpf(1) / 7) / -7) / PI,
    "N14": lambda: mp.mpf(31 * 30) / (32 * 29),
    "N15": lambda: mp.mpf(31 * 31) / (32 * 30),
    "N20": lambda: normal_mean(lambda z: selu(z)[1] * z) / 2,
    "N21": lambda: normal_mean(lambda z: selu(z)[1] ** 2) ** 32,
    "N22": lambda: C1,
    "N24": lambda: mp.mpf(11),
    "N28": lambda: normal_mean(lambda z: mp.tanh(z / 2) ** 2),
    "N30": lambda: (
        (1 + normal_mean(lambda z: mp.sech(z) ** 4) / normal_mean(lambda z: mp.tanh(z) ** 2)) / 2
    ),
}


@pytest.mark.parametrize("id", REFERENCES)
def test_exact_values(id):
    head = next(LEDGER[key(id)].measure(Sampler(samples=1000)))
    assert head.exact == pytest.approx(float(REFERENCES[id]()), rel=1e-12)


def test_exact_values_of_recursions_and_integrals():
    """References to the digits to which they were derived by hand, and 30-digit integrals."""
    assert closed_forms.depth_recursion(1 / 1.21, 50)[0, [0, 1, 8, 49]] == pytest.approx(
        [0.683013, 0.466507, 0.065866, 0.003676], abs=5e-7
    )
    e9 = largest(9, lambda x: max(x, mp.mpf(0)))
    variance = largest(9, lambda x: (max(x, mp.mpf(0)) - e9) ** 2)
    references = float((e9 - 1 / mp.sqrt(2 * PI)) / C1), float(mp.sqrt(variance) / C1)
    assert closed_forms.max_pool(9, 0.0) == pytest.approx(references, rel=1e-12)
    for gamma, settled in ((0.95, 0.45592), (0.9, 0.34248), (0.85, 0.27499), (0.7, 0.16090)):
        assert closed_forms.fixed_point(gamma) == pytest.approx(settled, abs=5e-6)
    assert closed_forms.product_moments(128, 9)[0] == pytest.approx(21.3491, abs=5e-5)
    # of ReLU(sqrt(1/2) (Z + m))
    shift = largest(9, lambda m: mp.sqrt(0.5) * (m * mp.ncdf(m) + mp.npdf(m)))
    assert residual_claims.derf_gain(12, 0.5) == pytest.approx(6.710321403, rel=1e-9)
    assert init_claims.tanh_recursion(50) == pytest.approx((0.010219334856, 0.0143347722), rel=1e-8)
    assert closed_forms.max_pool(9, 0.5)[0] == pytest.approx(
        float((shift - 1 / mp.sqrt(2 * PI)) / C1), rel=1e-12
    )


CHEAP = ["C01", "C02", "C03", "C10", "C12", "C13", "C22", "C23", "C31", "C36", "C41", "C45"]


@pytest.mark.slow
def test_intervals_are_honest():
    """Of 200 intervals of each claim, 190 are to contain the exact value. A claim fails with
    probability 3e-4 if its intervals are honest, and nearly surely if they contain it 85 % of the
    time; all together within 4 deviations."""
    missed = dict.fromkeys(CHEAP, 0)
    for seed in range(200):
        for id in CHEAP:
            head = next(LEDGER[key(id)].measure(Sampler(samples=2000, seed=seed, threads=1)))
            missed[id] += not head.estimate.low <= head.exact <= head.estimate.high
    assert max(missed.values()) <= 22, missed
    total = sum(missed.values())
    assert abs(total - 10.0 * len(CHEAP)) < 4 * (9.5 * len(CHEAP)) ** 0.5, missed


def test_a_wrong_formula_is_caught():
    """Each exact value, moved by 8 standard errors, contradicts its measurement."""
    for result in tp.verify.run(CHEAP, samples=20_000):
        head = result.cases[0]
        assert not head.contradicted
        wrong = replace(head, exact=head.exact + 8.0 * head.estimate.standard_error)
        assert judge((wrong, *result.cases[1:])) == UNSETTLED


OFF_BY_A_TENTH = {
    "N03": "normalizer_claims.JACOBIAN_FACTOR",
    "N04": "closed_forms.sphere_relu_mean",
    "N05": "normalizer_claims.batch_norm_gain",
    "N06": "normalizer_claims.batch_norm_gain",
    "N07": "normalizer_claims.batch_norm_gain",
    "N11": "init_claims.tanh_recursion",
    "N12": "closed_forms.orthogonal_moments",
    "N14": "normalizer_claims.norm_gain",
    "N15": "normalizer_claims.norm_gain",
    "N17": "init_claims.CHI",
    "N19": "init_claims.SELU_ALPHA",
    "N23": "init_claims.correlation_after",
    "N25": "residual_claims.residual_gain",
    "N29": "residual_claims.tanh_residual",
    "N30": "residual_claims.residual_gain",
}


def larger(right):
    """A number that is 10 % too large, or the function that returns such numbers."""
    if not callable(right):
        return 1.1 * right
    return lambda *a, **k: (
        tuple(1.1 * x for x in y) if isinstance(y := right(*a, **k), tuple) else 1.1 * y
    )


WRONG = [
    ("C01", "functional.relu", lambda right: lambda x: right(x) * 1.01),
    ("C11", "verify.canonical_claims.patch_covariance", lambda right: lambda *a: 1.01 * right(*a)),
    ("C14", "verify.jacobian_claims.jacobian_kernel", lambda right: lambda rho: 0.96 * right(rho)),
    pytest.param(
        "C20",
        "verify.depth_claims.depth_recursion",
        lambda right: lambda *a: 0.93 * right(*a),
        marks=pytest.mark.slow,
    ),
    pytest.param(  # by the luck of weights, which is then not 0
        "C20",
        "functional.normprop",
        lambda right: lambda x, w, gamma, *a, **k: right(x, w, 1.02 * gamma, *a, **k),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "C17", "verify.jacobian_claims.CHI", lambda right: 1.01 * right, marks=pytest.mark.slow
    ),
    ("C31", "verify.moment_claims.C1", lambda right: 1.01 * right),
    pytest.param(
        "C37",
        "verify.moment_claims.PIXELS",
        lambda right: right | {"laplace": (0.125**0.5, 2.0, 30.0)},
        marks=pytest.mark.slow,
    ),
    ("C38", "verify.depth_claims.depth_recursion", lambda right: lambda *a: 0.85 * right(*a)),
    ("C42", "verify.training_claims.significance", lambda right: lambda *a: 1.1 * right(*a)),
    ("C43", "verify.training_claims.significance", lambda right: lambda *a: 1.1 * right(*a)),
    *(
        pytest.param(id, f"verify.{place}", larger, marks=pytest.mark.slow)
        for id, place in OFF_BY_A_TENTH.items()
    ),
]


@pytest.mark.parametrize(("id", "place", "wrong"), WRONG)
def test_a_wrong_engine_or_number_is_caught(id, place, wrong, monkeypatch):
    monkeypatch.setattr(f"tinyprop.{place}", wrong(pkgutil.resolve_name(f"tinyprop.{place}")))
    (result,) = tp.verify.run([id])
    assert result.verdict == UNSETTLED
    assert not result.as_expected


def test_a_single_violation_refutes_a_bound(monkeypatch):
    """In one of many matrices; the mean of such a count lies within its error bar of 0."""
    right = canonical_claims.error_and_bound
    calls = []

    def wrong_once(covariance):
        error, bound = right(covariance)
        calls.append(bound)
        return (1.01 * bound if len(calls) == 100 else error), bound

    monkeypatch.setattr(canonical_claims, "error_and_bound", wrong_once)
    (result,) = tp.verify.run(["C05"], threads=1)
    assert result.cases[0].estimate.mean == 1
    assert (result.verdict, result.reason[:11]) == (UNSETTLED, "1 violation")


def test_sizes_of_maps_are_computed_from_the_architecture(monkeypatch):
    """Another one, whose first pool has no padding, has other sizes."""
    other = pooling_claims.NIN.replace("P(3,2,1,max)", "P(3,2,0,max)")
    monkeypatch.setattr(pooling_claims, "NIN", other)
    (result,) = tp.verify.run(["C40"])
    assert (result.verdict, "32, 15, 15" in result.reason) == ("holds", True)


def test_the_second_term_of_a_growth_is_noticed(monkeypatch):
    """ln p = 2 k sqrt(L) + d ln L: with another d, the claim is not settled."""
    right = residual_claims.derf_gain
    monkeypatch.setattr(residual_claims, "derf_gain", lambda L, a: right(L, a) * L**0.1)
    (result,) = tp.verify.run(["N29"], samples=1000)
    contradicted = [case.what for case in result.cases if case.contradicted]
    assert "growth of ln p - d ln L with sqrt(L), Derf" in contradicted


def test_a_wrong_paper_is_told_from_a_right_one():
    estimate = Estimate.from_error(0.39894, 1e-4, 10**6)
    assert judge((Case("mean", 0.3989422804, 0.3989422804, estimate),)) == "holds"
    assert judge((Case("mean", 0.41, 0.3989422804, estimate),)) == "approximate"
    assert judge((Case("mean", 0.6, 0.3989422804, estimate),)) == "does not hold as stated"
    assert judge((Case("mean", 0.40, 0.3989422804, estimate, rounding=0.005),)) == "holds"
    assert (
        judge((Case("mean", 0.40, 0.3989422804, estimate, rounding=0.005, scatter=0.3),))
        == "in expectation only"
    )
    assert judge((Case("mean", 0.6, 0.3989422804, estimate, judged=False),)) == "empirical"
    assert judge((Case("bound", 0.6, 0.3989422804, estimate, "at most"),)) == "holds"
    assert (
        judge((Case("bound", 0.3, 0.3989422804, estimate, "at most"),)) == "does not hold as stated"
    )
    assert (
        judge((Case("no number", 1.0, None, Estimate(float("nan"), 0.0, 8)),))
        == "does not hold as stated"
    )
    assert judge((Case("no number", 1.0, 1.0, Estimate(float("nan"), 0.0, 8)),)) == UNSETTLED
    assert (
        judge((Case("other", 0.3989, 0.3989422804, estimate, "differs from"),))
        == "does not hold as stated"
    )
    assert judge((Case("other", 0.2, 0.3989422804, estimate, "differs from"),)) == "holds"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_results():
    ids = ["C01", "C17", "C21", "C36", "C37"]
    assert tp.verify.run(ids, samples=5000, seed=3, threads=1) == tp.verify.run(
        ids, samples=5000, seed=3, threads=3
    )
    one, other = (tp.verify.run(ids, samples=5000, seed=seed) for seed in (3, 4))
    assert not {r.estimate.mean for r in one} & {r.estimate.mean for r in other}


def test_running_leaves_the_generator_of_weights_alone():
    tp.manual_seed(7)
    expected = tp.nn.Linear(3, 2).weight.numpy()
    tp.manual_seed(7)
    tp.verify.run(["C36", "C40"], samples=1000)
    np.testing.assert_array_equal(tp.nn.Linear(3, 2).weight.numpy(), expected)


def test_it_runs_where_threads_do_not_exist(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    expected = tp.verify.run(["C01", "C21"], samples=5000)
    monkeypatch.setattr("threading.Thread.start", start)
    assert tp.verify.run(["C01", "C21"], samples=5000) == expected


def test_importing_it_loads_nothing_heavy():
    code = "import sys, tinyprop.verify; print({'matplotlib', 'threadpoolctl'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "set()\n"
    )


def test_unknown_claims_are_refused():
    with pytest.raises(
        ValueError, match=r"no claim 'C99'\nrule: ids are C01 to C45, G1 to G6, N01 to N30"
    ):
        tp.verify.run(["C01", "C99"])
    assert [r.id for r in tp.verify.run(["n1", "g03", "c26"])] == ["C26", "G3", "N01"]


# The engine's Jacobians.


def test_the_whole_jacobian_is_that_of_the_engine(backend):
    random = np.random.default_rng(0)
    with tp.use_backend(backend):
        network = tp.nn.Sequential(*(random_layer(random, 6, 6, gamma=1.0) for _ in range(3)))
        x = gaussian(random, 6)
        by_copies, by_rows = (
            whole_jacobian(network, x),
            tp.jacobian(network, x).numpy(),
        )
        np.testing.assert_allclose(by_copies, by_rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 7), (3, 8), (8, 3)])
def test_singular_values_without_a_decomposition(shape, rng):
    jacobian = rng.normal(size=shape)
    jacobian[1::3] = 0.0
    expected = np.linalg.svd(jacobian, compute_uv=False)
    np.testing.assert_allclose(singular_values(jacobian), expected, atol=1e-7)


# Either backend.


EITHER = (
    "C01 C04 C06 C08 C12 C13 C22 C30 C36 G1 G3 G6 N01 N02 N04 N10 N13 N14 N16 N19 N20 N23 N27 N28"
)


@pytest.mark.parametrize("id", EITHER.split())
def test_claims_on_either_backend(id, backend):
    (result,) = tp.verify.run([id], samples=1000, backend=backend)
    assert result.as_expected
