"""The power that each case prints, and its error bar.

The power of a case is the smallest error of its formula that the claim would notice. It is tested
by what it says: the formula is perturbed by so much, in both directions, and the verdict has to
change. Perturbed by less than that, it must not, or the power would be an understatement.
"""

import math
from dataclasses import replace

import pytest

import tinyprop as tp
from tests.helpers import quick_only
from tests.verify.test_claims import IDS, OTHERS, QUICK
from tinyprop.verify import Case, Estimate, as_derived, beside, claimed, infinite_width, judge
from tinyprop.verify.case import NEGLIGIBLE

MILLION = 10**6


def unit_of(case):
    """What an error of its formula is relative to: its value, but for 0."""
    return case.exact if abs(case.exact) > NEGLIGIBLE else 1.0


def perturbed(case, error):
    """The case with a formula that is wrong by this error."""
    return replace(case, exact=case.exact + error * unit_of(case))


def verdict_with(result, number, case):
    """The verdict on a claim with another case in the place of one of its own."""
    cases = list(result.cases)
    cases[number] = case
    return judge(tuple(cases))


def assert_noticed(result, number):
    """An error as large as the power changes the verdict, whichever sign it has."""
    case = result.cases[number]
    for error in (case.power, -case.power):
        verdict = verdict_with(result, number, perturbed(case, error))
        assert verdict != result.expected, (case.what, error)


def assert_not_understated(case):
    """An error that is smaller, by more than the measurement is off already, is not noticed."""
    off = abs((case.estimate.mean - case.exact) / unit_of(case))
    smaller = 0.98 * (case.power - 2.0 * off)
    if smaller > 0.0:
        assert not perturbed(case, smaller).contradicted


@pytest.mark.parametrize("id", quick_only(QUICK, IDS + OTHERS))
def test_each_stated_power_is_noticed_in_both_directions(id):
    (result,) = tp.verify.run([id], samples=20_000 if id in IDS else 1000, seed=1)
    assert result.as_expected
    for number, case in enumerate(result.cases):
        if case.power is None:  # nothing is compared
            assert case.exact is None or case.estimate is None
            continue
        assert_noticed(result, number)
        if case.estimate is not None:
            assert_not_understated(case)


# claims with a judged case that notices only more than 5 % with the default number of samples
WEAK: dict[str, float] = {}


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS + OTHERS)
def test_judged_cases_notice_five_percent(id):
    (result,) = tp.verify.run([id])
    assert result.as_expected
    for case in result.cases:
        if case.is_judged and case.power is not None:
            assert case.power <= WEAK.get(id, 0.05), case.what


@pytest.mark.parametrize("id", ["C01", "C12", "N04"])
def test_more_samples_buy_more_power(id):
    """100 times as many: the error bar shrinks to a tenth."""
    (few,) = tp.verify.run([id], samples=10_000)
    (many,) = tp.verify.run([id], samples=MILLION)
    assert many.cases[0].power < few.cases[0].power / 4


def test_a_case_without_a_check_has_no_power():
    wrong_already = claimed("a", 1.0, exact=1.5)
    only_shown = beside("a", exact=1.5)
    without_formula = claimed("a", 1.0, measured=1.0)
    for case in (wrong_already, only_shown, without_formula):
        assert case.power is None


def test_a_formula_alone_is_checked_to_1e_9():
    assert claimed("a", 1.5, exact=1.5).power == pytest.approx(1e-9, rel=1e-3)


def test_the_power_of_a_zero_is_absolute():
    """It covers the error bar, and what the measurement is off already."""
    case = claimed("a", 0.0, exact=0.0, measured=Estimate(0.001, 0.002, MILLION))
    assert 0.005 < case.power < 0.007


