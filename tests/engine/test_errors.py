import pickle

import pytest

import tinyprop as tp
from tinyprop.engine.errors import explain

THREE_PARTS = [tp.ShapeError, tp.GradientError, tp.StateError, tp.DataError, tp.DivergenceError, tp.EditError]


@pytest.mark.parametrize("error", THREE_PARTS)
def test_the_message_has_three_parts_and_survives_pickling(error):
    raised = error("2 of them", "there is one", "one")
    assert (
        str(raised) == "got:  2 of them\nrule: there is one\ntry:  one" == explain("2 of them", "there is one", "one")
    )
    again = pickle.loads(pickle.dumps(raised))  # as between the processes of a cluster
    assert type(again) is error
    assert str(again) == str(raised)


@pytest.mark.parametrize("error", [*THREE_PARTS, tp.BackendError])
def test_a_traceback_shows_the_public_name(error):
    assert error.__module__ == "tinyprop"
    assert getattr(tp, error.__name__) is error


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (tp.ShapeError, ValueError),
        (tp.EditError, ValueError),  # as NumPy's refusal to edit a read-only array
        (tp.GradientError, RuntimeError),
        (tp.DivergenceError, ArithmeticError),
        (tp.BackendError, RuntimeError),
    ],
)
def test_errors_are_also_those_that_python_has_for_the_purpose(error, builtin):
    assert issubclass(error, builtin)
