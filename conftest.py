"""Where tests find nothing of the user's, and what every doctest may use without importing it."""

import os

import pytest

# before NumPy is imported: several processes share the cores already
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tinyprop as tp


@pytest.fixture(autouse=True, scope="session")
def _no_data_of_the_user(tmp_path_factory):
    """Data sets are looked for in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("TINYPROP_DATA", raising=False)
        yield


@pytest.fixture(autouse=True)
def _names_for_doctests(doctest_namespace):
    doctest_namespace.update(tp=tp, F=tp.functional)
