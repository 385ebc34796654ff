"""A differential fuzzer: random programs, whose results are compared with a second way to get them.

    python -m tests.fuzz --seconds 600 --seed 7                   all kinds, in equal shares of time
    python -m tests.fuzz --seconds 60 --kind pools --kind moments
    python -m tests.fuzz --kind pools --case 123                  one case again
    python -m tests.fuzz --seconds 600 --seed 7 --markdown FILE   and write the counts as a table

A kind of case is a module with a function `draw(rng)` that makes a `Case` from random numbers;
`kinds.py` lists them. A kind and an integer determine a case completely, so what was found once can
be had again: enter it in `found.toml`, whose cases are checked before any others.
"""
