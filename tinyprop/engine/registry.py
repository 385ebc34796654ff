"""Open tables: what tinyprop ships and what a user adds, by name, through the same call."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from .errors import UnknownNameError, explain


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

    def register(self, entry: Entry, force: bool = False) -> None:
        """Add a record under its own name. `force=True` replaces one of the same name."""
        if not isinstance(entry, self._kind):
            got = f"{self.label}.register({entry!r})"
            rule = f"an entry is a {self._kind.__name__}"
            raise TypeError(explain(got, rule, f"{self._kind.__name__}(...)"))
        if entry.name in self._entries and not force:
            got = f"a second {self._noun} {entry.name!r}"
            rule = "a name stands for one record"
            hint = f"another name, or {self.label}.register(..., force=True) to replace it"
            raise ValueError(explain(got, rule, hint))
        self._entries[entry.name] = entry

    def unregister(self, name: str) -> None:
        """Remove a record. What has been built from it keeps working."""
        self[name]  # refuses an unknown name
        del self._entries[name]

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


def close_names(typed: str, known: Iterable[str]) -> str:
    """Up to three names that look like what was typed, in words; nothing if there are none.

    >>> close_names("relo", ["relu", "prelu", "sin"])
    "'relu' or 'prelu'"
    """
    import difflib

    nearest = [repr(name) for name in difflib.get_close_matches(typed, known)]
    if len(nearest) < 2:
        return "".join(nearest)
    return f"{', '.join(nearest[:-1])} or {nearest[-1]}"
