"""Recompute every effect, interval and verdict from the JSON files of finished runs.

    python tools/recompute.py                       prints them
    python tools/recompute.py --check               compares them with the published pages
    python tools/recompute.py --csv figures/runs.csv    writes the ledger as one table

This is a check that trusts nothing: it uses the standard library and NumPy, and nothing of
tinyprop. It reads the registered plans (TOML) and the runs (JSON), and has its own statistics."""

import argparse
import base64
import csv
import hashlib
import io
import json
import math
import statistics
import sys
import tomllib
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PLANS = ROOT / "tinyprop/experiments"
PAGES = {"plateau": ROOT / "REPRODUCTION.md", "short": ROOT / "figures/short-runs.md"}
LEVEL = 0.05
MARGIN = {"test accuracy": 1.0, "test loss": 0.03}
BETTER = {"test accuracy": 1, "largest rate": 1}  # -1 for all others: less is better
FORM = {"test accuracy": ".1f", "distance from the median": ".2f", "roughness": ".4f"}
FORM["largest rate"] = ".1f"
UNIT = {"test accuracy": " points", "test loss": " nats", "distance from the median": " points"}
UNIT |= {"roughness": " nats", "largest rate": " octaves"}
ENDPOINTS = ["test accuracy", "test loss"]
LOOKS = [6, 12, 24]
CHANCE = "chance"
C1 = math.sqrt(0.5 - 0.5 / math.pi)  # standard deviation of ReLU(Z)

# what a run has if its plan does not say it
DEFAULTS = {
    "norm": "normprop",
    "activation": "relu",
    "spec": None,
    "init": None,
    "mode": "paper",
    "gamma": None,
    "beta": None,
    "shrink": 1,
    "data_norm": "global",
    "output": "linear",
    "width": 0.25,
    "dropout": 0.0,
    "epochs": 10,
    "batch_size": 50,
    "lr": 0.02,
    "optimizer": "sgd",
    "momentum": 0.9,
    "alpha": 0.99,
    "weight_decay": 0.001,
    "decay_on": "all",
    "unconstrained": False,
    "schedule": "halve",
    "halve_every": 10,
    "anneal": None,
    "patience": 3,
    "refresh": None,
    "fixed_images": None,
    "average": None,
    "flip": False,
    "validation": False,
    "train_size": None,
    "test_size": None,
    "backend": "numpy",
    "net": None,
    "image_size": None,
}
IGNORED = {"seed", "threads", "read_every"}


# -- runs


@dataclass
class Run:
    facts: dict
    file: str

    @property
    def config(self):
        return self.facts["config"]

    @property
    def seed(self):
        return self.config["seed"]

    @property
    def setting(self):
        """Everything that is not the default, without the random seed."""
        return settled({k: v for k, v in self.config.items() if k not in IGNORED})

    @property
    def diverged(self):
        test = self.facts["test"]
        if self.facts["diverged"] or test is None:
            return True
        classes = 100 if self.config["data"] == "cifar100" else 10
        at_chance = 1.0 - test["error"] <= 1.0 / classes + 0.01
        return at_chance and test["loss"] > math.log(classes)

    def correct(self, which="test"):
        evaluation = self.facts[which]
        bits = np.unpackbits(np.frombuffer(base64.b64decode(evaluation["correct"]), np.uint8))
        return 100.0 * bits[: len(codes(evaluation))]

    def image_losses(self):
        losses = 1e-4 * np.exp(0.2 * codes(self.facts["test"]).astype(float))
        return losses * (self.facts["test"]["scaled_loss"] / losses.mean())

    def accuracies(self):
        name = "validation_error" if self.config["validation"] else "test_error"
        return [100.0 * (1.0 - row[name]) for row in self.facts["history"]]

    def measure(self, name):
        if name == "test accuracy":
            return self.correct()
        if name == "test loss":
            return self.image_losses()
        layers = self.facts["layers"]
        if name == "final mean input":
            return statistics.fmean(layers[i - 1]["size"][-1] for i in range(2, 10))
        if name == "movement":
            unit = C1 if self.config["norm"].startswith("normprop") else 1.0
            moved = [layers[i - 1]["moved"] for i in range(2, 6)]
            return unit * statistics.fmean(statistics.fmean(m[2:] or m) for m in moved)
        if name == "distance from the median":
            return self.accuracies()[0]
        if name == "roughness":
            return roughness(self.facts["losses"])
        raise KeyError(name)


