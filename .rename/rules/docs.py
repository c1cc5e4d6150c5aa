"""README's link and the line of the CHANGELOG."""

PATCHES = [
    (
        "README.md",
        "Apache-2.0. Changes: `CHANGELOG.md`.",
        "Apache-2.0. Changes: `CHANGELOG.md`. To work on the code: [CONTRIBUTING.md](CONTRIBUTING.md).",
    ),
]


def tell(text):
    """The line at the end of Changed, of the section Unreleased."""
    start = text.index("### Changed")
    end = text.index("\n### ", start + 1)
    line = (
        "- Modules lie in folders by what they do, and names are the field's (CONTRIBUTING.md has the tour): imports of `trainrig` and `python -m`\n"
        "  paths change, verbs and run files do not. In `events.jsonl`, `worker_started` has `agent` for `keeper`, `waiting_for_nodes` has\n"
        "  `capacity` for `room`, and `seen_by` says `agents` or `heartbeats`. A curation that was begun before decides anew.\n"
    )
    return text[:end].rstrip("\n") + "\n" + line + text[end:]


def change_log(tree, say):
    path = tree / "CHANGELOG.md"
    path.write_text(tell(path.read_text()))


NAME_HOOKS = [change_log]
