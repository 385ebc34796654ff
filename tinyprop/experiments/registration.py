"""What is decided before the first run that counts: experiments, claims, measures, seeds and the
rule.

The short runs were registered in preregistration.toml, beside experiments.toml and scales.toml; the
runs that are trained to the end in one file, plateau.toml."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any


def text(name: str) -> str:
    """A file of this room."""
    return files(__package__).joinpath(name).read_text("utf-8")


def table(name: str) -> dict[str, Any]:
    return tomllib.loads(text(name))


@dataclass(frozen=True)
class Registration:
    """The content of the files that register a plan, and its digest."""

    names: tuple[str, ...]  # of the files; the first has the rule

    @cached_property
    def facts(self) -> dict[str, Any]:
        return table(self.names[0])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all files, which every run records."""
        content = "".join(text(name) for name in self.names)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def experiments(self) -> dict[str, Any]:
        """Words, settings and claims of each experiment."""
        if "experiments" in self.facts:
            return dict(self.facts["experiments"])
        return table(self.names[1])

    def correction(self, experiment: str) -> str:
        """What is wrong in the words of an experiment, in a sentence; empty if nothing is."""
        plan = self.names[0].removesuffix(".toml")
        found = table("corrections.toml").get(plan, {}).get(experiment)
        return f"Correction of {found['on']}: {found['what']}" if found else ""

    @property
    def gate(self) -> Mapping[str, Any] | None:
        """When a claim about the end of training is testable; None for a plan without this rule."""
        return self.facts.get("gate")

    def seeds(self, experiment: str, setting: str) -> int | None:
        """How many random seeds of a setting are planned; None if it is not registered."""
        if "planned" in self.facts:
            planned = self.facts["planned"].get(experiment, {}).get(setting)
        else:
            planned = self.experiments[experiment].get("seeds", {}).get(setting)
        return planned

    def primary(self) -> list[tuple[str, str]]:
        """The experiments and the texts of the primary claims."""
        if "primary" in self.facts:
            return [(claim["experiment"], claim["claim"]) for claim in self.facts["primary"]]
        found = []
        for name, experiment in self.experiments.items():
            for claim in experiment.get("claims", ()):
                if claim.get("primary"):
                    found.append((name, claim["text"]))
        return found

    def order(self, experiment: str) -> int:
        """The place of an experiment in the plan: smaller comes first."""
        if "planned" in self.facts:
            return 0  # by the urgency of its claims alone
        return list(self.experiments).index(experiment)


SHORT = Registration(("preregistration.toml", "experiments.toml"))
PLATEAU = Registration(("plateau.toml",))
