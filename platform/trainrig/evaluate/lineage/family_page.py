"""The HTML page of a checkpoint's family tree: a picture of its models and data, and a table.

The checkpoint is on the left, so that a narrow screen shows it first. An input stands one column
right of the rightmost box that was made from it, so all lines run to the right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.evaluate.data_lineage import LineageNode, find_run_folder, format_value
from trainrig.report.page_rendering import render_page

MODEL_STAGES = ("pretrain", "posttrain", "rl")
# How models came about that no run made, by the command that wrote them.
MADE_WITHOUT_RUN = {"average": "averaged weights", "import": "imported model"}
WIDTH = 160  # px of a box
HEIGHT = 58
LANE = 6  # px of the height in which a line passes a column
ACROSS = 36  # px between two columns, in which lines run
DOWN = 16
EDGE = 8  # px around the picture
LETTERS = 21  # letters that fit in a box


@dataclass(frozen=True)
class Box:
    """An output or input in the picture, with its place in px."""

    node: LineageNode
    x: int
    y: int
    lines: tuple[str, ...]  # texts in the box
    kind: str  # model, data or lost


@dataclass(frozen=True)
class FamilyPicture:
    """Boxes and the lines between them, as SVG paths."""

    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: int
    height: int


def describe_stage(node: LineageNode) -> str:
    """Return how an output was made, in the words of the field."""
    objective = str(node.settings.get("objective", {}).get("kind", ""))
    roles = {below.role for below in node.inputs}
    if node.stage == "pretrain":
        return "continued pretraining" if "continue_from" in roles else "pretraining"
    if node.stage in MODEL_STAGES:
        adapter = ", adapter" if node.settings.get("lora") else ""
        return f"{node.stage}: {objective}{adapter}"
    if node.stage in MADE_WITHOUT_RUN:
        return MADE_WITHOUT_RUN[node.stage]
    if node.stage is None and node.folder is not None:
        return "model of no run"
    return node.stage or "not found"


def arrange_family(root: LineageNode) -> FamilyPicture:
    """Place each output and input of a family tree in the picture.

    In the columns between an input and what was made from it, its line has a lane of its own, so
    that it runs behind no box.
    """
    nodes = {node.fingerprint: node for node in root.list_distinct()}
    # A lost second mention of an input must not hide the one that was found.
    nodes |= {node.fingerprint: node for node in root.iterate() if node.folder is not None}
    depths = _measure_depths(root, nodes)
    users: dict[str, set[str]] = {name: set() for name in nodes}
    for name, node in nodes.items():
        for below in node.inputs:
            users[below.fingerprint].add(name)
    columns = range(max(depths.values()) + 1)
    first = {name: min((depths[user] for user in users[name]), default=-1) + 1 for name in nodes}
    members = {c: [n for n in nodes if first[n] <= c <= depths[n]] for c in columns}

    def measure(names: Sequence[str], column: int) -> int:
        return sum(_choose_height(depths[name] == column) + DOWN for name in names) - DOWN

    height = max(measure(members[column], column) for column in columns)
    boxes: list[Box] = []
    paths: list[str] = []
    middles: dict[tuple[str, int], int] = {}  # y of the middle of each box and lane, by column
    for column in columns:
        x = EDGE + column * (WIDTH + ACROSS)
        y = EDGE + (height - measure(members[column], column)) // 2
        # Heights of the boxes and of the lane at which the lines to a box or lane begin.
        starts = {
            name: [
                middles[start, column - 1]
                for start in (name, *users[name])
                if (start, column - 1) in middles and (start == name or depths[start] == column - 1)
            ]
            for name in members[column]
        }
        for name in sorted(members[column], key=lambda name: _rank(nodes[name], starts[name])):
            is_box = depths[name] == column
            middle = middles[name, column] = y + _choose_height(is_box) // 2
            paths += [_draw_curve(x - ACROSS, start, middle) for start in sorted(set(starts[name]))]
            if is_box:
                node = nodes[name]
                boxes.append(Box(node, x, y, _write_lines(node), _choose_kind(node)))
            else:
                paths.append(f"M{x} {middle}H{x + WIDTH}")
            y += _choose_height(is_box) + DOWN
    width = len(columns) * (WIDTH + ACROSS) - ACROSS + 2 * EDGE
    return FamilyPicture(tuple(boxes), tuple(paths), width, height + 2 * EDGE)


def _choose_height(is_box: bool) -> int:
    return HEIGHT if is_box else LANE


def _rank(node: LineageNode, starts: Sequence[int]) -> tuple[float, str, str]:
    """Return the sort key that places a node of a column near what its lines come from."""
    return sum(starts) / len(starts) if starts else 0.0, node.role, node.fingerprint


def _measure_depths(root: LineageNode, nodes: Mapping[str, LineageNode]) -> dict[str, int]:
    """Return the length of the longest way from the root to each node.

    A node is never above itself in a tree, so the ways are finite.
    """
    depths: dict[str, int] = {}

    def visit(node: LineageNode, depth: int) -> None:
        if depths.get(node.fingerprint, -1) >= depth:
            return
        depths[node.fingerprint] = depth
        for below in nodes[node.fingerprint].inputs:
            visit(below, depth + 1)

    visit(root, 0)
    return depths


def _choose_kind(node: LineageNode) -> str:
    if node.folder is None:
        return "lost"
    return "model" if node.stage in (*MODEL_STAGES, *MADE_WITHOUT_RUN, None) else "data"


def _write_lines(node: LineageNode) -> tuple[str, ...]:
    folder = "" if node.folder is None else node.folder.partition("/checkpoints/")[0]
    name = folder.rstrip("/").rpartition("/")[2] or node.role
    count = next(
        (
            f"{node.counts[key]:,} {word}"
            for key, word in (
                ("documents_kept", "documents"),
                ("train_tokens", "tokens"),
                ("vocabulary", "entries"),
            )
            if key in node.counts
        ),
        node.fingerprint[:12],
    )
    return tuple(_shorten(text) for text in (name, describe_stage(node), count))


def _shorten(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _draw_curve(x: int, start: int, end: int) -> str:
    """Return the SVG path from the height `start` at `x` to the height `end` one gap further."""
    bend = ACROSS // 2
    return f"M{x} {start}C{x + bend} {start} {x + bend} {end} {x + ACROSS} {end}"


def render_family_page(root: LineageNode) -> str:
    """Return the page as HTML."""
    picture = arrange_family(root)
    nodes = [box.node for box in picture.boxes]
    lost = sum(node.folder is None for node in nodes)
    warnings = []
    if lost:
        warnings.append(
            f"{lost:,} of {len(nodes):,} outputs and inputs are in no searched folder; name their "
            "folders by --search."
        )
    return render_page(
        __name__,
        picture=picture,
        root=root,
        run=find_run_folder(root.folder or root.fingerprint),
        size=(WIDTH, HEIGHT),
        models=sum(box.kind == "model" for box in picture.boxes),
        found=len(nodes) - lost,
        total=len(nodes),
        verified=all(node.verified for node in nodes if node.folder is not None),
        describe_stage=describe_stage,
        format_value=format_value,
        warnings=warnings,
    )
