"""Draw the three pictures of docs/architecture.md as SVG files beside this script.

    python docs/pictures/draw.py

The same script always writes the same bytes. The pictures follow the reader's light or dark theme.
Needs the standard library alone.
"""

import html
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
STYLE = """
 text { font: 14px system-ui, "DejaVu Sans", sans-serif; fill: #1b1f24; text-anchor: middle }
 .note { font-size: 12px; fill: #57606a } .left { text-anchor: start }
 .strong { font-weight: 600 } .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px }
 rect { fill: #f3f6fa; stroke: #8c959f; rx: 5px } .host { fill: none; stroke-dasharray: 5 4 }
 .accent { fill: #dbeafe; stroke: #0072b2 } .warm { fill: #fde8dc; stroke: #d55e00 }
 path { fill: none; stroke: #57606a; stroke-width: 1.4 } .dashed { stroke-dasharray: 5 4 }
 marker path { fill: #57606a; stroke: none }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9da7b1 } rect { fill: #1c2128; stroke: #768390 }
  .host { fill: none } .accent { fill: #10304a; stroke: #56b4e9 } .warm { fill: #43260f; stroke: #e69f00 }
  path { stroke: #9da7b1 } marker path { fill: #9da7b1 }
 }"""


@dataclass
class Picture:
    """An SVG picture that is put together from boxes, labels and arrows; units are pixels."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def add_box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "") -> None:
        """Draw a box at its top left corner, its first line in bold and the others as notes."""
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        )
        top = y + height / 2 - 8.5 * (len(lines) - 1) + 5  # text is placed by its baseline
        for number, line in enumerate(lines):
            style = "note" if number else "strong"
            self.add_text(x + width / 2, top + 17 * number, line, style)

    def add_text(self, x: float, y: float, text: str, style: str = "note") -> None:
        """Write one line of text around x, or from x where the style is `left`."""
        self.parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{html.escape(text)}</text>')

    def add_arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw a line through the points, with a head at the last."""
        steps = " L".join(f"{x:g} {y:g}" for x, y in points)
        style = "dashed" if dashed else ""
        self.parts.append(f'<path class="{style}" d="M{steps}" marker-end="url(#head)"/>')

    def write(self, name: str) -> None:
        """Write the picture to a file beside this script."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n<title>{self.title}</title>\n'
            f"<style>{STYLE}\n</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        )
        text = head + "\n".join(self.parts) + "\n</svg>\n"
        (HERE / name).write_text(text, encoding="utf-8")


def draw_data_path() -> None:
    """Draw what each stage reads and writes, from web pages to scores."""
    picture = Picture(900, 330, "The data path: from web pages to scores")
    nouns = [
        ("Web archives", "WARC, WET, JSONL"),
        ("Documents", "Parquet + signals"),
        ("Token shards", "memory-mapped ids"),
        ("Checkpoint", "weights + manifest"),
        ("Tuned model", "SFT, DPO, RL"),
    ]
    verbs = [
        ("curate", "Ray Data"),
        ("tokenize", "Ray Data"),
        ("pretrain", "Ray Train"),
        ("posttrain, rl", "Ray Train"),
    ]
    for number, noun in enumerate(nouns):
        picture.add_box(10 + 186 * number, 40, 132, 56, *noun, kind="accent")
    for number, (verb, engine) in enumerate(verbs):
        left = 142 + 186 * number
        picture.add_arrow((left, 68), (left + 52, 68))
        picture.add_text(left + 26, 18, verb, "code")
        picture.add_text(left + 26, 34, engine)
    picture.add_box(382, 246, 132, 56, "Small runs", "a table of losses")
    picture.add_box(196, 246, 132, 56, "Scaling law", "with intervals")
    picture.add_box(10, 246, 132, 56, "Plan", "a run file")
    picture.add_arrow((448, 96), (448, 244))
    picture.add_text(456, 186, "sweep", "code left")
    picture.add_text(456, 204, "Ray Tune", "note left")
    picture.add_arrow((382, 274), (330, 274))
    picture.add_text(356, 236, "fit", "code")
    picture.add_arrow((196, 274), (144, 274))
    picture.add_text(170, 236, "plan", "code")
    picture.add_arrow((76, 246), (76, 150), (556, 150), (556, 70), dashed=True)
    picture.add_text(300, 142, "the plan is a run file that pretrain accepts")
    picture.add_box(754, 246, 132, 56, "Scorecard", "benchmark scores")
    picture.add_arrow((820, 96), (820, 244))
    picture.add_text(828, 176, "evaluate", "code left")
    picture.add_box(568, 246, 132, 56, "Hugging Face", "a model folder")
    picture.add_arrow((780, 96), (780, 190), (634, 190), (634, 244))
    picture.add_text(676, 182, "export", "code")
    picture.write("data-path.svg")


def draw_processes() -> None:
    """Draw the processes of a training run on a cluster, and what they meet in."""
    picture = Picture(900, 420, "The processes of a training run on a cluster")
    picture.add_text(20, 24, "head node", "note left")
    picture.add_box(10, 32, 300, 290, kind="host")
    picture.add_box(30, 50, 260, 56, "supervisor", "restarts the driver by cause of failure")
    picture.add_box(30, 140, 260, 56, "driver", "one attempt after another")
    picture.add_box(30, 240, 120, 62, "coordinator", "an actor:", "heartbeats, orders")
    picture.add_box(170, 240, 120, 62, "controller", "an actor:", "Ray Train's fit()")
    picture.add_arrow((160, 106), (160, 138))
    picture.add_arrow((110, 196), (90, 238))
    picture.add_arrow((210, 196), (230, 238))
    for node in range(2):
        left = 390 + 255 * node
        picture.add_text(left + 10, 24, f"worker node {node + 1}", "note left")
        picture.add_box(left, 32, 240, 290, kind="host")
        picture.add_box(left + 20, 50, 200, 56, "worker agents", "one Ray worker for each rank")
        picture.add_box(left + 20, 140, 200, 56, "fork server", "has imported torch")
        picture.add_arrow((left + 120, 106), (left + 120, 138))
        for rank in range(2):
            x = left + 20 + 106 * rank
            picture.add_box(x, 240, 94, 62, f"rank {2 * node + rank}", "training loop,", "no Ray", kind="accent")
            picture.add_arrow((left + 80 + 80 * rank, 196), (x + 47, 238))
    picture.add_arrow((290, 262), (340, 262), (340, 78), (408, 78))
    picture.add_text(340, 66, "starts")
    picture.add_arrow((408, 96), (356, 96), (356, 346), (90, 346), (90, 304), dashed=True)
    picture.add_text(225, 340, "heartbeats and exits")
    picture.add_box(390, 352, 495, 52, "run folder, on disk or S3", "checkpoints, events, metrics: the newest valid manifest is the truth", kind="warm")
    for x in (510, 765):
        picture.add_arrow((x, 304), (x, 350))
    picture.write("processes.svg")


def draw_exact_step() -> None:
    """Draw one step: micro-batches, virtual workers, and the tree that adds their gradients."""
    picture = Picture(900, 450, "One step of exact training")
    picture.add_text(450, 22, "step k: a global batch of 8 micro-batches, a function of the run file and k", "")
    for index in range(8):
        picture.add_box(30 + 106 * index, 36, 94, 44, f"{index}", "micro-batch")
    colours = ("accent", "accent", "warm", "warm")
    for virtual in range(4):
        left = 30 + 212 * virtual
        picture.add_box(left, 124, 200, 60, f"virtual worker {virtual}", "adds its gradients in sequence", kind=colours[virtual])
        for part in range(2):
            x = left + 47 + 106 * part
            picture.add_arrow((x, 80), (x, 122))
    picture.add_box(136, 232, 306, 52, "sum of virtual workers 0 and 1")
    picture.add_box(560, 232, 306, 52, "sum of virtual workers 2 and 3")
    for virtual, target in enumerate((230, 348, 654, 772)):
        picture.add_arrow((130 + 212 * virtual, 184), (target, 230))
    picture.add_box(300, 330, 300, 52, "gradient of the global batch", "one fixed tree: the same bits")
    picture.add_arrow((289, 284), (400, 328))
    picture.add_arrow((713, 284), (500, 328))
    picture.add_text(450, 412, "clip, then update: the same weights", "")
    picture.add_arrow((450, 382), (450, 398))
    picture.add_box(636, 328, 18, 18, kind="accent")
    picture.add_text(660, 342, "rank 0 of 2", "note left")
    picture.add_box(738, 328, 18, 18, kind="warm")
    picture.add_text(762, 342, "rank 1 of 2", "note left")
    picture.add_text(640, 366, "With 1, 3 or 4 ranks, others compute", "note left")
    picture.add_text(640, 383, "these boxes. The tree stays the same.", "note left")
    picture.write("exact-step.svg")


if __name__ == "__main__":
    draw_data_path()
    draw_processes()
    draw_exact_step()
