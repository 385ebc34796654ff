"""A network of the user's own: how it is made from a file, and how a run knows it again."""

import hashlib
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..engine.errors import StateError, explain
from ..engine.loading import from_file, is_file_reference, source_of
from ..nn.declare import is_ours
from ..nn.module import Module, places
from ..nn.own import in_words

RULE = "it is a subclass of tp.nn.Module, or a function that returns a Module"
Description = list[dict[str, Any]]  # of each module, what JSON can hold


def reference_to(model: Module) -> str:
    """How a config names a network that was given as an object: `file.py:Class#fingerprint`, or the
    name of the class.

    A class of the program that is running, or of a notebook, has only its name: to import the
    program would run it again."""
    kind = type(model)
    if is_ours(kind) or kind.__module__ == "__main__":
        return kind.__name__
    source = source_of(kind)
    return kind.__name__ if source is None else str(source)


def make_network(reference: str) -> Module:
    """The network that `file.py:Class` makes, called without arguments."""
    instead = "pass the network itself: model=Net(...)"
    if not is_file_reference(reference):
        got = (
            f"the network {reference!r}, which was given as an object, and is in no file to import"
        )
        rule = "a run that was made with model=... is continued and loaded with one"
        raise ValueError(explain(got, rule, instead.replace("Net", reference)))
    name = reference.partition("#")[0]
    make = from_file(reference)
    if isinstance(make, Module):
        got = f"{name}, which is a network already"
        rule = "the random seed decides its first weights, so it is made anew for each run"
        hint = f"its class, {type(make).__name__}, or a function that returns the network"
        raise TypeError(explain(got, rule, hint))
    if not callable(make):
        raise TypeError(explain(f"{name}, a {type(make).__name__}", RULE, "file.py:Net"))
    try:
        made = make()
    except Exception as error:
        got = f"{name}(), which raises {in_words(error)}"
        rule = "a network is made without arguments"
        hint = f"defaults for all its arguments; or, in Python, {instead}"
        raise ValueError(explain(got, rule, hint)) from error
    if not isinstance(made, Module):
        raise TypeError(explain(f"{name}(), which returns {type(made).__name__}", RULE, "Net"))
    return made


def import_home(reference: str, description: Description) -> None:
    """Import the module that defined a network, if it is still the same file: it may import others
    of its package, which a file by itself cannot."""
    path = Path(reference.partition("#")[0].rpartition(":")[0])
    name = description[0].get("module") if description else None
    try:
        spec = None if name is None else find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
        import_module(spec.name)


def describe(model: Module) -> Description:
    """What decides the numbers of a network besides its weights, as far as it can be told: for each
    module its class, the source of the class, and attributes that are numbers or texts."""
    rows = []
    for place, module in places(model):
        kind = type(module)
        row: dict[str, Any] = {"place": place, "class": kind.__name__, "has": plain(module)}
        if is_ours(kind):
            row["shown"] = module.extra_repr()
        else:
            row["module"] = kind.__module__
            row["source"] = digest_of_source(kind)
        rows.append(row)
    return rows


def plain(module: Module) -> dict[str, Any]:
    """The attributes of a module that are numbers or texts, without what its forward has set."""
    found = {}
    for name, value in vars(module).items():
        is_plain = isinstance(value, bool | int | float | str)
        if is_plain and not name.startswith("_") and name not in module._set_by_forward:
            found[name] = value
    return found


def digest_of_source(kind: type) -> str | None:
    """Of the text of a class; None if it has none, as in an interactive session."""
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_same_network(now: Description, then: Description, what: str) -> None:
    """Refuse a network that is not the one that was described."""
    difference = _difference(now, then)
    if difference is None:
        return
    here, there = difference
    raise StateError(
        f"{here}, for {what}, which has {there}",
        "its network is used as it was when the run began",
        "the network with the same code and the same arguments, or a new run",
    )


def _difference(now: Description, then: Description) -> tuple[str, str] | None:
    """In words, the first difference of two networks: here, and there."""
    for ours, theirs in zip(now, then, strict=False):
        name = f"{ours['class']} at {ours['place']!r}" if ours["place"] else ours["class"]
        for key in ("place", "class", "shown"):
            if ours.get(key) != theirs.get(key):
                return _in_words(ours), _in_words(theirs)
        for attribute in ours["has"].keys() & theirs["has"].keys():
            here, there = ours["has"][attribute], theirs["has"][attribute]
            if here != there:
                return f"{name} with {attribute} = {here!r}", f"{attribute} = {there!r}"
        sources = {ours.get("source"), theirs.get("source")}
        if None not in sources and len(sources) == 2:
            return f"{name}, whose code has changed", "the code of before"
    if len(now) != len(then):
        return f"a network of {len(now)} modules", f"{len(then)}"
    return None


def _in_words(row: dict[str, Any]) -> str:
    return f"{row['class']}({row.get('shown', '')}) at {row['place']!r}"
