"""Open tables: what tinyprop ships and what a user adds, by name, through the same call."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .errors import UnknownNameError, close_names, explain
from .loading import Source, fingerprint, from_file, source_of


class Named(Protocol):
    """Something that has a name of its own."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[str, Entry]):
    """A table of records of one kind, which anyone may add to, such as `tp.activations`.

    >>> from types import SimpleNamespace
    >>> from tinyprop.engine.registry import Registry
    >>> fruits = Registry(SimpleNamespace, "fruit", "fruits")
    >>> fruits.register(SimpleNamespace(name="apple"))
    >>> list(fruits), "pear" in fruits
    (['apple'], False)
    >>> fruits["aple"]
    Traceback (most recent call last):
        ...
    tinyprop.UnknownNameError: got:  fruit 'aple'
    rule: it is one of apple
    try:  'apple'
    """

    def __init__(self, kind: type[Entry], noun: str, table: str):
        """A table of this kind of records; in messages, one of them is called `noun`, and the table
        `table`."""
        self._kind = kind
        self._noun = noun
        self.label = table
        self._entries: dict[str, Entry] = {}
        self._sources: dict[str, Source | None] = {}

    def register(self, entry: Entry, force: bool = False) -> None:
        """Add a record under its own name. `force=True` replaces one of the same name, as in a
        notebook cell that runs twice."""
        if not isinstance(entry, self._kind):
            got = f"{self.label}.register({entry!r})"
            rule = f"its entries are {self._kind.__name__} records"
            raise TypeError(explain(got, rule, f"{self._kind.__name__}(...)"))
        if entry.name in self._entries and not force:
            got = f"a second {self._noun} {entry.name!r}"
            rule = "a name stands for one record"
            hint = f"another name, or {self.label}.register(..., force=True) to replace it"
            raise ValueError(explain(got, rule, hint))
        self._entries[entry.name] = entry
        self._sources[entry.name] = _caller(entry.name)

    def unregister(self, name: str) -> None:
        """Remove a record. What has been built from it keeps working."""
        self[name]  # refuses an unknown name
        del self._entries[name]
        del self._sources[name]

    def source_of(self, entry: Entry, function: Any = None) -> Source | None:
        """The file outside of tinyprop that defines this record at its top level or registers it,
        so that another process finds it there. None if it is one of tinyprop's own, or was made in
        a notebook or an interactive session. `function` is as in `loading.source_of`."""
        found = source_of(entry, function)
        is_registered = self._entries.get(entry.name) is entry
        registered = self._sources[entry.name] if is_registered else None
        if found is None or registered is None or found.path != registered.path:
            return found or registered
        # the file may have changed since it was executed
        return Source(found.path, found.name, registered.fingerprint)

    def from_file(self, text: str) -> Any:
        """What `file.py:name` refers to: the record that the file registers under this name, or
        else the object that it defines."""

        def registered(path: Path, name: str) -> Entry | None:
            source = self._sources.get(name)
            is_from_there = source is not None and source.path == path
            return self._entries[name] if is_from_there else None

        return from_file(text, registered)

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except (KeyError, TypeError):  # a TypeError if it cannot be a key
            pass
        raise UnknownNameError(
            f"{self._noun} {name!r}", f"it is one of {', '.join(self)}", self._hint_for(name)
        )

    def _hint_for(self, name: object) -> str:
        """The nearest names, or how to add a new one."""
        nearest = close_names(str(name), self)
        return nearest or f"{self.label}.register(...) for one of your own"

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._entries))  # a copy: another thread may add an entry meanwhile

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{self.label}: {', '.join(self)}"


def _caller(name: str) -> Source | None:
    """The file of the code that calls `register`, unless it is tinyprop's or there is none."""
    frame = sys._getframe(2)
    is_ours = str(frame.f_globals.get("__name__")).startswith(f"{__package__.split('.')[0]}.")
    if is_ours:
        return None
    path = Path(frame.f_code.co_filename)
    if not path.is_file():  # a notebook, or an interactive session
        return None
    return Source(path.resolve(), name, fingerprint(path))
