"""A sweep's report as a self-contained HTML file: the tables of `report.md`, and a plot of the finals."""

from __future__ import annotations

import io
from html import escape
from typing import Any

from markdown_it import MarkdownIt

from meltpoint.reports.cost_plot import draw_cost
from meltpoint.reports.drawing import COLOURS, MARKERS, legend, sheet
from meltpoint.reports.formats import symbol
from meltpoint.reports.results import SweepResults
from meltpoint.reports.statistics.cost import trade_offs
from meltpoint.reports.tables import markdown
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import Spread

ACROSS, PANEL_INCHES = 4, (2.6, 2.3)
PLAIN = {"❄": "frozen", "🔥": "tuned", "❄🔥": "both"}
"""The modes' symbols in letters, since the fonts of plots have no emoji."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }}
table {{ border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; text-align: left; }}
th {{ border-bottom: 2px solid #999; }}
figure {{ margin: 1rem 0; }}
figcaption {{ color: #555; }}
svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def html(results: SweepResults) -> str:
    """Render the page."""
    summary = results.summary
    # Raw HTML is escaped, since names and notes come from users.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown(results))
    drawn = _plot(summary)
    figure = "" if not drawn else (
        f"<figure>{drawn}<figcaption>Finals: mean and sample standard deviation over seeds, ×100; on test, or on dev "
        "(hollow) where test is not scored.</figcaption></figure>"
    )  # fmt: skip
    body = body.replace("</h1>", f"</h1>\n{figure}", 1)
    body = body.replace("<h2>Cost</h2>", f"<h2>Cost</h2>\n{_cost_figure(summary)}", 1)
    return PAGE.format(title=escape(f"Sweep {summary.name}"), body=body)


def _cost_figure(summary: SweepSummary) -> str:
    groups = trade_offs(summary.cells)
    if not groups:
        return ""
    drawn = draw_cost(groups, "svg").decode()
    said = "Score against the seconds of one run of the best setting; filled: the Pareto set of each encoder."
    return f"<figure>{drawn[drawn.index('<svg') :]}<figcaption>{said}</figcaption></figure>"


def _plot(summary: SweepSummary) -> str:
    """An SVG plot with one panel per task and one point per cell with finals; "" without finals."""
    tasks: dict[tuple[str, str], list[tuple[CellSummary, Spread]]] = {}
    for cell in summary.cells:
        over = cell.test or cell.dev
        if over is not None:
            tasks.setdefault((cell.header.task, cell.header.metric), []).append((cell, over))
    if not tasks:
        return ""
    encoders = list(dict.fromkeys(cell.header.encoder for cells in tasks.values() for cell, _ in cells))
    rows, columns = -(-len(tasks) // ACROSS), min(ACROSS, len(tasks))
    with sheet(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.3) as figure:
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, ((task, metric), cells) in zip(places, tasks.items(), strict=False):
            _panel(axes, f"{task} ({metric})", cells, encoders)
        for axes in places[len(tasks) :]:
            axes.set_axis_off()
        legend(figure, encoders, columns=ACROSS)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    drawn = file.getvalue()
    return drawn[drawn.index("<svg") :]


def _panel(axes: Any, title: str, cells: list[tuple[CellSummary, Spread]], encoders: list[str]) -> None:
    names = list(dict.fromkeys(_name(cell) for cell, _ in cells))
    axes.set_title(title)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(visible=True, axis="y", linewidth=0.4, color="0.88")
    axes.spines[["top", "right"]].set_visible(False)
    for cell, over in cells:
        number = encoders.index(cell.header.encoder)
        offset = 0.12 * (number - (len(encoders) - 1) / 2)  # encoders side by side
        colour = COLOURS[number % len(COLOURS)]
        axes.errorbar(
            names.index(_name(cell)) + offset, 100 * over.mean, yerr=None if over.std is None else 100 * over.std,
            color=colour, marker=MARKERS[number % len(MARKERS)], markersize=5, capsize=2, elinewidth=0.8,
            markerfacecolor=colour if cell.test else "white", linestyle="none", label=cell.header.encoder,
        )  # fmt: skip


def _name(cell: CellSummary) -> str:
    """The mode in letters, and the cell's variant if it has one."""
    mark = symbol(cell.header.mode)
    return " ".join(part for part in (PLAIN.get(mark, mark), cell.header.variant) if part)
