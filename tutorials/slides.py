"""Slides from the lessons: python tutorials/slides.py [03 ...] [directory] writes a Markdown deck
and its figures.

A section of a lesson is a slide with its heading, the first sentence or two of each paragraph and
of each item of a list, its formulas and tables, or several slides if that is too much for one.
Every figure is a slide of its own. `---` separates slides, as Marp, Slidev and pandoc expect:

    pandoc -s --mathjax -t revealjs runs/slides/03_initialization.md -o slides.html
"""

import base64
import json
import math
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
# one, or as many short ones as make a line
SENTENCES = re.compile(r".{80,}?[.?!]\)?(?=\s|$)", re.S)
LINES = 18  # of text on a slide
CONTINUED = ", continued"
LINK = re.compile(r"(?<!!)\[([^]]+)\]\([^)]+\)")


def gist(block: str) -> str:
    """The part of a paragraph that goes on a slide."""
    if block.startswith(("|", "#", "    ")):
        return block
    if block.startswith("- "):
        return "\n".join(first_sentences(item) for item in re.split(r"\n(?=- )", block))
    parts = []
    for i, piece in enumerate(re.split(r"(\$\$.*?\$\$)", block, flags=re.S)):
        parts.append(piece if i % 2 else first_sentences(piece.strip()) if i == 0 else "")
    return "\n\n".join(part for part in parts if part)


def first_sentences(text: str) -> str:
    found = SENTENCES.match(text)
    return found[0] if found else text


def lines(block: str) -> float:
    """How high a block is on a slide, in lines of 75 characters."""
    height = {"$$": 3.0, "| ": 1.4}
    return 0.6 + sum(height.get(line[:2], math.ceil(len(line) / 75)) for line in block.split("\n"))


def slides(notebook: Path, to: Path) -> list[str]:
    made: list[list[str]] = []
    heading, figures = "", 0
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            before, exercises, _ = text.partition("## Exercises")
            for block in filter(None, map(gist, LINK.sub(r"\1", before).strip().split("\n\n"))):
                if block.startswith("#"):
                    heading = block.partition("\n")[0]
                    made.append([])
                elif (
                    made[-1][0].startswith("![") or sum(map(lines, made[-1])) + lines(block) > LINES
                ):
                    made.append([heading + CONTINUED])
                made[-1].append(block)
            if exercises:
                break
        for output in cell.get("outputs", []):
            for kind, suffix in (("image/png", "png"), ("image/svg+xml", "svg")):
                if kind in output.get("data", {}):
                    figures += 1
                    figure = to / f"{notebook.stem}-{figures}.{suffix}"
                    content = "".join(output["data"][kind])
                    figure.write_bytes(
                        base64.b64decode(content) if suffix == "png" else content.encode()
                    )
                    made.append([f"![{heading.lstrip('# ')}]({figure.name})"])
    return ["\n\n".join(blocks) for blocks in made]


def main(arguments: list[str]) -> None:
    wanted = [a for a in arguments if re.fullmatch(r"[0-9E][0-9]", a)]
    folder = Path(next((a for a in arguments if a not in wanted), "runs/slides"))
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in sorted(HERE.glob("[0-9E][0-9]_*.ipynb")):
        if not wanted or notebook.stem[:2] in wanted:
            deck = folder / f"{notebook.stem}.md"
            deck.write_text("\n\n---\n\n".join(slides(notebook, folder)) + "\n")
            print(deck)


if __name__ == "__main__":
    main(sys.argv[1:])
