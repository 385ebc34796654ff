"""Anyone's claims: in a file or in a notebook, by the decorator that enters ours."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from html.parser import HTMLParser
from multiprocessing import get_context

import pytest

import tinyprop as tp
from tests.helpers import run_python
from tinyprop.cli import main
from tinyprop.verify import claim, claimed
from tinyprop.verify.ledger import LEDGER, OURS, key

GOOD = '''
import numpy as np
import tinyprop as tp
from tinyprop.verify import claim, claimed, beside

@claim("X1", "Nobody (2026), 1", "A coin shows heads half of the time.")
def coin(mc):
    """Two sides, equally likely."""
    tosses = lambda random, count: {"heads": random.integers(2, size=count).astype(float)}
    found = mc.tally("coin", tosses, samples=10_000)
    yield claimed("heads", 0.5, exact=0.5, measured=found.mean("heads"))
    yield beside("variance", exact=0.25, measured=found.variance("heads"))
    return "both sides are alike"
'''
BAD = {  # what stands in a file beside a good claim, and what its message says
    "no docstring": (
        'def bad(mc):\n    yield claimed("a", 1.0, exact=1.0)\n    return "so"',
        "claim X2, bad (bad.py:",
        "rule: the docstring of a claim derives its exact value",
    ),
    "samples": (
        'def bad(mc):\n    """So."""\n    mc.tally("five", lambda random, n: np.zeros(5), 1000)\n'
        '    yield claimed("a", 1.0, exact=1.0)\n    return "so"',
        "'five', a draw of 1000 samples that returns (5,)",
        "rule: it returns (samples,), (quantities, samples)",
    ),
    "an exception": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", 1.0, exact=1.0 / 0.0)',
        "which raises ZeroDivisionError: float division by zero",
        "bad.py, line",
    ),
    "NaN": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", 1.0, exact=float("nan"))\n'
        '    return "so"',
        "'a', exact is nan",
        "rule: the numbers of a case are finite",
    ),
    "no case": (
        'def bad(mc):\n    """So."""\n    return "so"',
        "which yields no case",
        "try:  yield tp.verify.claimed(",
    ),
    "no reason": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", 1.0, exact=1.0)',
        "which returns None",
        "rule: the function of a claim returns the reason",
    ),
    "a number": (
        'def bad(mc):\n    """So."""\n    yield 1.0\n    return "so"',
        "which yields a float",
        "try:  yield tp.verify.claimed(",
    ),
    "no exact number": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", tp.verify.as_derived, measured=1.0)\n'
        '    return "so"',
        "claimed('a', as_derived) without an exact number",
        "rule: the claim is judged by that number",
    ),
    "an error bar of NaN": (
        'def bad(mc):\n    """So."""\n'
        '    draw = lambda r, n: {"x": r.random(n), "y": r.random(n)}\n'
        '    found = mc.tally("x", draw, 1000).given({"y": 0.5})\n'
        '    yield claimed("a", 0.1, measured=found.variance("x"))\n    return "so"',
        "'a', its error bar is nan",
        "rule: the numbers of a case are finite",
    ),
    "an infinite number": (
        'def bad(mc):\n    """So."""\n    inf = float("inf")\n'
        '    yield claimed("a", inf, exact=inf)\n    return "so"',
        "'a', claimed is inf",
        "rule: the numbers of a case are finite",
    ),
    "the error bar of one sample": (
        'def bad(mc):\n    """So."""\n'
        '    yield claimed("a", 1.0, measured=tp.verify.Estimate.of([3.0]))\n    return "so"',
        "'a', its error bar is inf",
        "an error bar of one sample",
    ),
    "neither exact nor measured": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", 1.0)\n    return "so"',
        "'a', without either",
        "rule: a case has an exact number, a measured one, or both",
    ),
    "a name that is not a string": (
        'def bad(mc):\n    """So."""\n    yield claimed(3, 1.0, exact=1.0)\n    return "so"',
        "a case named 3",
        "rule: a case says in words what its number is",
    ),
    "an infinite tolerance": (
        'def bad(mc):\n    """So."""\n'
        '    yield claimed("a", 1.0, exact=5.0, measured=1.0, tolerance=float("inf"))\n'
        '    return "so"',
        "'a', tolerance is inf",
        "rule: the numbers of a case are finite",
    ),
    "a negative rounding": (
        'def bad(mc):\n    """So."""\n'
        '    yield claimed("a", 1.0, exact=1.0, rounding=-0.1)\n    return "so"',
        "'a', rounding is -0.1",
        "rule: it is 0 or more",
    ),
    "an unknown relation": (
        'def bad(mc):\n    """So."""\n'
        '    yield tp.verify.Case("a", 1.0, 2.0, relation="about")\n    return "so"',
        "'a', relation is 'about'",
        "rule: a relation is one of: equal to, at most",
    ),
    "a text as number": (
        'def bad(mc):\n    """So."""\n    yield tp.verify.Case("a", "1.0", 2.0)\n    return "so"',
        "'a', claimed is '1.0'",
        "rule: the numbers of a case are Python's",
    ),
    "a number as estimate": (
        'def bad(mc):\n    """So."""\n'
        '    yield tp.verify.Case("a", 1.0, 2.0, estimate=1.0)\n    return "so"',
        "'a', its estimate is a float",
        "rule: what was measured is an Estimate",
    ),
    "no end": (
        'def bad(mc):\n    """So."""\n    while True:\n        yield claimed("a", 1.0, exact=1.0)',
        "which yields more than 10,000 cases",
        "rule: the function of a claim ends",
    ),
    "a blank reason": (
        'def bad(mc):\n    """So."""\n    yield claimed("a", 1.0, exact=1.0)\n    return "  "',
        "which returns '  '",
        "rule: the function of a claim returns the reason",
    ),
    "an array": (
        'def bad(mc):\n    """So."""\n'
        '    yield claimed("a", 1.0, exact=np.ones(3))\n    return "so"',
        "the case 'a' with exact: a ndarray of shape (3,)",
        "rule: the numbers of a case are single numbers",
    ),
    "exit": (
        'def bad(mc):\n    """So."""\n    raise SystemExit(0)\n    yield',
        "which raises SystemExit: 0",
        "bad.py, line",
    ),
    "no argument": (
        'def bad():\n    """So."""\n    yield',
        "takes 0 positional arguments",
        "rule: the function of a claim takes a Sampler",
    ),
    "NumPy's global generator": (
        'def bad(mc):\n    """So."""\n'
        '    found = mc.tally("x", lambda r, n: np.random.random(n), 1000)\n'
        '    yield claimed("a", 0.5, measured=found.mean())\n    return "so"',
        "which draws from the generator of a whole process",
        "rule: the seed of the run decides all random numbers",
    ),
    "complex samples": (
        'def bad(mc):\n    """So."""\n'
        '    found = mc.tally("x", lambda r, n: 1j * r.random(n), 1000)\n'
        '    yield claimed("a", 0.5, measured=found.mean())\n    return "so"',
        "samples of dtype complex128",
        "rule: samples are real numbers",
    ),
    "names that change": (
        'def bad(mc):\n    """So."""\n'
        '    draw = lambda r, n: {f"of {n}": r.random(n)}\n'
        '    mc.tally("x", draw, 1500, block=1000)\n    yield',
        "blocks of of 1000 and of of 500",
        "rule: each block of samples has the same quantities",
    ),
    "a wrong name": (
        'def bad(mc):\n    """So."""\n'
        '    found = mc.tally("x", lambda r, n: {"gain": r.random(n)}, 1000)\n'
        '    yield claimed("a", 1.0, measured=found.mean("gian"))\n    return "so"',
        "no quantity 'gian'",
        "gain",
    ),
}


PART = """
from functools import partial
import tinyprop as tp
tp.verify.claim("X2", "s", "s")(partial(print, 1))
"""


@pytest.fixture(autouse=True)
def ledger():
    """Only ours before a test; what it enters is gone after it."""
    before = dict(LEDGER)
    for one in before.values():
        if one.file.parent != OURS:
            tp.verify.unregister(one.id)
    yield
    LEDGER.clear()
    LEDGER.update(before)


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_of_claims_is_settled_like_ours(tmp_path, capsys):
    path = written(tmp_path, GOOD)
    assert main(["verify", str(path), "c1", "--samples", "10000", "-v"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "X1 A coin shows heads half of the time. ✓ holds heads 0.5 0.5" in said
    assert "2 claims in" in said
    (result,) = tp.verify.run(["X1"])
    assert (result.verdict, result.derivation) == ("holds", "Two sides, equally likely.")
    assert [c.id for c in tp.verify.claims("mine")] == ["X1"]
    assert len(tp.verify.claims("all")) == 82
    assert len(tp.verify.claims()) == 51


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_claim_says_what_is_wrong_and_others_still_run(kind, tmp_path, capsys):
    function, got, more = BAD[kind]
    text = f'{GOOD}\n@claim("X2", "2", "A bad one.")\n{function}\n'
    path = written(tmp_path, text, "bad.py")
    assert main(["verify", str(path), "-v"]) == 1
    said = capsys.readouterr().out
    assert "not as expected: X2." in said
    good, bad = tp.verify.run([path])
    assert (good.verdict, bad.verdict, bad.cases) == ("holds", "unsettled", ())
    assert [line[:5] for line in bad.problem.splitlines()] == ["got: ", "rule:", "try: "]
    assert got in bad.problem
    assert more in bad.problem


def test_the_numbers_of_a_case_may_be_tensors(tmp_path):
    text = GOOD.replace("exact=0.5", "exact=tp.tensor([0.0, 1.0]).mean()")
    (result,) = tp.verify.run([written(tmp_path, text)])
    assert type(result.exact) is float
    assert json.dumps(result.to_json())


def test_two_files_of_one_name_are_two_files(tmp_path):
    paths = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name, GOOD.replace("X1", name)))
    assert [result.id for result in tp.verify.run(paths)] == ["one", "other"]


def test_an_id_twice_is_said_and_the_first_one_stays(tmp_path):
    again = GOOD.replace("def coin", "def other").partition("@claim")[2]
    path = written(tmp_path, f"{GOOD}\n@claim{again}")
    first, second = tp.verify.run([path])
    assert (first.id, first.verdict) == ("X1", "holds")
    assert (second.id, second.verdict) == ("X1-2", "unsettled")
    assert "claim X1 a second time, other (mine.py:" in second.problem

    @claim("c1", "2", "Another C01.")
    def impostor(mc):
        """So."""

    (result,) = tp.verify.run([impostor])
    assert "claim c1 a second time" in result.problem
    assert LEDGER[key("C01")].section == "3.2, Remark 1"


def test_a_wrong_expected_verdict_or_id_is_said():
    @claim("X3", "2", "So.", expected="hold")
    def one(mc):
        """So."""

    @claim("X 4", "2", "So.")
    def other(mc):
        """So."""

    first, second = (tp.verify.run([bad])[0] for bad in (one, other))
    assert "expected='hold'" in first.problem
    assert "try:  did you mean 'holds'?" in first.problem or "holds" in first.problem
    assert "claim 'X 4'" in second.problem


WRONG_WORDS = {
    '"X2", "", "A statement."': "without a section",
    '"X2", "2", "  "': "without a statement",
    '"X2", "2", "A statement.", expected=["holds"]': "with expected=['holds']",
    '"X2", "2", "A statement.", expected="hold"': "with expected='hold'",
    '"X2", "2", "A statement.", family=3': "with family=3",
    '"X2", "2", "A statement.", family="all"': "with family='all'",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_wrong_words_of_a_claim_are_said_and_listed(words, tmp_path, capsys):
    bad = f'@claim({words})\ndef bad(mc):\n    """So."""\n    yield\n'
    path = written(tmp_path, f"{GOOD}\n{bad}")
    assert main(["verify", str(path), "--list"]) == 0
    assert "unsettled" in capsys.readouterr().out
    assert main(["verify", str(path), "-v"]) == 1
    assert "✓ holds" in capsys.readouterr().out
    _, result = tp.verify.run([path])
    assert WRONG_WORDS[words] in result.problem
    assert [line[:5] for line in result.problem.splitlines()] == ["got: ", "rule:", "try: "]
    assert "mine" in {one.family for one in tp.verify.claims("all")}


ODD = r"""
@claim("X2", "Mü (2026),\n§ 2", "Größe ≥ 0,\n\n中文 | `code` <b>, and half a character: \ud800.")
def odd(mc):
    '''Because \ud800.'''
    yield claimed("naïve |\nname", 1.0, exact=1.0)
    return "weil\nε < 中文"
