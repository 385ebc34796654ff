"""The picture at the front: what depth does to signals."""

import numpy as np
import pytest

from tinyprop import demo, plots


@pytest.fixture(scope="module")
def signals():
    return demo.signals_by_depth()


def test_only_normprop_keeps_the_signal(signals):
    plain, batch, normprop = signals.values()
    assert plain["layer 1"].std() == pytest.approx(1, abs=0.05)
    assert plain["layer 10"].std() < 0.1
    for values in normprop.values():
        assert values.std() == pytest.approx(1, abs=0.05)
        assert abs(values.mean()) < 0.05
    for values in batch.values():
        assert np.median(abs(values)) == pytest.approx(1, abs=1e-3), "of two values, one is as far up as one is down"


def test_the_picture_has_a_ridge_for_each_layer(signals):
    figure = plots.ridges(signals, "x")
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(signals)
    for axes, rows in zip(figure.axes, signals.values(), strict=True):
        assert len(axes.collections) == len(rows)
        assert [text.get_text() for text in axes.texts] == [f"std {values.std():.2f}" for values in rows.values()]
