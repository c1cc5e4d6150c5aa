"""The HTML page of a checkpoint's family tree: a picture of its models and data, and a table.

The checkpoint is on the left, so that a narrow screen shows it first. An input stands one column
right of the rightmost box that was made from it, so all lines run to the right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.evaluate.data_lineage import LineageNode, find_run_folder, format_value
from trainrig.report.page_rendering import render_page

MODEL_STAGES = ("pretrain", "posttrain", "rl")
WIDTH = 160  # px of a box
HEIGHT = 58
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
    if node.stage is None and node.folder is not None:
        return "model of no run"
    return node.stage or "not found"


def arrange_family(root: LineageNode) -> FamilyPicture:
    """Place each output and input of a family tree in the picture."""
    nodes = {node.fingerprint: node for node in root.list_distinct()}
    # A lost second mention of an input must not hide the one that was found.
    nodes |= {node.fingerprint: node for node in root.iterate() if node.folder is not None}
    columns = _measure_depths(root, nodes)
    deepest = max(columns.values())
    by_column: dict[int, list[LineageNode]] = {}
    for name, depth in columns.items():
        by_column.setdefault(depth, []).append(nodes[name])
    tallest = max(map(len, by_column.values()))
    height = tallest * (HEIGHT + DOWN) - DOWN + 2 * EDGE
    boxes: dict[str, Box] = {}
    for depth, members in sorted(by_column.items()):
        used = len(members) * (HEIGHT + DOWN) - DOWN
        top = (height - used) // 2
        members = _sort_near_users(members, boxes)
        for number, node in enumerate(members):
            x = EDGE + depth * (WIDTH + ACROSS)
            y = top + number * (HEIGHT + DOWN)
            boxes[node.fingerprint] = Box(node, x, y, _write_lines(node), _choose_kind(node))
    paths = [
        _draw_line(boxes[node.fingerprint], boxes[below.fingerprint])
        for node in nodes.values()
        for below in node.inputs
    ]
    width = (deepest + 1) * (WIDTH + ACROSS) - ACROSS + 2 * EDGE
    return FamilyPicture(tuple(boxes.values()), tuple(dict.fromkeys(paths)), width, height)


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


def _sort_near_users(
    members: Sequence[LineageNode], placed: Mapping[str, Box]
) -> list[LineageNode]:
    """Return nodes of a column in the order of the boxes that they were used for."""

    def find_middle(node: LineageNode) -> float:
        users = [
            box.y
            for box in placed.values()
            if any(below.fingerprint == node.fingerprint for below in box.node.inputs)
        ]
        return sum(users) / len(users) if users else 0.0

    return sorted(members, key=lambda node: (find_middle(node), node.role, node.fingerprint))


def _choose_kind(node: LineageNode) -> str:
    if node.folder is None:
        return "lost"
    return "model" if node.stage in (*MODEL_STAGES, None) else "data"


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


def _draw_line(made: Box, source: Box) -> str:
    """Return the SVG path from the right edge of `made` to the left edge of `source`."""
    x, y = made.x + WIDTH, made.y + HEIGHT // 2
    end_x, end_y = source.x, source.y + HEIGHT // 2
    bend = ACROSS // 2
    return f"M{x} {y}C{x + bend} {y} {end_x - bend} {end_y} {end_x} {end_y}"


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
