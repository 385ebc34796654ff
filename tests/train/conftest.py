"""What the tests of whole runs share."""

import os

import pytest


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """To flush a real disk takes longer than these trainings, and shows nothing: faults.py
    simulates what one loses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
