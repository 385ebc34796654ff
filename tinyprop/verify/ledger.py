"""The ledger of claims: the decorator that enters one, and finding them by id, family or file."""

import re
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeAlias

from ..engine.errors import UnknownNameError, close_names, explain
from ..engine.loading import fingerprint, from_file, load_file
from .case import HOLDS, UNSETTLED, VERDICTS, Case
from .monte_carlo import Sampler

# cases, the first of which gives the result its numbers; it returns the reason
Findings: TypeAlias = Generator[Case, None, str]
Measure: TypeAlias = Callable[[Sampler], Findings]

OURS = Path(__file__).parent
ALL = "all"  # the name of every family at once
ID = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the function that settles it.

    >>> claim = tp.verify.claims()[0]
    >>> claim.id, claim.section, claim.expected
    ('C01', '3.2, Remark 1', 'holds')
    """

    id: str
    section: str  # of the paper, or another paper with its section
    statement: str
    measure: Measure
    expected: str
    family: str
    problem: str = ""  # why it cannot be settled, in three parts

    @property
    def derivation(self) -> str:
        """Why the exact value is what it is, in a few sentences: the function's docstring."""
        return " ".join((self.measure.__doc__ or "").split())

    @property
    def file(self) -> Path:
        return Path(self.measure.__code__.co_filename).resolve()

    @property
    def place(self) -> str:
        """Where the function is, for a message."""
        return f"{self.measure.__name__} ({self.file.name}:{self.measure.__code__.co_firstlineno})"

    def __reduce__(self) -> Any:
        raise ValueError(
            explain(
                f"claim {self.id}, whose function is in no file, for another process",
                "a worker imports a claim from its file",
                "save it as my_claims.py, and tp.verify.run(['my_claims.py'], ...)",
            )
        )


LEDGER: dict[str, Claim] = {}  # by `key` of the id


def key(id: str) -> str:
    """By which an id is found: in capitals, and without leading zeros.

    >>> key("c1") == key("C01")
    True
    """
    return re.sub(r"\d+", lambda digits: str(int(digits[0])), id.upper())


def in_order(claim: Claim) -> tuple[str, int, str]:
    """The order of claims: by the letters of the id, then by its number."""
    letters = re.split(r"\d", claim.id)[0]
    number = re.search(r"\d+", claim.id)
    return letters, int(number[0]) if number else 0, claim.id


def claim(
    id: str, section: str, statement: str, expected: str = HOLDS, family: str | None = None
) -> Callable[[Measure], Claim]:
    """A decorator that enters a claim into the ledger.

    The function takes a `Sampler`, yields the cases of the claim (see `claimed` and `beside`), and
    returns the reason of the verdict, in a sentence. Its docstring derives the exact value.
    `expected` is the verdict that `tinyprop verify` expects. The family is the name of the file,
    unless it is given.

    A claim that cannot be settled is entered, too, with its `problem`: the others still run.

    >>> @tp.verify.claim("X1", "my paper, 2", "max(0, X) of a standard normal X has mean 0.4.")
    ... def relu_mean(mc):
    ...     '''Half of the mass is at 0, the other half is |X|, so the mean is E|X|/2.'''
    ...     relu = tp.moments.gaussian("relu")
    ...     yield tp.verify.claimed("E max(0, X)", "0.4", exact=relu.mean)
    ...     return "half of the mean of |X|"
    >>> (result,) = tp.verify.run([relu_mean])
    >>> print(result)
    X1 max(0, X) of a standard normal X has mean 0.4. holds: half of the mean of |X|
    >>> tp.verify.unregister("X1")
    """

    def enter(measure: Measure) -> Claim:
        check_is_entered_right(id, section, statement, measure)
        stem = Path(measure.__code__.co_filename).stem
        new = Claim(
            id,
            one_line(section),
            one_line(statement),
            measure,
            expected,
            stem if family is None else family,
        )
        problem = problem_of(new)
        if problem:
            new = replace(new, family=stem)
        old = LEDGER.get(key(id))
        if old is not None and not is_redefinition(old, new):
            problem = id_twice(old, new)
            new = unused_id(new)
        new = replace(new, problem=problem)
        LEDGER[key(new.id)] = new
        return new

    return enter