def codes(evaluation):
    return np.frombuffer(zlib.decompress(base64.b64decode(evaluation["scaled_losses"])), np.uint8)


def roughness(losses):
    if len(losses) < 6:
        return 0.0
    x = np.log(np.arange(len(losses)) + 0.5)
    design = np.stack([x**3, x**2, x, np.ones_like(x)], axis=1)
    fitted = design @ np.linalg.lstsq(design, np.array(losses), rcond=None)[0]
    return math.sqrt(((np.array(losses) - fitted) ** 2).sum() / (len(losses) - 4))


def settled(config):
    """As a key: the settings that are not the default."""
    known = {name: value for name, value in config.items() if name != "data"}
    changed = {k: v for k, v in known.items() if v != DEFAULTS[k]}
    return json.dumps({"data": config["data"], **changed}, sort_keys=True)


def read_ledger(folder):
    """The runs, whose digests must be those of their content."""
    runs = []
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_bytes())
        content = {k: v for k, v in facts.items() if k not in ("format", "sha256")}
        text = json.dumps(content, sort_keys=True)
        if hashlib.sha256(text.encode()).hexdigest() != facts["sha256"]:
            sys.exit(f"{path}: its digest is not that of its content")
        runs.append(Run(facts, path.name))
    return runs


# -- statistics


def incomplete_beta(a, b, x):
    """The regularised incomplete beta function, by Lentz's continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(front + a * math.log(x) + b * math.log(1.0 - x)) / a
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    total = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d)
            c = 1.0 + term / c
            total *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * total


def student(confidence, freedom):
    """The half-width of the central interval of Student's t, by bisection of its tail."""
    low, high = 0.0, 1e8
    for _ in range(200):
        middle = (low + high) / 2
        outside = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle**2))
        low, high = (middle, high) if outside > 1.0 - confidence else (low, middle)
    return low


@dataclass
class Difference:
    """Ours minus theirs, in a measure."""

    measure: str
    mean: float
    error: float  # standard error
    n: int
    diverged: tuple = (0, 0)
    alive: tuple = (True, True)

    def half_width(self, confidence=0.95):
        return self.error * student(confidence, self.n - 1) if self.error else 0.0

    def interval(self, level):
        """How much better ours is."""
        never = [self.alive[i] and not self.diverged[i] for i in (0, 1)]
        always = [self.diverged[i] and not self.alive[i] for i in (0, 1)]
        if never[0] and always[1]:
            return math.inf, math.inf
        if never[1] and always[0]:
            return -math.inf, -math.inf
        is_constant = self.measure == "largest rate" and self.n > 1 and self.error == 0.0
        if any(self.diverged) or self.n < 2 or is_constant:
            return -math.inf, math.inf
        mean = BETTER.get(self.measure, -1) * self.mean
        half = self.half_width(1.0 - level)
        return mean - half, mean + half

    def holds(self, rule, level):
        low, high = self.interval(level)
        margin = MARGIN.get(self.measure, 0.0)
        inside = -margin < low and high < margin
        if rule == "better":
            return True if low > 0 else False if high < 0 or inside else None
        if rule == "alike":
            return True if inside else False if low > margin or high < -margin else None
        return True if low > -margin else False if high < -margin else None

    def __str__(self):
        form = FORM.get(self.measure, ".3f")
        unit = UNIT.get(self.measure, "")
        if self.n == 0:
            return "no pair of runs"
        if self.n == 1:
            return f"{self.mean:+{form}}{unit} (one seed)"
        if not self.error:
            return f"{self.mean:+{form}}{unit}"
        return f"{self.mean:+{form}} ± {self.half_width():{form}}{unit}"


