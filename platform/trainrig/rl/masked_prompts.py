"""Prompts that a run must not learn from, and the batches that place one.

A masked prompt keeps its place in the order of prompts, so every other prompt stays in its batch.
It is neither sampled from nor scored. The rows of its group hold one filler token without a target,
and the same reward, 0. So the group has no gradient, as any group with equal rewards, and no weight
depends on the text of the prompt.
"""

import hashlib
import json
from collections.abc import Iterator

from trainrig.errors import ConfigError, DataError
from trainrig.posttrain.prompt_files import Prompt, PromptSet
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.tokens.rows.masked_documents import MaskedDocument, MaskedDocuments

SOURCE = "prompts"  # source of all prompts in a file of masked documents


def describe_prompt(prompt: Prompt) -> MaskedDocument:
    """Return the record of a prompt as a masked document: its row's number, `id` and `url`."""
    row = prompt.row
    return MaskedDocument(
        source=SOURCE,
        number=prompt.number,
        id=str(row.get("id") or ""),
        url=str(row.get("url") or ""),
    )


def check_masks(masked: MaskedDocuments, prompts: PromptSet, fingerprint: str) -> None:
    """Raise DataError unless `masked` are prompts of the files with this `fingerprint`."""
    if masked.shards != fingerprint:
        raise DataError(
            "masked_documents: the file is for other prompts than prompts.paths; run `trainrig "
            "forget` on a run of these prompts"
        )
    known = {describe_prompt(prompt) for prompt in prompts.prompts}
    for document in masked.documents:
        if document not in known:
            raise DataError(
                f"masked_documents: row {document.number} of prompts.paths is not a usable prompt "
                f"with the id '{document.id}' and the URL '{document.url}'; run `trainrig forget` "
                "on a run of these prompts"
            )


def explain_unmaskable(run: ReinforcementLearning) -> str | None:
    """Return the reason why prompts of `run` cannot be masked exactly, or None if they can be.

    With these settings, the prompts of a batch or its samples depend on more than their numbers and
    the weights, so it is not known in advance which updates a prompt touched.
    """
    rollouts = run.rollouts
    reasons = {
        "rollouts.lag": rollouts.lag and "batches are sampled from earlier weights",
        "rollouts.waves": rollouts.waves > 1 and "rewards decide which prompts a batch has",
        "rollouts.redraws": rollouts.redraws and "rewards decide which prompts a batch has",
        "rollouts.partial": rollouts.partial and "batches continue earlier completions",
        "rollouts.vllm": rollouts.vllm and "samples depend on the other prompts of a batch",
        "environment": run.environment and "it may keep a state from prompt to prompt",
        "objective PPO": run.settled_critic and "its critic values every completion",
    }
    found = next(((name, why) for name, why in reasons.items() if why), None)
    return found and f"with {found[0]}, {found[1]}"


def iterate_uses(
    run: ReinforcementLearning, prompts: PromptSet, past: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of each batch before step `past`, and the rows of its prompts, in order."""
    count = run.rollouts.prompts
    for batch in range(-(-past // run.rollouts.updates)):
        places = range(batch * count, (batch + 1) * count)
        yield batch, [prompts.find(place, run.rollouts.seed, 0).number for place in places]


class PromptMasks:
    """The masked prompts of a run, and those that its batches placed."""

    def __init__(
        self, run: ReinforcementLearning, prompts: PromptSet, masked: MaskedDocuments
    ) -> None:
        """Find the batches of the masked prompts. Raises ConfigError if a batch has no other."""
        self.filler = masked.filler
        self.numbers = frozenset(document.number for document in masked.documents)
        self._updates = run.rollouts.updates
        self._uses: list[tuple[int, int]] = []  # (batch, row), ascending
        for batch, rows in iterate_uses(run, prompts, run.training.steps):
            own = self.numbers.intersection(rows)
            if own and own.issuperset(rows):
                raise ConfigError(
                    f"masked_documents: batch {batch} has no other prompts than masked ones, so "
                    "its update has nothing to learn from; raise rollouts.prompts in a new run"
                )
            self._uses += [(batch, row) for row in sorted(own)]

    def describe(self, step: int) -> dict[str, object]:
        """Return the number of masked prompts placed before `step`, and their digest, if any."""
        used = sorted({row for batch, row in self._uses if batch * self._updates < step})
        if not used:
            return {}
        digest = hashlib.sha256(json.dumps(used).encode()).hexdigest()
        return {"masked_documents": {"documents": len(used), "sha256": digest}}
