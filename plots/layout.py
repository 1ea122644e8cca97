# SPDX-License-Identifier: Apache-2.0
"""Keeps a figure's words apart: lines broken by measured width, legends that fit, ticks that are thinned or
turned, and values with three digits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from netfold.plots import style
from netfold.plots.style import Style

LINE = 1.25 / 72
"""Inches from one line to the next for each point of its letters."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text


def width(text: str, size: float = style.LETTERS) -> float:
    """Inches that a line of text takes at most: without kerning."""
    return sum(map(_letter, text)) * size / 72


@lru_cache(None)
def _letter(letter: str) -> float:
    """How far a letter of one point reaches, in points: one that the font lacks as a sign of Chinese, whatever stands
    for it."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(str(style.SHEET["font.family"])))
    if not font.get_char_index(ord(letter)):
        return 1.0
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


def wrapped(text: str, inches: float, size: float = style.LETTERS) -> str:
    """The text in lines of at most so many inches, broken between words, within words that are longer alone."""
    lines: list[str] = []
    for given in text.split("\n"):
        line = ""
        for word in given.split():
            while width(word, size) > inches and len(word) > 1:
                fits = max((n for n in range(1, len(word)) if width(word[:n], size) <= inches), default=1)
                lines += [line] if line else []
                line = ""
                lines.append(word[:fits])
                word = word[fits:]
            if line and width(f"{line} {word}", size) > inches:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        lines.append(line)
    return "\n".join(lines)


def number(value: float) -> str:
    """A value with three digits, and two behind the point below ten."""
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{float(f'{value:.3g}'):,g}" if abs(value) < 1e6 else f"{value:.3g}"


def legend(figure: Figure, looks: Mapping[str, Style], *, lines: bool) -> None:
    """A legend of all series below the charts, in as few lines as the figure is wide enough for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    room = figure.get_size_inches()[0] - 0.6
    handles = [Line2D([], [], color=look.colour, marker=look.marker if lines else "", linestyle=look.dash,
                      label=wrapped(look.label, room)) if lines else
               Patch(color=look.colour, label=wrapped(look.label, room)) for look in looks.values()]
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(min(8, len(handles)), 0, -1):
        found = figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.4,
                              columnspacing=1.2, frameon=False)
        if columns == 1 or found.get_window_extent(renderer).width < 0.94 * figure.bbox.width:
            break
        found.remove()
    high = found.get_window_extent(renderer).height / figure.dpi
    across, down = figure.get_size_inches()
    titled = figure.get_suptitle().count("\n") * LINE * (style.LETTERS + 1)
    figure.set_size_inches(across, down + high + titled)


def lines(text: str, inches: float, size: float = style.LETTERS) -> float:
    """Inches that a text of this width takes in height beyond its first line."""
    return wrapped(text, inches, size).count("\n") * LINE * size


def words(given: Sequence[str] | Sequence[float]) -> tuple[list[str], bool]:
    """The labels of ticks at equal distances, broken into lines, and whether they must be turned to be apart."""
    told = [tick if isinstance(tick, str) else f"{tick:g}" for tick in given]
    room = (style.COLUMN - 0.6) / len(told) - 0.06
    broken = [wrapped(label, room) for label in told]
    if all(label.split() == one.split() for label, one in zip(told, broken, strict=True)) and max(
            label.count("\n") for label in broken) < 4:
        return broken, False
    for inches in (0.6, 0.9, 1.2, 1.8, 2.4, 3.6):
        broken = [wrapped(label, inches) for label in told]
        if all((label.count("\n") + 1) * LINE * style.LETTERS < room for label in broken):
            break
    return broken, True


def below(given: Sequence[str] | Sequence[float]) -> float:
    """Inches that these labels take below an axis beyond one line."""
    if not any(isinstance(tick, str) for tick in given):
        return 0.0
    labels, turned = words(given)
    if turned:
        return max(width(line) for label in labels for line in label.split("\n"))
    return max(label.count("\n") for label in labels) * LINE * style.LETTERS


def ticks(axes: Axes, given: Sequence[str] | Sequence[float]) -> list[float]:
    """Set a line chart's x axis, and return where each tick stands: a number where it is, words at equal distances."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    numbers = [tick for tick in given if not isinstance(tick, str)]
    if len(numbers) < len(given) or len(set(numbers)) < 2:
        labels, turned = words(given)
        axes.set_xticks(range(len(given)), labels, rotation=90 if turned else 0)
        axes.set_xlim(-0.5, len(given) - 0.5)
        return [float(place) for place in range(len(given))]
    least, most = min(numbers), max(numbers)
    if least > 0 and most / least >= 8:
        axes.set_xscale("log")
        axes.set_xlim(least / (most / least) ** 0.06, most * (most / least) ** 0.06)
        if len(numbers) > 12:
            axes.xaxis.set_major_locator(LogLocator())
        else:
            axes.set_xticks(sorted(set(numbers)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        if len(numbers) > 12:
            axes.xaxis.set_major_locator(MaxNLocator(6))
        else:
            axes.set_xticks(sorted(set(numbers)))
        axes.set_xlim(least - 0.06 * (most - least), most + 0.06 * (most - least))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return [float(tick) for tick in numbers]


def log_values(axes: Axes, ratio: float) -> None:
    """Make the y axis logarithmic, with ticks for values that differ by so many times."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    axes.set_yscale("log")
    subs = (1.0,) if ratio > 300 else (1.0, 3.0) if ratio > 50 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(MaxNLocator(5) if ratio < 5 else LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def settle(figure: Figure) -> None:
    """Break titles, and thin numbers below x axes that overlap, once widths are known, and lay out for good: what draws
    the figure does not lay it out again."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    for changed in (_break_titles, _thin_numbers):
        if changed(figure):
            engine.execute(figure)
    figure.set_layout_engine("none")


def _break_titles(figure: Figure) -> bool:
    """Break the titles of charts into lines; True if any has changed."""
    before = [axes.get_title() for axes in figure.axes]
    for axes in figure.axes:
        place = axes.get_subplotspec()
        across = place.get_gridspec().ncols if place is not None else 1
        inches = min(axes.get_window_extent().width / figure.dpi, figure.get_size_inches()[0] / across - 0.25)
        axes.set_title(wrapped(axes.get_title(), inches, float(axes.title.get_fontsize())))
    return [axes.get_title() for axes in figure.axes] != before


def _thin_numbers(figure: Figure) -> bool:
    """Remove numbers below x axes that overlap; True if there were any."""
    from matplotlib.ticker import FuncFormatter

    found = False
    for axes in figure.axes:
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        if not isinstance(axes.xaxis.get_major_formatter(), FuncFormatter) or not any(
                _meet(*two) for two in itertools.pairwise(labels)):
            continue
        kept = labels[:1]
        for label in labels[1:]:
            if not _meet(kept[-1], label):
                kept.append(label)
        axes.set_xticks([label.get_position()[0] for label in kept])
        found = True
    return found


def _meet(left: Text, right: Text) -> bool:
    """True if two labels in one line are closer than a letter is wide."""
    return bool(right.get_window_extent().x0 < left.get_window_extent().x1 + 3)
