"""Figures as SVG inside the page: text stays text, ids are unique, one figure always gives the same text."""

import io
import re

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from analysis import drawing
from analysis.figures import compose_figure
from analysis.load import Logs

PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>", re.DOTALL)
SPACE = re.compile(r"\s*\n\s*")
FONT = re.compile(r"font-family: [^;\"]*; |(?<=px) '[^;\"]*(?=;)| transform=\"rotate\(-0 [^\"]*\"")
COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
LONG_NUMBER = re.compile(r"(\d+\.\d)\d+")
LINE_TO = re.compile(r"(?<=\d) L (?=[-\d])")
IDENTIFIER = re.compile(r' id="([^"]*)"')
REFERENCE = re.compile(r'(?:href="|url\()#([^")]*)')
SIZE = re.compile(r'<svg ([^>]*?)width="([\d.]+)pt" height="([\d.]+)pt"')


def inline_svg(canvas: Figure, name: str, label: str) -> Markup:
    """The figure as an SVG element named `label`; `name` sets its ids apart from those of other figures."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    text = _shortened(buffer.getvalue())
    text = _named(text, name)
    title = f'role="img" aria-label="{escape(label)}" style="--width: \\2pt" '
    return Markup(SIZE.sub(rf"<svg {title}\1", text, count=1).strip())


def _shortened(text: str) -> str:
    """The same drawing in fewer characters: no metadata, no fonts of its own, coordinates to 0.1 points."""
    text = FONT.sub("", SPACE.sub(" ", PROLOGUE.sub("", text)))
    return COORDINATES.sub(lambda match: LINE_TO.sub(" ", LONG_NUMBER.sub(r"\1", match.group(0))), text)


def _named(text: str, name: str) -> str:
    """Ids that the drawing refers to begin with `name`; the others are left out."""
    used = {found: f"{name}-{place}" for place, found in enumerate(dict.fromkeys(REFERENCE.findall(text)))}
    text = IDENTIFIER.sub(
        lambda match: f' id="{used[match.group(1)]}"' if match.group(1) in used else "", text
    )
    return REFERENCE.sub(lambda match: match.group(0).replace(match.group(1), used[match.group(1)]), text)


def figure_svg(logs: Logs, name: str, title: str, command: str) -> tuple[Markup, str]:
    """Figure `name` of the artifacts as SVG, and its caption in Markdown."""
    composed = compose_figure(logs, name, "updates", command)
    return inline_svg(composed.canvas, name, title), composed.caption


def swatch(row: str) -> Markup:
    """A short line in the row's colour and dashes, as in every figure; it adds nothing to the name."""
    colour, line, _ = drawing.row_style(row)
    dashes = {"-": "", "--": "5 2", "-.": "6 2 1 2", ":": "1.5 2"}
    pattern = dashes[line] if isinstance(line, str) else " ".join(str(1.5 * length) for length in line[1])
    return Markup(
        '<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true" focusable="false">'
        '<line x1="0" x2="26" y1="5" y2="5" stroke="{}" stroke-width="3" stroke-dasharray="{}"/></svg>'
    ).format(colour, pattern)
