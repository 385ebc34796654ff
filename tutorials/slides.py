"""Slides from the lessons: python tutorials/slides.py [03 ...] [directory] writes a Markdown deck and its figures.

A section of a lesson is a slide with its heading, the first sentence of each paragraph, its formulas, lists and tables;
every figure is a slide of its own. `---` separates slides, as Marp, Slidev and pandoc expect:

    pandoc -s --mathjax -t revealjs runs/slides/03_initialization.md -o slides.html
"""

import base64
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
SENTENCE = re.compile(r"(.+?[.?!])(?=\s|$)", re.S)
LINK = re.compile(r"(?<!!)\[([^]]+)\]\([^)]+\)")


def gist(block: str) -> str:
    """The part of a paragraph that goes on a slide."""
    if block.startswith(("|", "- ", "#", "    ")):
        return block
    parts = []
    for i, piece in enumerate(re.split(r"(\$\$.*?\$\$)", block, flags=re.S)):
        first = SENTENCE.match(piece.strip())
        parts.append(piece if i % 2 else first[1] if first and i == 0 else "")
    return "\n\n".join(part for part in parts if part)


def slides(notebook: Path, to: Path) -> list[str]:
    made: list[str] = []
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            before, exercises, _ = text.partition("## Exercises")
            for section in filter(None, re.split(r"^(?=#+ )", LINK.sub(r"\1", before), flags=re.M)):
                gists = "\n\n".join(gist(block) for block in section.strip().split("\n\n") if block)
                if section.startswith("#") or not made:
                    made.append(gists)
                elif gists:
                    made[-1] += "\n\n" + gists
            if exercises:
                break
        for output in cell.get("outputs", []):
            for kind, suffix in (("image/png", "png"), ("image/svg+xml", "svg")):
                if kind in output.get("data", {}):
                    figure = to / f"{notebook.stem}-{sum('![' in s for s in made) + 1}.{suffix}"
                    content = "".join(output["data"][kind])
                    figure.write_bytes(base64.b64decode(content) if suffix == "png" else content.encode())
                    heading = re.match(r"#+ (.*)", made[-1])
                    made.append(f"![{heading[1] if heading else ''}]({figure.name})")
    return made


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
