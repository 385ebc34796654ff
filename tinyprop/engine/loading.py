"""What a user wrote in a file: `my_file.py:name`, on the command line and in a Config."""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from .context import context, current
from .errors import UnknownNameError, close_names, explain, parts_of

FINGERPRINT_LENGTH = 16  # hexadecimal digits: 64 bits
REFERENCE = re.compile(r"(?P<path>.+\.py):(?P<name>[\w-]+)(#(?P<fingerprint>[0-9a-f]{16}))?")


@dataclass(frozen=True)
class Source:
    """Where something of a user's comes from: a file, the name in it, and the fingerprint of what
    the file contained."""

    path: Path
    name: str
    fingerprint: str

    def __str__(self) -> str:
        """What `from_file` takes, to find the same thing again or to say that it has changed."""
        return f"{self.path}:{self.name}#{self.fingerprint}"


@dataclass(frozen=True)
class _Loaded:
    """A module made from a file, and the fingerprint of what was executed."""

    module: ModuleType
    fingerprint: str


_loaded: dict[Path, _Loaded] = {}
_modules: dict[str, tuple[Path, str]] = {}  # their names, files, and fingerprints of these


def is_importing() -> bool:
    """Whether this is called by a file that `from_file` is importing."""
    return current().importing


def is_file_reference(text: Any) -> bool:
    """Whether this is `file.py:name`, and not a plain name.

    >>> is_file_reference("my_activations.py:swish2"), is_file_reference("relu")
    (True, False)
    """
    return isinstance(text, str) and ".py:" in text


def is_recorded(text: str) -> bool:
    """Whether this is `file.py:name#fingerprint`, which says what the file contained.

    >>> is_recorded("my.py:swish2"), is_recorded("my.py:swish2#0123456789abcdef")
    (False, True)
    """
    parts = REFERENCE.fullmatch(text)
    return parts is not None and parts["fingerprint"] is not None


def from_file(text: str, registered: Callable[[Path, str], Any] | None = None) -> Any:
    """The object that `file.py:name` refers to. The file is imported, once for each content.

    A relative path starts from the current directory. A file that has been imported as a module
    already is not executed a second time, so that what it registers is registered once. With
    `file.py:name#fingerprint`, a file that has another content is refused. `registered(path, name)`
    is the entry that the file adds to a table, or None: see `Registry.from_file`.

    >>> from_file("there_is_no_such_file.py:swish2")
    Traceback (most recent call last):
        ...
    FileNotFoundError: got:  there_is_no_such_file.py:swish2
    rule: what comes before the colon is a Python file; there is none of this name
    try:  a path from ..., or an absolute one
    """
    parts = REFERENCE.fullmatch(text)
    if parts is None or parts["name"][0].isdigit():
        rule = "a path that ends in .py, a colon, and a name that the file defines"
        raise ValueError(explain(repr(text), rule, "my_file.py:my_name"))
    path, name, recorded = Path(parts["path"]), parts["name"], parts["fingerprint"]
    if not path.is_file():
        rule = "what comes before the colon is a Python file; there is none of this name"
        hint = f"a path from {Path.cwd()}, or an absolute one"
        if recorded is not None:
            hint = f"the file where it was, or its new path: .../{path.name}:{name}"
        raise FileNotFoundError(explain(text, rule, hint))
    present = fingerprint(path)
    if recorded not in (None, present):
        got = f"{path}, whose content has changed: its fingerprint was {recorded}, and is {present}"
        rule = f"{name} is used as it was recorded"
        raise ValueError(explain(got, rule, f"the file as it was, or {path}:{name} from now on"))
    module = _module_of(path.resolve(), text)
    entry = registered(path.resolve(), name) if registered is not None else None
    if entry is not None:
        return entry
    if not hasattr(module, name):
        public = []
        for key, value in vars(module).items():
            if not key.startswith("_") and not isinstance(value, ModuleType):
                public.append(key)
        rule = f"the file defines {', '.join(public) or 'nothing'}"
        if registered is not None:
            rule += f", and registers no {name!r}"
        hint = close_names(name, public) or "one of these names, after the colon"
        raise UnknownNameError(text, rule, hint)
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """The module of a Python file, which is imported, once for each content.

    >>> load_file(Path("there_is_no_such_file.py"))
    Traceback (most recent call last):
        ...
    FileNotFoundError: got:  there_is_no_such_file.py
    rule: it is the name of a Python file; there is none of this name
    try:  a path from ..., or an absolute one
    """
    if not path.is_file():
        rule = "it is the name of a Python file; there is none of this name"
        hint = f"a path from {Path.cwd()}, or an absolute one"
        raise FileNotFoundError(explain(str(path), rule, hint))
    return _module_of(path.resolve(), str(path))