def difference(measure, ours, theirs, diverged):
    """From values by random seed: numbers, or one for each test image."""
    seeds = sorted(ours.keys() & theirs.keys())
    alive = (bool(ours), bool(theirs))
    if not seeds:
        return Difference(measure, math.nan, math.inf, 0, diverged, alive)
    values = np.stack([np.atleast_1d(ours[s] - theirs[s]) for s in seeds]).astype(float)
    n, images = values.shape
    by_seed = values.mean(axis=1)
    mean = float(by_seed.mean())
    if n == 1:
        return Difference(measure, mean, math.inf, 1, diverged, alive)
    variance = by_seed.var(ddof=1) / n
    if images > 1:
        by_image = values.mean(axis=0)
        rest = values - by_seed[:, None] - by_image + by_seed.mean()
        variance += by_image.var() / images + (rest**2).mean() / (n * images)
    return Difference(measure, mean, math.sqrt(variance), n, diverged, alive)


def spent(level, fraction):
    normal = statistics.NormalDist()
    return 2.0 * normal.cdf(normal.inv_cdf(level / 2) / math.sqrt(fraction))


# -- plans


@dataclass
class Arm:
    runs: list
    planned: int

    def first(self, n):
        return Arm([run for run in self.runs if run.seed <= n], self.planned)

    @property
    def alive(self):
        return {run.seed: run for run in self.runs if not run.diverged}

    @property
    def diverged(self):
        return len(self.runs) - len(self.alive)

    def values(self, measure):
        values = {seed: run.measure(measure) for seed, run in self.alive.items()}
        if measure == "distance from the median" and values:
            median = statistics.median(values.values())
            values = {seed: abs(value - median) for seed, value in values.items()}
        return values


@dataclass
class Finding:
    scale: str
    experiment: str
    text: str
    primary: bool
    rule: str
    planned: int
    differences: list  # (label, Difference)
    looks: list  # (fraction, [Difference])
    testable: bool
    verdict: str = "undecided"

    def judge(self, level):
        if not self.testable:
            return None
        before = 0.0
        for fraction, found in self.looks:
            now = spent(level, fraction)
            share = now - before
            if any(d.holds(self.rule, share / len(found)) is False for d in found):
                return False
            if all(d.holds(self.rule, share) for d in found):
                return True
            before = now
        return None


