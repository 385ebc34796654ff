"""The power that each case prints: tried by perturbing its formula."""

from dataclasses import replace

import pytest

import tinyprop as tp
from tests.helpers import quick_only
from tests.verify.test_claims import IDS, OTHERS, QUICK
from tinyprop.verify import Case, Estimate, as_derived, beside, claimed, infinite_width, judge
from tinyprop.verify.case import NEGLIGIBLE


def perturbed(case, error):
    """The case with a formula that is wrong by this error: relative, or absolute for 0."""
    unit = case.exact if abs(case.exact) > NEGLIGIBLE else 1.0
    return replace(case, exact=case.exact + error * unit)


def noticed(result, number, error):
    """Whether the claim gets another verdict if the formula of one case is wrong."""
    cases = list(result.cases)
    cases[number] = perturbed(cases[number], error)
    return judge(tuple(cases)) != result.expected


@pytest.mark.parametrize("id", quick_only(QUICK, IDS + OTHERS))
def test_each_stated_power_is_noticed_in_both_directions(id):
    (result,) = tp.verify.run([id], samples=20_000 if id in IDS else 1000, seed=1)
    assert result.as_expected
    for number, case in enumerate(result.cases):
        if case.power is None:
            assert case.exact is None or case.estimate is None
            continue
        for error in (case.power, -case.power):
            assert noticed(result, number, error), (case.what, error)
        if case.estimate is not None:  # not more than it needs: a smaller error is not noticed
            off = abs(case.estimate.mean - case.exact)
            unit = abs(case.exact) if abs(case.exact) > NEGLIGIBLE else 1.0
            smaller = 0.98 * (case.power - 2.0 * off / unit)
            assert smaller <= 0.0 or not perturbed(case, smaller).contradicted


# claims with a judged case that notices only more than 5 % with the default number of samples
WEAK: dict[str, float] = {}


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS + OTHERS)
def test_judged_cases_notice_five_percent(id):
    (result,) = tp.verify.run([id])
    assert result.as_expected
    powers = [case.power for case in result.cases if case.is_judged and case.power is not None]
    assert max(powers, default=0.0) <= WEAK.get(id, 0.05)


@pytest.mark.parametrize("id", ["C01", "C12", "N04"])
def test_more_samples_buy_more_power(id):
    few, many = (tp.verify.run([id], samples=n)[0].cases[0].power for n in (10_000, 1_000_000))
    assert many < few / 4


def test_a_case_without_a_check_has_no_power():
    assert claimed("a", 1.0, exact=1.5).power is None
    assert beside("a", exact=1.5).power is None
    assert claimed("a", 1.0, measured=1.0).power is None
    assert claimed("a", 1.5, exact=1.5).power == pytest.approx(1e-9, rel=1e-3)
    absolute = claimed("a", 0.0, exact=0.0, measured=Estimate(0.001, 0.002, 10**6)).power
    assert 0.005 < absolute < 0.007


def test_a_number_of_a_law_is_judged_by_its_measurement():
    found = Estimate.from_error(0.5004, 1e-4, 10**6)
    case = claimed("a limit", as_derived, exact=0.5, measured=found)
    assert judge((case,)) == "holds"
    assert judge((replace(case, exact=0.502, claimed=0.502),)) == "unsettled"
    assert (case.to_json()["claimed"], case.to_json()["relation"]) == (None, "as derived")
    assert claimed("a limit", as_derived, exact=0.5).power is None
    with pytest.raises(ValueError, match="without an exact number"):
        claimed("a limit", as_derived, measured=found)


# -- limits


@pytest.mark.parametrize("order", [1.0, 2.0 / 3.0])
def test_a_limit_removes_the_first_order(order):
    by_width = {n: Estimate.from_error(2.0 + 3.0 * n**-order, 1e-3, 50) for n in (50, 200)}
    limit = infinite_width(by_width, order)
    assert limit.estimate.mean == pytest.approx(2.0)
    ratio = 4.0**order
    weights = ratio / (ratio - 1.0), 1.0 / (ratio - 1.0)
    expected = 1e-3 * (weights[0] ** 2 + weights[1] ** 2) ** 0.5
    assert limit.estimate.standard_error == pytest.approx(expected)
    assert 50 <= limit.estimate.n <= 100


def test_what_a_limit_neglects_may_be_given():
    by_width = {n: Estimate(5.0 + n ** (-2.0 / 3.0), 0.0, 9) for n in (40, 160)}
    limit = infinite_width(by_width, 2.0 / 3.0, neglected=0.01)
    assert limit.neglected == pytest.approx(0.05)
    assert limit.estimate.mean == pytest.approx(5.0)


@pytest.mark.parametrize("a", [0.5, -2.0, 6.0])
def test_what_a_limit_neglects_covers_the_second_order(a):
    by_width = {n: Estimate(1.0 + a / n + (a / n) ** 2, 0.0, 9) for n in (40, 160)}
    limit = infinite_width(by_width)
    assert abs(limit.estimate.mean - 1.0) <= 1.3 * limit.neglected


def test_a_limit_is_compared_with_what_it_neglects():
    by_width = {n: Estimate(1.0 + 1.0 / n, 0.0, 9) for n in (10, 40)}
    case = claimed("a", 1.0, exact=1.002, measured=infinite_width(by_width))
    assert case.tolerance == pytest.approx(0.0025)
    assert not case.contradicted
    assert Case("a", 1.0, 1.002, case.estimate).contradicted
