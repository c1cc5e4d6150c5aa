"""The stage `constitutional`: it criticises, revises and judges answers by principles.

OUT/  transcripts/00000.jsonl …  all texts of every prompt, with the source of each judgement
      revisions/00000.jsonl …    prompts with last revisions, as input for `conversations`
      pairs/00000.jsonl …        preference pairs, for DPO or a reward model
"""

import functools
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.stages import sample_stage
from trainrig.posttrain.stages.model_pass import map_with_model
from trainrig.posttrain.stages.prompted_run_files import ConstitutionalChain
from trainrig.ray_runtime.split_processing import Progress
from trainrig.splits import Work
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from trainrig.posttrain.stages.constitutional_chain import Chain, ChainMaker


log = logging.getLogger(__name__)


def revise_answers(run: ConstitutionalChain, progress: Progress | None = None) -> Manifest:
    """Write the chains that `run` describes and return the manifest of their folder.

    Raises ConfigError for a model that can't answer and a file without principles, DataError if no
    prompt can be answered.
    """
    run = sample_stage.make_prompts_absolute(run)
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    principles = read_principles(run.principles)
    asked = sample_stage.open_asked(run, model)
    digest = hashlib.sha256("\0".join(principles).encode()).hexdigest()
    stage = manifest.claim(
        run.output, run, sample_stage.hash_prompted_inputs(run, model) | {"principles": digest}
    )
    if stage.finished:
        return stage.finished
    if run.critic == "rules":
        log.info("%s: rules criticise and judge instead of a model", run.output)
    with stage.undo_if_refused():
        splits = asked.build_splits(run.shard_prompts)
        make = functools.partial(_make_work, run, model, principles)
        counts, files = map_with_model(
            stage, model, run.workers, make, splits, "constitutional: revise answers", progress
        )
    counts["prompts_left_out"] = sum(asked.prompts.left_out.values())
    counts["critic"] = run.critic
    for what in ("revisions", "pairs"):
        if not counts[what]:
            log.warning("%s: %s/ has no rows; see the reasons in transcripts/", run.output, what)
    return stage.finish(counts, files)


def read_principles(path: str) -> list[str]:
    """Read the principles in the text file at `path`, one in each paragraph.

    Lines that begin with # are skipped. Raises ConfigError if the file is missing or has no
    principle.
    """
    try:
        text = storage.decode_utf8(storage.read(path))
    except FileNotFoundError:
        raise ConfigError(
            f"principles: {path}: no such file; write one, with a principle in each paragraph"
        ) from None
    except storage.NotUtf8 as error:
        raise ConfigError(f"principles: {path}: {error}; write it as UTF-8 text") from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    paragraphs = "\n".join(line.strip() for line in lines).split("\n\n")
    found = [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()]
    if not found:
        raise ConfigError(
            f"principles: {path}: the file has no principles; write one in each paragraph"
        )
    return found


def _make_work(run: ConstitutionalChain, model: str, principles: Sequence[str]) -> Work:
    """Return the function that builds the chains of one output file."""
    from trainrig.parallel.mesh import find_local_device
    from trainrig.posttrain.row_scorers import use_threads
    from trainrig.posttrain.stages.constitutional_chain import ChainMaker

    asked = sample_stage.open_asked(run, model)
    decoder = checkpoint.open_model(model).build().to(find_local_device())
    maker = ChainMaker(run, asked, decoder, principles)

    def revise(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        prompts = asked.prompts.prompts[task["first"] :][: run.shard_prompts]
        chains: list[Chain] = []
        with use_threads(run.threads):
            for first in range(0, len(prompts), run.batch):
                chains += maker.make(prompts[first : first + run.batch])
        return _write_chains(run, task["name"], maker, chains)

    return revise


def _write_chains(
    run: ConstitutionalChain, name: str, maker: "ChainMaker", chains: "Sequence[Chain]"
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    from trainrig.posttrain.stages.constitutional_chain import (
        build_preference_pair,
        build_transcript,
    )

    transcripts = [build_transcript(chain, run.critic, maker.find_broken_rules) for chain in chains]
    revisions = [
        {
            **chain.prompt.build_fields(),
            "completion": chain.last,
            "revised": chain.last != chain.answer,
            "prompt_number": chain.prompt.number,
        }
        for chain, row in zip(chains, transcripts, strict=True)
        if chain.last and not row["broken_after"] and chain.no_room in ("", "judgement")
    ]
    pairs = [pair for chain in chains if (pair := build_preference_pair(chain))]
    judged = [chain.judgement for chain in chains if chain.judgement]
    counts: dict[str, Any] = {
        "prompts": len(chains),
        "revised": sum(chain.last != chain.answer for chain in chains),
        "no_room": sum(bool(chain.no_room) for chain in chains),
        "revisions": len(revisions),
        "judged": len(judged),
        "pairs": len(pairs),
        # Judgements that prefer the second text, which is the revision if revisions are compared.
        "second_preferred": sum(judgement.get("preferred") == 1 for judgement in judged),
        "undecided": sum(judgement.get("preferred") is None for judgement in judged),
    }
    if run.rules:
        counts["pass_before"] = sum(not row["broken_before"] for row in transcripts)
        counts["pass_after"] = sum(not row["broken_after"] for row in transcripts)
    files: dict[str, Iterable[Mapping[str, Any]]] = {
        "transcripts": transcripts,
        "revisions": revisions,
        "pairs": pairs,
    }
    return counts, sample_stage.write_rows(run.output, name, files)