class Plan:
    """A scale with its experiments."""

    def __init__(self, scale, runs):
        self.scale = scale
        self.by_setting = {}
        for run in runs:
            self.by_setting.setdefault(run.setting, []).append(run)
        if scale == "plateau":
            facts = tomllib.loads((PLANS / "plateau.toml").read_text("utf-8"))
            self.experiments = facts["experiments"]
            self.protocol = facts["scale"]["protocol"]
            self.gate = facts["gate"]
            self.seeds = {name: e["seeds"] for name, e in self.experiments.items()}
            self.primary = {
                (name, claim["text"])
                for name, e in self.experiments.items()
                for claim in e.get("claims", ())
                if claim.get("primary")
            }
        else:
            facts = tomllib.loads((PLANS / "preregistration.toml").read_text("utf-8"))
            scales = tomllib.loads((PLANS / "scales.toml").read_text("utf-8"))["short"]
            self.experiments = tomllib.loads((PLANS / "experiments.toml").read_text("utf-8"))
            self.protocol = scales["protocol"]
            self.gate = None
            self.seeds = facts["planned"]
            self.primary = {(claim["experiment"], claim["claim"]) for claim in facts["primary"]}
            self.add_rows(scales)
            del self.experiments["scale"]  # no claim

    def add_rows(self, scales):
        """The data sets of section 5.5, with both normalisers."""
        results = self.experiments["results"]
        results["settings"] = {}
        results["claims"] = []
        for row, changes in scales["rows"].items():
            if isinstance(changes, str):
                larger = scales["larger"][changes]
                changes = {k: larger.get(k, DEFAULTS.get(k)) for k in {**self.protocol, **larger}}
            for norm, name in (("normprop", "NormProp"), ("batch", "BatchNorm")):
                results["settings"][f"{row}, {name}"] = {**changes, "norm": norm}
            if row not in results["claimed_elsewhere"]:
                text = f"NormProp is better than BN or competitive on {row}."
                pair = [f"{row}, NormProp", f"{row}, BatchNorm"]
                claim = {"text": text, "holds": "at least as good", "pairs": {row: pair}}
                results["claims"].append(claim)

    def config(self, changes):
        changes = dict(changes)
        config = dict(self.protocol)
        if changes.pop("short", False):
            config["epochs"] = 1
        for name in changes.pop("unset", ()):
            config.pop(name)
        return {**config, **changes}

    def arms(self, name):
        facts = self.experiments[name]
        arms = {}
        configs = {}
        for setting, changes in facts["settings"].items():
            configs[setting] = self.config(changes)
            arms[setting] = self.arm(name, setting, configs[setting])
        for chosen, start in facts.get("chosen", {}).items():
            tried = {s: arms[s].first(2) for s in facts["settings"] if s.startswith(start)}
            if any(len(arm.runs) < min(2, arm.planned) for arm in tried.values()):
                arms[chosen] = Arm([], self.seeds[name][chosen])
                continue
            best = min(tried, key=lambda s: selection(tried[s]))
            config = {**configs[best], "epochs": self.protocol["epochs"]}
            arms[chosen] = self.arm(name, chosen, config)
        return arms

    def arm(self, experiment, setting, config):
        planned = self.seeds[experiment][setting]
        runs = self.by_setting.get(settled(config), [])
        return Arm([run for run in runs if 1 <= run.seed <= planned], planned)

    def findings(self):
        found = []
        for name, facts in self.experiments.items():
            arms = self.arms(name)
            for claim in facts.get("claims", ()):
                found.append(self.finding(name, claim, arms))
        self.decide(found)
        return found

    def finding(self, name, claim, arms):
        pairs = {}
        for each in claim.get("each", [""]):
            for label, (ours, theirs) in claim["pairs"].items():
                pairs[label.format(each)] = (ours.format(each), theirs.format(each))
        measures = claim.get("measures", ENDPOINTS)
        used = [arms[s] for s in {s for pair in pairs.values() for s in pair} - {CHANCE}]
        planned = min(arm.planned for arm in used)
        looks = []
        for n in [*[n for n in LOOKS if n < planned], planned]:
            if all(len(arm.first(n).runs) == n for arm in used):
                few = {s: arm.first(n) for s, arm in arms.items()}
                found = [d for _, d in compare(pairs, measures, few)]
                looks.append((n / planned, found))
        return Finding(
            self.scale,
            name,
            claim["text"],
            (name, claim["text"]) in self.primary,
            claim["holds"],
            planned,
            compare(pairs, measures, arms),
            looks,
            self.is_testable(claim, pairs, measures, arms),
        )

    def is_testable(self, claim, pairs, measures, arms):
        if self.gate is None or measures != ENDPOINTS:
            return True
        for ours, theirs in pairs.values():
            control = arms[claim.get("control", theirs)]
            drifts = [late - early for early, late in map(windows, control.alive.values())]
            mine = {s: windows(run) for s, run in arms[ours].alive.items()}
            others = {s: windows(run) for s, run in arms[theirs].alive.items()}
            seeds = sorted(mine.keys() & others.keys())
            if len(seeds) < 2 or len(drifts) < 2:
                continue
            early, late = ([mine[s][i] - others[s][i] for s in seeds] for i in (0, 1))
            half = statistics.stdev(late) / math.sqrt(len(late)) * student(0.95, len(late) - 1)
            moved = abs(statistics.fmean(late) - statistics.fmean(early))
            if abs(statistics.fmean(drifts)) > self.gate["points"] or moved >= half:
                return False
        return True

    def decide(self, findings):
        """Holm over the primary claims; the others each for itself."""
        words = {True: "supported", False: "not supported", None: "undecided"}
        verdicts = {i: None for i, f in enumerate(findings) if f.primary}
        while True:
            open_ = len(self.primary) - sum(v is not None for v in verdicts.values())
            share = LEVEL / max(1, open_)
            new = {i: findings[i].judge(share) if v is None else v for i, v in verdicts.items()}
            if new == verdicts:
                break
            verdicts = new
        for i, finding in enumerate(findings):
            verdict = verdicts[i] if finding.primary else finding.judge(LEVEL)
            finding.verdict = words[verdict] if finding.testable else "not testable at this scale"


def selection(arm):
    losses = [r.facts["validation"]["loss"] for r in arm.alive.values() if r.facts["validation"]]
    return arm.diverged, statistics.fmean(losses) if losses else math.inf