def test_a_number_of_a_law_is_judged_by_its_measurement():
    found = Estimate.from_error(0.5004, 1e-4, MILLION)
    case = claimed("a limit", as_derived, exact=0.5, measured=found)
    wrong = replace(case, exact=0.502, claimed=0.502)
    assert judge((case,)) == "holds"
    assert judge((wrong,)) == "unsettled"
    written = case.to_json()
    assert written["claimed"] is None
    assert written["relation"] == "as derived"
    assert claimed("a limit", as_derived, exact=0.5).power is None
    with pytest.raises(ValueError, match="without an exact number"):
        claimed("a limit", as_derived, measured=found)


# Limits: what networks of two widths say of infinite ones


def of_widths(law, *widths, error=0.0, n=9):
    """Estimates that follow a law of the width, with this standard error."""
    if error:
        return {width: Estimate.from_error(law(width), error, n) for width in widths}
    return {width: Estimate(law(width), 0.0, n) for width in widths}


@pytest.mark.parametrize("order", [1.0, 2.0 / 3.0])
def test_a_limit_removes_the_first_order(order):
    """With r = 4^order for widths of 50 and 200, (r y(200) - y(50)) / (r - 1) has no first order;
    its standard error follows from both."""
    by_width = of_widths(lambda n: 2.0 + 3.0 * n**-order, 50, 200, error=1e-3, n=50)
    limit = infinite_width(by_width, order)
    assert limit.estimate.mean == pytest.approx(2.0)
    ratio = 4.0**order
    expected = 1e-3 * math.hypot(ratio, 1.0) / (ratio - 1.0)
    assert limit.estimate.standard_error == pytest.approx(expected)
    assert 50 <= limit.estimate.n <= 100


def test_what_a_limit_neglects_may_be_given():
    by_width = of_widths(lambda n: 5.0 + n ** (-2.0 / 3.0), 40, 160)
    limit = infinite_width(by_width, 2.0 / 3.0, neglected=0.01)
    assert limit.neglected == pytest.approx(0.05)
    assert limit.estimate.mean == pytest.approx(5.0)


@pytest.mark.parametrize("a", [0.5, -2.0, 6.0])
def test_what_a_limit_neglects_covers_the_second_order(a):
    by_width = of_widths(lambda n: 1.0 + a / n + (a / n) ** 2, 40, 160)
    limit = infinite_width(by_width)
    assert abs(limit.estimate.mean - 1.0) <= 1.3 * limit.neglected


def test_a_limit_is_compared_with_what_it_neglects():
    by_width = of_widths(lambda n: 1.0 + 1.0 / n, 10, 40)
    case = claimed("a", 1.0, exact=1.002, measured=infinite_width(by_width))
    assert case.tolerance == pytest.approx(0.0025)
    assert not case.contradicted
    with_nothing_neglected = Case("a", 1.0, 1.002, case.estimate)
    assert with_nothing_neglected.contradicted


# Error bars


def test_an_error_bar_covers_what_the_measurement_neglects():
    found = Estimate.from_error(2.0, 0.01, MILLION)
    alone = beside("a", measured=found)
    assert alone.interval.half_width == pytest.approx(0.0196, rel=1e-3)
    case = beside("a", exact=2.1, measured=found, tolerance=0.1)
    assert case.interval.half_width == pytest.approx(0.1196, rel=1e-3)
    written = case.to_json()
    assert written["half_width"] == case.interval.half_width
    assert written["standard_error"] == found.standard_error == pytest.approx(0.01)


def test_an_error_bar_is_not_finer_than_float32():
    rounding = Estimate.from_error(1.0 + 3e-7, 1e-9, 500)
    case = claimed("a", 1.0, exact=1.0, measured=rounding)
    assert 1e-6 < case.interval.half_width < 1.1e-6


def test_a_number_without_chance_has_no_error_bar():
    measured = beside("a", exact=1.0, measured=1.001, tolerance=0.01)
    not_measured = beside("a", exact=1.0)
    assert measured.interval.half_width == 0.0
    assert not_measured.interval is None
