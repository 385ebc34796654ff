"""Speed: faster ways to compute single ops, registered as overrides. Without this room all results
stay the same, up to rounding. The order of the imports is the order in which overrides of the same
rule are asked."""

from . import fused, pointwise, tiles, phases, fourier, host, weights, cuda, blas  # isort: skip

__all__ = ["blas", "cuda", "fourier", "fused", "host", "phases", "pointwise", "tiles", "weights"]
