"""Sphinx: the pages of the site. docs/build.py lays out their sources and runs it."""

import re

import tinyprop

project, author = "tinyprop", "The tinyprop developers"
version = release = tinyprop.__version__
copyright = "2026, the tinyprop developers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["**/.*", "tinyprop/**", "tests/**", "tools/**", "figures/runs/**"]
nb_execution_mode = "off"  # outputs are committed
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_dmath_double_inline = True  # $$ on a line of a paragraph
myst_heading_anchors = 3
mathjax_path = "mathjax.js"

html_theme = "furo"
html_title = "tinyprop"
html_favicon = "static/icon.svg"
pygments_dark_style = "github-dark"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0072b2",
        "color-brand-content": "#0072b2",
        "font-stack": FONTS,
        "font-stack--headings": FONTS,
    },
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100


def as_rst(text: str) -> list[str]:
    """A docstring, which is plain text with `code`, formulas in indented paragraphs, lists and
    doctests."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        first = paragraph.lstrip("\n")
        if first.lstrip().startswith(">>>"):
            lines += [*paragraph.split("\n"), ""]
        elif all(line.startswith("    ") for line in paragraph.split("\n") if line):
            lines += ["::", "", *paragraph.split("\n"), ""]
        else:
            pieces = re.split(r"`+([^`]+)`+", paragraph)
            pieces[::2] = [re.sub(r"([\\*|_])", r"\\\1", piece) for piece in pieces[::2]]
            pieces[1::2] = [f"``{piece}``" for piece in pieces[1::2]]
            marked = "".join(pieces)
            lines += [*marked.split("\n"), ""]
    return lines


def process(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    lines[:] = as_rst("\n".join(lines))


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", process)