def source_of(thing: Any, function: Any = None) -> Source | None:
    """The file outside of tinyprop that defines this object at its top level, and its name there;
    None if there is no such file.

    `function` is one that the object is made of, for an object such as a record, which does not
    know where it was written."""
    for path, loaded in tuple(_loaded.items()):
        name = _name_in(loaded.module, thing)
        if name is not None:
            return Source(path, name, loaded.fingerprint)
    try:
        path = Path(inspect.getfile(inspect.unwrap(function or thing))).resolve()
    except (TypeError, OSError):  # written in C, or in a notebook
        return None
    is_ours = Path(__file__).parent.parent in path.parents
    if is_ours or not path.is_file():
        return None
    for module in _imported_from(path):  # from_file may have made one, and an import another
        name = _name_in(module, thing)
        if name is not None:
            return Source(path, name, fingerprint(path))
    return None


def same_reference(one: Any, other: Any) -> bool:
    """Whether two texts name the same thing, by the content of its file: the file may have moved.

    >>> same_reference("old/my.py:f#0123456789abcdef", "new/my.py:f#0123456789abcdef")
    True
    >>> same_reference("my.py:f#0123456789abcdef", "my.py:f#ffffffffffffffff")
    False
    """
    if not (is_file_reference(one) and is_file_reference(other)):
        return bool(one == other)
    both = [REFERENCE.fullmatch(text) for text in (one, other)]
    names = [parts and (parts["name"], parts["fingerprint"]) for parts in both]
    return names[0] is not None and names[0] == names[1]


def portable(thing: Any) -> Any:
    """A function or class of a file that `from_file` imported as `file.py:name#fingerprint`, for
    pickle: another process does not know the module. Anything else is returned as it is."""
    module_name = getattr(thing, "__module__", None)
    if module_name not in _modules:
        return thing
    path, content = _modules[module_name]
    name = _name_in(sys.modules.get(module_name), thing)
    return thing if name is None else str(Source(path, name, content))


def unportable(thing: Any) -> Any:
    """What `portable` stands for: in this process the same object, whatever has become of the
    file; in another one from the file, if it is still the same."""
    parts = REFERENCE.fullmatch(thing) if isinstance(thing, str) else None
    if parts is None or parts["fingerprint"] is None:
        return thing
    module = sys.modules.get(_module_name(Path(parts["path"]), parts["fingerprint"]))
    return from_file(thing) if module is None else getattr(module, parts["name"])


def _name_in(module: ModuleType | None, thing: Any) -> str | None:
    """The name of an object in a module, if it has one there."""
    for name, value in vars(module).items() if module else ():
        if value is thing:
            return name
    return None


def fingerprint(path: Path) -> str:
    """The first digits of the SHA-256 digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:FINGERPRINT_LENGTH]


def _module_of(path: Path, text: str) -> ModuleType:
    """The module of a file: the one that exists, unless the file has changed since it was loaded
    here."""
    content = fingerprint(path)
    loaded = _loaded.get(path)
    if loaded is None:
        imported = next(_imported_from(path), None)
        if imported is not None:
            return imported
    elif loaded.fingerprint == content:
        return loaded.module
    module = _execute(path, text, content)
    _loaded[path] = _Loaded(module, content)
    return module


def _imported_from(path: Path) -> Iterator[ModuleType]:
    """The modules that were made from this file."""
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            yield module


def _module_name(path: Path, content: str) -> str:
    digest = hashlib.sha256(f"{path}#{content}".encode()).hexdigest()
    return f"tinyprop_file_{path.stem}_{digest[:8]}"


def _execute(path: Path, text: str, content: str) -> ModuleType:
    """Import a file under a name that hides no other module, nor this file with another content."""
    name = _module_name(path, content)
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(explain(text, "Python can import the file", "a file that ends in .py"))
    module = module_from_spec(spec)
    sys.modules[name] = module  # as `import` does: pickle finds functions through it
    _modules[name] = path, content
    try:
        with context(importing=True):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name], _modules[name]
        if not isinstance(error, (Exception, SystemExit)):
            raise  # an interrupt
        reason = " ".join(str(error).split())
        rule, hint = "the file can be imported", f"python {path}"
        parts = parts_of(error)
        if parts is not None:
            reason, rule, hint = parts
        elif isinstance(error, ImportError) and "relative import" in reason:
            rule = "a file is imported by itself, not as a part of its package"
            absolute = f"from {path.parent.name}.helper import name"
            hint = f"{absolute}, with PYTHONPATH={path.parent.parent}"
        elif isinstance(error, ModuleNotFoundError) and _is_beside(path, error.name):
            rule = f"the folder of {error.name!r} is on Python's path, as other modules are"
            hint = f"PYTHONPATH={path.parent}"
        elif isinstance(error, SystemExit):
            hint = "if __name__ == '__main__': before what a script does"
        got = f"{text}, which raises {type(error).__name__}: {reason}"
        raise ImportError(explain(got, rule, hint)) from error
    return module


def _is_beside(path: Path, name: str | None) -> bool:
    """Whether a module lies in the folder of a file."""
    beside = path.parent / (name or "").partition(".")[0]
    return beside.is_dir() or beside.with_suffix(".py").is_file()
