"""A figure as a part of a page: its colors follow the page's, and its columns can be stacked.

The site's build and the Python that runs in a page both use it. `lesson.show` has noted in
`data-columns` where a figure may be cut."""

import re
from html import escape
from itertools import pairwise

# of tinyprop.report.plots and tinyprop.functional.draw; site.css says what they are in the dark
NAMES = {
    "#0072b2": "blue",
    "#d55e00": "red",
    "#009e73": "green",
    "#cc79a7": "pink",
    "#e69f00": "orange",
    "#56b4e9": "sky",
    "#777777": "gray",
    "#888": "gray",
    "#555": "gray",
    "#ffffff": "paper",
    "#cfe3f5": "box",
    "#000000": "ink",
}
COLOR = re.compile("|".join(rf"{color}(?![0-9a-f])" for color in NAMES))
REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
LEFT_OUT = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>", re.S
)
POINT = 4 / 3  # pixels
WIDE = 600  # pixels of a figure that cannot be cut, and is too small to read on a phone as a whole


def in_page(svg: str, name: str, description: str) -> str:
    """HTML of a figure. The name is unlike that of any other figure of the page."""
    svg = LEFT_OUT.sub("", svg).strip()
    root, content = re.fullmatch(r"<svg\b(.*?)>(.*)</svg>", svg, re.S).groups()
    facts = dict(re.findall(r'([\w:-]+)="([^"]*)"', root))
    width, height = pixels(facts["width"]), pixels(facts["height"])
    box = [float(number) for number in facts.get("viewBox", f"0 0 {width} {height}").split()]
    cuts = [0.0, *map(float, facts.get("data-columns", "").split()), box[2]]
    widest = max(end - start for start, end in pairwise(cuts))
    content = COLOR.sub(lambda color: f"var(--figure-{NAMES[color[0]]}, {color[0]})", content)
    content = REFERENCE.sub(rf"\1{name}-", content)
    texts = {key: facts[key] for key in ("font-family", "font-size", "text-anchor") if key in facts}
    font = " ".join(f'{key}="{value}"' for key, value in texts.items())
    parts = []
    for start, end in pairwise(cuts):
        shown = f'<use href="#{name}"/>' if parts else f'<g id="{name}" {font}>{content}</g>'
        size = end - start
        style = f"flex-grow: {size:g}; max-width: {size / box[2] * width:.0f}px; "
        style += f"--share: {size / widest:.3g}"  # when stacked, all have one scale
        parts.append(
            f'<svg viewBox="{start:g} 0 {size:g} {box[3]:g}" style="{style}" '
            f'aria-hidden="true">{shown}</svg>'
        )
    kind = 'class="figure"'
    if len(parts) > 1:
        kind = 'class="figure columns"'
    elif width > WIDE:
        kind = 'class="figure wide" tabindex="0"'  # it scrolls, also by keyboard
    label = escape(description)
    return f'<div {kind} role="img" aria-label="{label}">{"".join(parts)}</div>'


def pixels(length: str) -> float:
    """A length of SVG, in pixels."""
    return float(length.removesuffix("pt")) * (POINT if length.endswith("pt") else 1.0)
