"""Speed: faster ways to compute single ops, registered as overrides. Without this room all results
stay the same, up to rounding. The order of the imports is the order in which overrides of the same
rule are asked."""

from . import pointwise, tiles, phases, host, weights, losses, cuda, cublas, graphs  # isort: skip

__all__ = ["cublas", "cuda", "graphs", "host", "losses", "phases", "pointwise", "tiles", "weights"]
