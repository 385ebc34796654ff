import threading

import pytest

import tinyprop as tp
from tinyprop.engine.context import Context, context, current


def test_a_block_changes_what_it_names_and_nothing_else():
    before = current()
    with context(plain=True), context(evaluating=True):
        assert current() == Context(**vars(before) | {"plain": True, "evaluating": True})
    assert current() is before


def test_a_block_is_left_after_an_error():
    before = current()
    with pytest.raises(KeyError), context(recording=False):
        raise KeyError
    assert current() is before


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match="has no record"), context(record=True):
        pass


def test_a_context_is_not_edited():
    with pytest.raises(AttributeError):
        current().plain = True


def test_other_threads_have_their_own():
    seen = []
    with tp.no_grad():
        thread = threading.Thread(target=lambda: seen.append(current().recording))
        thread.start()
        thread.join()
    assert seen == [True]
