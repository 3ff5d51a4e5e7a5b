"""The architecture, read from the imports: rooms, their order, and the picture `docs/internals/architecture.svg`.

`python tests/house/architecture.py` draws the picture again; a test compares it with the one that is kept.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "internals" / "architecture.svg"

ROOMS = ("tasks", "adapters", "search_spaces", "sweeps", "reports", "launch", "benchmarks")
"""The top level, bottom → top: a room imports from itself and from those before it."""

SUB_ROOMS: Mapping[str, tuple[str, ...]] = {
    "adapters": (
        "hyperparameters", "files", "hardware", "data", "layers", "objectives", "head", "encoder", "heads",
        "families", "multiplier_table", "modes", "tricks", "encoders", "settings", "model", "features",
        "training", "exported_model", "exported_transformers",
    ),
    "sweeps": (
        "storage", "ledger", "specification", "search", "machine", "tracking", "worker", "on_ray", "results",
        "driver", "command_line",
    ),
}  # fmt: skip
"""Room → its folders and single files, bottom → top: each imports from itself and from those before it."""

Arrows = dict[str, set[str]]
"""Importer → what it imports."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted name below `meltpoint` → file, of every module of the package."""
    files = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in [root / "launch.py", *files]
    }


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of all that a module imports, wherever in it; relative ones start with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def module_arrows(root: Path = ROOT) -> Arrows:
    """Module → the modules of the package that it imports, wherever in it."""
    known = modules(root)
    arrows: Arrows = {}
    for name, path in known.items():
        named = [imported for _, imported in imports(ast.parse(path.read_text(encoding="utf-8")))]
        inside = [imported.removeprefix("meltpoint.") for imported in named if imported.startswith("meltpoint.")]
        targets = {target if target in known else target.rpartition(".")[0] for target in inside}
        arrows[name] = (targets & known.keys()) - {name}
    return arrows


def room_of(module: str) -> str:
    """The first part of a module's name."""
    return module.partition(".")[0]


def sub_room_of(module: str) -> str:
    """The second part of a module's name; "" for the room's own `__init__`."""
    return module.split(".")[1] if "." in module else ""


def grouped(arrows: Arrows, room: str | None = None) -> Arrows:
    """The arrows between rooms, or between the sub-rooms of one room."""
    name_of = room_of if room is None else sub_room_of
    found: Arrows = {}
    for importer, targets in arrows.items():
        if room is None or room_of(importer) == room:
            into = found.setdefault(name_of(importer), set())
            into |= {name_of(target) for target in targets if room is None or room_of(target) == room}
    found.pop("", None)
    return {name: targets - {name, ""} for name, targets in found.items()}


def circle(arrows: Arrows) -> list[str]:
    """One import circle, its first member again at the end; empty where there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(arrows.get(name, ())):
            if found := search(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := search(name, []))), [])


def reduced(arrows: Arrows) -> Arrows:
    """The arrows without those that a longer path says already (transitive reduction); there must be no circle."""
    below: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in below:
            targets = arrows.get(name, set())
            below[name] = targets.union(*(reach(target) for target in targets))
        return below[name]

    return {
        name: {one for one in targets if not any(one in reach(other) for other in targets)}
        for name, targets in arrows.items()
    }


def levels(arrows: Arrows) -> list[list[str]]:
    """The names by the length of their longest path downwards, the lowest first."""
    height: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in height:
            height[name] = 1 + max((measure(target) for target in arrows.get(name, ())), default=-1)
        return height[name]

    names = sorted(set(arrows).union(*arrows.values()))
    rows: list[list[str]] = [[] for _ in range(1 + max(measure(name) for name in names))]
    for name in names:
        rows[height[name]].append(name)
    return rows


BOX, LEVEL, MARGIN, WIDTH = (132, 26), 58, 24, 1120
"""Pixels: a box's size, a row's height, the picture's margin, and its width."""


def picture(root: Path = ROOT) -> str:
    """The architecture as SVG: the top level as a line, and the sub-rooms of each room that has some."""
    arrows = module_arrows(root)
    body, top = [], MARGIN
    chain = " → ".join(reversed(ROOMS))
    body.append(f'<text x="{MARGIN}" y="{top + 14}" class="title">{chain} (an arrow points at what is imported)</text>')
    top += 40
    for room in reversed(SUB_ROOMS):
        drawn, bottom = _room(room, grouped(arrows, room), top)
        body += drawn
        top = bottom + 30
    style = (
        "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:14px}"
        "rect{fill:#eef3fb;stroke:#5b7db1}path{fill:none;stroke:#8a97ab}"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">',
        "<title>Rooms of Meltpoint and their imports</title>",
        f"<style>{style}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8Z" style="fill:#8a97ab;stroke:none"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{top}" style="fill:#fff;stroke:none"/>',
        *body, "</svg>", "",
    ])  # fmt: skip


def _room(room: str, arrows: Arrows, top: int) -> tuple[list[str], int]:
    """A room's boxes in rows, the lowest sub-rooms at the bottom, and its reduced arrows; and where it ends."""
    rows = levels(arrows)
    files = Counter(sub_room_of(module) for module in modules() if room_of(module) == room)
    place: dict[str, tuple[float, int]] = {}
    for row, names in enumerate(reversed(rows)):
        step = (WIDTH - 2 * MARGIN) / len(names)
        place |= {name: (MARGIN + step * (at + 0.5), top + 30 + row * LEVEL) for at, name in enumerate(names)}
    count = sum(len(targets) for targets in arrows.values())
    title = f"{room}/: {len(arrows)} sub-rooms with their files, {count} arrows (implied ones are not drawn)"
    drawn = [f'<text x="{MARGIN}" y="{top + 12}" class="title">{title}</text>']
    for name, targets in sorted(reduced(arrows).items()):
        for target in sorted(targets):
            (x, y), (to_x, to_y) = place[name], place[target]
            y += BOX[1]
            bend = (to_y - y) / 2
            drawn.append(
                f'<path d="M{x:.0f} {y}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y}" '
                'marker-end="url(#end)"/>'
            )
    for name, (x, y) in sorted(place.items()):
        drawn.append(f'<rect x="{x - BOX[0] / 2:.0f}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="4"/>')
        label = f"{name} ({files[name]})" if files[name] > 1 else name
        drawn.append(f'<text x="{x:.0f}" y="{y + 17}" text-anchor="middle">{label}</text>')
    return drawn, top + 30 + len(rows) * LEVEL


def may_import(importer: str, target: str) -> bool:
    """Whether `ROOMS` and `SUB_ROOMS` let one module import the other."""
    if room_of(importer) != room_of(target):
        return ROOMS.index(room_of(importer)) > ROOMS.index(room_of(target))
    order = SUB_ROOMS.get(room_of(importer))
    here, there = sub_room_of(importer), sub_room_of(target)
    if order is None or here == there:
        return True
    return here in order and there in order and order.index(here) > order.index(there)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)
