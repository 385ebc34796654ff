"""benchmarks/FEATURES.md, which the README quotes, says what the installed peers answer."""

import pytest

from benchmarks import features


def committed():
    """The answers on the page, by peer."""
    rows = [
        line.strip("| ").split(" | ")
        for line in features.PAGE.read_text().splitlines()
        if line.startswith("| ")
    ]
    found = {
        name.rpartition(" ")[0]: [row[i + 1] for row in rows[2:]] for i, name in enumerate(rows[0])
    }
    assert [row[0] for row in rows[2:]] == list(features.QUESTIONS)
    assert list(found) == list(features.TITLES.values())
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other frameworks
@pytest.mark.parametrize("package", features.installed())
def test_the_page_says_what_the_peer_answers(package):
    assert committed()[features.TITLES[package]] == features.answers(package)


def test_a_wrong_gradient_is_a_no(monkeypatch):
    say = features.words("tinyprop")
    say.convolve = lambda x, w: x
    say.edit = lambda x: None
    monkeypatch.setattr(features, "words", lambda package: say)
    found = dict(zip(features.QUESTIONS, features.answers("tinyprop"), strict=True))
    assert (found["convolution"], found["gradients of arrays"]) == ("no", "yes")