def one_line(text: str) -> str:
    return " ".join(text.split())


def check_is_entered_right(id: Any, section: Any, statement: Any, measure: Any) -> None:
    texts = {"id": id, "section": section, "statement": statement}
    for name, text in texts.items():
        if not isinstance(text, str):
            got = f"claim {id!r} with {name}={text!r}"
            hint = "@tp.verify.claim('X1', 'my paper, 2', 'The statement.')"
            raise TypeError(explain(got, "id, section and statement are texts", hint))
    if not isfunction(measure):
        got = f"claim {id}, made of a {type(measure).__name__}"
        rule = "the decorator stands above a function with a docstring"
        raise TypeError(explain(got, rule, "def measure(mc): ..., which calls what you have"))


def unregister(id: str) -> None:
    """Remove a claim from the ledger.

    >>> tp.verify.unregister("X99")
    Traceback (most recent call last):
        ...
    tinyprop.UnknownNameError: got:  no claim 'X99'
    rule: ids are C01 to C45, G1 to G6, N01 to N30, and those of files that were loaded
    try:  tinyprop verify --list
    """
    if key(id) not in LEDGER:
        raise unknown(id)
    del LEDGER[key(id)]


def unknown(id: str) -> UnknownNameError:
    rule = "ids are C01 to C45, G1 to G6, N01 to N30, and those of files that were loaded"
    return UnknownNameError(f"no claim {id!r}", rule, "tinyprop verify --list")


def problem_of(claim: Claim) -> str:
    """Why a claim cannot be settled, before it is tried."""
    if not ID.fullmatch(claim.id):
        rule = "an id is a letter, and letters, digits, - or _"
        return explain(f"claim {claim.id!r}, {claim.place}", rule, "X1")
    for name, text in {"section": claim.section, "statement": claim.statement}.items():
        if not text:
            got = f"claim {claim.id}, {claim.place}, without a {name}"
            hint = "@tp.verify.claim('X1', 'my paper, 2', 'The statement.')"
            return explain(got, "a claim says what is claimed, and where", hint)
    if not isinstance(claim.family, str) or claim.family in ("", ALL):
        got = f"claim {claim.id}, {claim.place}, with family={claim.family!r}"
        return explain(got, f"a family has a name, other than {ALL!r}", "family='my paper'")
    if claim.expected not in VERDICTS or claim.expected == UNSETTLED:
        known = [verdict for verdict in VERDICTS if verdict != UNSETTLED]
        rule = f"a verdict is one of: {', '.join(known)}"
        got = f"claim {claim.id}, {claim.place}, with expected={claim.expected!r}"
        return explain(got, rule, close_names(claim.expected, known) or f"expected={HOLDS!r}")
    if not claim.derivation:
        got = f"claim {claim.id}, {claim.place}, without a docstring"
        rule = "the docstring of a claim derives its exact value"
        return explain(got, rule, '"""Half of the mass is at 0, so ..."""')
    return ""


def is_redefinition(old: Claim, new: Claim) -> bool:
    """Whether a claim is entered again on purpose: in a notebook, or by a file that has changed or
    is loaded again."""
    before, after = old.measure, new.measure
    if old.file == new.file and before.__module__ != after.__module__:
        return True
    same_line = before.__code__.co_firstlineno == after.__code__.co_firstlineno
    same_function = (before.__module__, before.__qualname__) == (
        after.__module__,
        after.__qualname__,
    )
    return same_function and (same_line or after.__module__ == "__main__")


def id_twice(old: Claim, new: Claim) -> str:
    got = f"claim {new.id} a second time, {new.place}, after {old.place}"
    return explain(got, "each claim has an id of its own", f"another id, such as {new.id}b")


