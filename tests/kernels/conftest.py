import pytest


@pytest.fixture
def tiles_for_few_outputs(monkeypatch):
    """Tiles are used for small images, too, if there are enough channels."""
    from tinyprop.kernels import tiles

    monkeypatch.setattr(tiles, "LEAST_PRODUCTS", dict.fromkeys(tiles.LEAST_PRODUCTS, 0))
    tiles.pays.cache_clear()
    yield
    tiles.pays.cache_clear()
