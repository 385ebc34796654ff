import pickle

import pytest

import tinyprop as tp
from tinyprop.engine.errors import explain

ERRORS = {
    tp.ShapeError: ValueError,
    tp.EditError: ValueError,  # as NumPy's refusal to edit a read-only array
    tp.GradientError: RuntimeError,
    tp.DivergenceError: ArithmeticError,
    tp.StateError: Exception,
    tp.DataError: Exception,
}


@pytest.mark.parametrize("error", ERRORS)
def test_the_message_has_three_parts_and_survives_pickling(error):
    raised = error("2 of them", "there is one", "one")
    assert str(raised) == "got:  2 of them\nrule: there is one\ntry:  one" == explain(*raised.args)
    again = pickle.loads(pickle.dumps(raised))  # as between the processes of a cluster
    assert type(again) is error
    assert str(again) == str(raised)


@pytest.mark.parametrize(("error", "builtin"), [*ERRORS.items(), (tp.BackendError, RuntimeError)])
def test_errors_have_public_names_and_are_those_that_python_has_for_the_purpose(error, builtin):
    assert error.__module__ == "tinyprop"
    assert getattr(tp, error.__name__) is error
    assert issubclass(error, builtin)