def unused_id(claim: Claim) -> Claim:
    """The claim with another id, by which it can be listed."""
    number = 2
    while key(f"{claim.id}-{number}") in LEDGER:
        number += 1
    return replace(claim, id=f"{claim.id}-{number}")


# -- finding claims


def families() -> list[str]:
    """Those that have a claim."""
    return list(dict.fromkeys(claim.family for claim in LEDGER.values()))


def claims(family: str = "normprop") -> list[Claim]:
    """The claims of a family. "normprop": C01 to C45 of the paper, and G1 to G6 beyond it. The
    others of ours, N01 to N30, are what other papers say of "batchnorm", "layernorm", "init"
    (initialisations, and what is done to weights), "residual" networks, and "dyt" (dynamic tanh).
    Claims of a user's file have its name as their family; "all" is every claim that was entered.

    >>> [claim.id for claim in tp.verify.claims()][:3]
    ['C01', 'C02', 'C03']
    >>> [claim.id for claim in tp.verify.claims("dyt")]
    ['N28', 'N29']
    """
    known = families()
    if family not in (*known, ALL):
        rule = f"it is one of {', '.join(known)}, or all"
        raise ValueError(explain(f"no family {family!r}", rule, "'batchnorm'"))
    picked = [claim for claim in LEDGER.values() if family in (claim.family, ALL)]
    return sorted(picked, key=in_order)


def in_file(path: Path) -> list[Claim]:
    """The claims of a Python file, which is imported."""
    load_file(path)
    file = path.resolve()
    found = [claim for claim in claims(ALL) if claim.file == file]
    if not found:
        rule = "a file of claims has functions that are decorated with @tp.verify.claim"
        hint = "@tp.verify.claim('X1', 'my paper, 2', 'The statement.')"
        raise ValueError(explain(f"{path}, which enters no claim", rule, hint))
    return found


def chosen(which: Collection[str | Path | Claim] | None, family: str | None = None) -> list[Claim]:
    """The claims of these ids and files, or else of this family, in the order of the ledger."""
    if which is None:
        return claims(family or "normprop")
    if family is not None:
        got = f"{len(which)} claims and family {family!r}"
        raise ValueError(explain(got, "claims or a family, not both", "the family alone"))
    if isinstance(which, (str, Path)):
        which = [which]
    found: dict[str, Claim] = {}
    for item in which:
        for one in _found(item):
            found[key(one.id)] = one
    return sorted(found.values(), key=in_order)


def _found(item: str | Path | Claim) -> list[Claim]:
    if isinstance(item, Claim):
        return [item]
    if str(item).endswith(".py"):
        return in_file(Path(item))
    text = str(item)
    if key(text) in LEDGER:
        return [LEDGER[key(text)]]
    raise unknown(text)


# -- for another process


@dataclass(frozen=True)
class Reference:
    """A claim as another process finds it: by its id, in a file of this content or in tinyprop."""

    id: str
    section: str
    statement: str
    expected: str
    derivation: str
    source: str  # file.py:id#fingerprint; "" for a claim of tinyprop

    @classmethod
    def to(cls, claim: Claim) -> "Reference | Claim":
        """The claim itself, if it is in no file: threads can settle that, too."""
        if claim.file.parent == OURS:
            source = ""
        elif claim.file.is_file():
            source = f"{claim.file}:{claim.id}#{fingerprint(claim.file)}"
        else:
            return claim
        return cls(
            claim.id, claim.section, claim.statement, claim.expected, claim.derivation, source
        )

    def find(self) -> Claim:
        if not self.source:
            return LEDGER[key(self.id)]

        def entered(path: Path, id: str) -> Claim | None:
            found = LEDGER.get(key(id))
            return found if found is not None and found.file == path else None

        found = from_file(self.source, entered)
        assert isinstance(found, Claim)
        return found