"""


def test_odd_words_are_written_and_lines_are_joined(tmp_path, capsys):
    path = written(tmp_path, f"{GOOD}{ODD}")
    names = [tmp_path / name for name in ("report.md", "report.html", "numbers.json")]
    words = ["--report", str(names[0]), "--report", str(names[1]), "--json", str(names[2])]
    assert main(["verify", str(path), "-v", *words]) == 0
    page = names[0].read_text(encoding="utf-8")
    assert "## X2 Größe ≥ 0, 中文 | `code` <b>, and half a character: ?." in page
    assert "**✓ holds**: weil ε < 中文" in page
    assert "| naïve \\| name | 1 | 1 |" in page
    _, odd = json.loads(names[2].read_text(encoding="utf-8"))
    assert odd["section"] == "Mü (2026), § 2"
    assert "&lt;b&gt;" in names[1].read_text(encoding="utf-8")


def test_a_part_of_a_package_says_how_to_import(tmp_path, capsys):
    (tmp_path / "pack").mkdir()
    path = written(tmp_path / "pack", f"from .helper import x\n{GOOD}")
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path)])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "attempted relative import" in said
    assert f"try:  from pack.helper import name, with PYTHONPATH={tmp_path}" in said


def test_a_file_that_changed_is_read_again(tmp_path):
    path = written(tmp_path, GOOD)
    tp.verify.run([path])
    written(tmp_path, GOOD.replace("def coin", "def toss").replace("both sides", "two sides"))
    (result,) = tp.verify.run([path])
    assert (result.id, result.problem, result.reason) == ("X1", "", "two sides are alike")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", None, "there is none of this name"),
        ("empty.py", "x = 1", "which enters no claim"),
        ("broken.py", "1 / 0", "raises ZeroDivisionError"),
        ("leaves.py", "import sys; sys.exit(0)", "raises SystemExit: 0"),
        ("part.py", PART, "got:  {path}, which raises TypeError: claim X2, made of a partial"),
        ("number.py", "import tinyprop as tp; tp.verify.claim(3, 's', 's')(print)", "with id=3"),
    ],
)
def test_a_file_without_claims_is_refused(name, text, message, tmp_path, capsys):
    if text is not None:
        written(tmp_path, text, name)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(tmp_path / name)])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert message.format(path=tmp_path / name) in said
    assert [line[:6] for line in said.splitlines()[1:3]] == ["rule: ", "try:  "]


def test_other_processes_import_the_file(tmp_path):
    path = written(tmp_path, GOOD)
    expected = tp.verify.run([path, "C26"], samples=5000)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert tp.verify.run([path, "C26"], samples=5000, executor=pool) == expected


def test_a_claim_of_no_file_is_settled_by_threads_only():
    names = {}
    exec(compile(GOOD, "<notebook>", "exec"), names)
    with ThreadPoolExecutor(1) as pool:
        (result,) = tp.verify.run([names["coin"]], samples=5000, executor=pool)
    assert result.verdict == "holds"
    with pytest.raises(ValueError, match="rule: a worker imports a claim from its file"):
        pickle.dumps(names["coin"])


def test_a_file_that_is_gone_does_not_stop_the_others(tmp_path):
    path = written(tmp_path, GOOD)
    picked = [*tp.verify.ledger.in_file(path), LEDGER["C26"]]
    pieces = [tp.verify.ledger.Reference.to(one) for one in picked]
    path.unlink()
    del LEDGER["X1"]
    settle = {"samples": 5000, "until": None, "seed": 0, "backend": "numpy", "threads": 1}
    lost, ours = (tp.verify.settling.settled(piece, **settle) for piece in pieces)
    assert (lost.id, lost.verdict, ours.verdict) == ("X1", "unsettled", "holds")
    assert "the file where it was" in lost.problem


class Text(HTMLParser):
    """The text of a page, and what it loads from elsewhere."""

    def __init__(self):
        super().__init__()
        self.text, self.links = "", []

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href")]


def test_a_report_has_every_number_and_derivation(tmp_path, capsys):
    function, *_ = BAD["no docstring"]
    text = f'{GOOD}\n@claim("X2", "2", "A <bad> one.")\n{function}\n'
    path = written(tmp_path, text)
    names = [tmp_path / name for name in ("report.md", "report.html", "numbers.json")]
    words = ["--report", str(names[0]), "--report", str(names[1]), "--json", str(names[2])]
    assert main(["verify", str(path), "C12", "--samples", "10000", *words]) == 1
    assert f"The report is in {names[1]}" in capsys.readouterr().out
    page = Text()
    page.feed(names[1].read_text())
    assert page.links == []
    assert names[1].read_text().count("<table") == names[1].read_text().count('<div class="wide">')
    for text in (names[0].read_text(), page.text):
        for words in (
            "The diagonal of E[J J^T] is 1.47.",
            "1.46694",
            "J is the Jacobian of a ReLU layer",
            "Nobody (2026), 1. Two sides, equally likely.",
            "A <bad> one.",
            "rule: the docstring of a claim",
        ):
            assert words in text
    assert [result["id"] for result in json.loads(names[2].read_text())] == ["C12", "X1", "X2"]


def test_the_list_computes_nothing(monkeypatch, capsys):
    monkeypatch.setattr("tinyprop.verify.command.settle", None)
    assert main(["verify", "--list"]) == 0
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line[:1] in "CGN"]) == 81
    assert "init\nN09" in said
    assert main(["verify", "--list", "--family", "dyt"]) == 0
    assert capsys.readouterr().out.startswith("dyt\nN28")


def test_the_list_loads_little():
    program = "import sys; from tinyprop.cli import main; main(['verify', '--list']); "
    program += "print({'matplotlib', 'tqdm'} & set(sys.modules), file=sys.stderr)"
    assert run_python(program).stderr == "set()\n"


@pytest.mark.parametrize("wrong", ["report.pdf", "report"])
def test_a_report_is_markdown_or_html(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", "C06", "--report", wrong])
    assert caught.value.code == 2
    assert "does not end in .md or .html" in capsys.readouterr().err


def test_ours_are_entered_by_the_public_decorator():
    assert {type(one) for one in LEDGER.values()} == {tp.verify.Claim}
    assert tp.verify.claim is claim
    assert claimed("a", "1.47", exact=1.4749).error == 0.0
    assert claimed("a", "1.47", exact=1.4751).error > 0.0


@pytest.mark.parametrize(
    ("printed", "half"), [("1.47", 0.005), ("12", 0.5), ("1e-3", 5e-4), ("-1.5e-4", 5e-6)]
)
def test_a_number_in_print_has_the_digits_that_are_printed(printed, half):
    case = claimed("a", printed, exact=float(printed) + 1.01 * half)
    assert case.rounding == pytest.approx(half)
    assert case.error > 0.0
    assert claimed("a", printed, exact=float(printed) + 0.99 * half).error == 0.0