def windows(run):
    """The mean accuracies over the second last and the last sixth before annealing."""
    epochs = run.accuracies()
    epochs = epochs[: len(epochs) - (run.config.get("anneal") or 0)]
    length = max(1, len(epochs) // 6)
    return statistics.fmean(epochs[-2 * length : -length] or epochs), statistics.fmean(
        epochs[-length:]
    )


def compare(pairs, measures, arms):
    if measures == ["largest rate"]:
        return [largest_rate(arms)]
    found = []
    for label, (ours, theirs) in pairs.items():
        for measure in measures:
            arm = arms[ours]
            if theirs == CHANCE:
                others = {run.seed: 10.0 for run in arm.runs}
                diverged = (arm.diverged, 0)
            else:
                others = arms[theirs].values(measure)
                diverged = (arm.diverged, arms[theirs].diverged)
            found.append((label, difference(measure, arm.values(measure), others, diverged)))
    return found


def largest_rate(arms):
    starts = {}
    for name, arm in arms.items():
        start, _, rate = name.partition(", rate ")
        starts.setdefault(start, {})[float(rate)] = arm
    counts = []
    for start in list(starts)[:2]:
        rates = [starts[start][rate] for rate in sorted(starts[start])]
        seeds = set.intersection(*({run.seed for run in arm.runs} for arm in rates))
        survived = {}
        for seed in seeds:
            alive = [seed in arm.alive for arm in rates]
            survived[seed] = float(alive.index(False)) if False in alive else float(len(alive))
        counts.append(survived)
    label = " minus ".join(list(starts)[:2])
    return label, difference("largest rate", *counts, (0, 0))


# -- output


def spellings(found):
    """A difference in words: several, where rounding decides the last digit of a tie."""
    nudged = [replace(found, mean=found.mean + 1e-9 * sign) for sign in (-1, 1)]
    return {str(found), *map(str, nudged)}


def check(findings, page):
    """What of these findings the tables of a page do not say."""
    rows = [line for line in page.splitlines() if line.startswith("|")]
    faults = []
    for finding in findings:
        of_claim = [row for row in rows if finding.text in row]
        numbers = [spellings(d) for _, d in finding.differences if d.n]
        complete = []
        for row in of_claim:
            if all(any(text in row for text in texts) for texts in numbers):
                complete.append(row)
        right = [row for row in complete if f"| {finding.verdict} |" in row]
        if not right:
            ours = [str(d) for _, d in finding.differences]
            faults.append(f"{finding.experiment}: {finding.text} {ours} {finding.verdict}")
    return faults


def table(runs):
    """The ledger as one table."""
    columns = ["file", *sorted({k for run in runs for k in run.config})]
    columns += ["test_error", "test_loss", "averaged_error", "diverged", "started", "registration"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for run in runs:
        test = run.facts["test"] or {}
        averaged = run.facts.get("averaged") or {}
        row = {"file": run.file, **run.config}
        row |= {"test_error": test.get("error"), "test_loss": test.get("scaled_loss")}
        row |= {"averaged_error": averaged.get("error"), "diverged": run.diverged}
        row |= {"started": run.facts.get("started"), "registration": run.facts.get("registration")}
        writer.writerow(row)
    return text.getvalue()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledger", type=Path, default=ROOT / "figures/runs")
    parser.add_argument("--check", action="store_true", help="compare with the published pages")
    parser.add_argument("--csv", type=Path, help="write the ledger as one table")
    options = parser.parse_args()
    runs = read_ledger(options.ledger)
    if options.csv:
        options.csv.write_text(table(runs), "utf-8")
        return 0
    faults = []
    for scale, page in PAGES.items():
        findings = Plan(scale, runs).findings()
        if options.check:
            faults += check(findings, page.read_text("utf-8"))
            print(f"{page.name}: {len(findings)} claims recomputed from {len(runs)} runs")
            continue
        for finding in findings:
            kind = "primary" if finding.primary else "exploratory"
            print(f"{scale}, {kind}, {finding.verdict}: {finding.text}")
            for label, found in finding.differences:
                print(f"    {label}, {found.measure}: {found}, {found.n} seeds")
    for fault in faults:
        print(f"differs from the page: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
