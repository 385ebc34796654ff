"""Benchmarks of tinyprop: `python -m benchmarks` in a clone. They are not part of the wheel."""
