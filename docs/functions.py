"""The table of the page "Functions", generated from the table of functions."""

import tinyprop.functional as F
from tinyprop.functional.table import ALL, Row

COLUMNS = ["function", "PyTorch", "integers", "bools", "domain", "kinks", "axis", "batch", ""]


def table() -> str:
    """The table, as Markdown; api/functions.md explains its columns."""
    rows = sorted(F.functions.values(), key=lambda row: row.name)
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cells(row: Row) -> list[str]:
    """What the table has in the line of a function."""
    return [
        f"`{row.name}`",
        counterpart(row),
        result(row.dtypes.i),  # unsigned ones as well
        result(row.dtypes.b),
        domains(row),
        ", ".join(kink if isinstance(kink, str) else f"{kink:g}" for kink in row.kinks),
        ", ".join(row.axes),
        {"no": ""}.get(row.across_batch, row.across_batch),
        row.note,
    ]


def counterpart(row: Row) -> str:
    if row.torch is None:
        return "none"
    renamed = [f"{ours} = {theirs}" for ours, theirs in row.renamed.items()]
    return f"`{row.torch}`" + (f" ({', '.join(renamed)})" if renamed else "")


def result(dtype: str | None) -> str:
    return "refused" if dtype is None else dtype


def domains(row: Row) -> str:
    """Those that are not all numbers, by the names of the tensors."""
    named = zip(row.shapes, row.domains, strict=False)
    return ", ".join(str(domain).replace("x", name, 1) for name, domain in named if domain != ALL)
