"""Stage `sample`: samples several answers to each prompt, scores them, and writes the best.

OUT/  samples/00000.jsonl …  every answer, with its reward and the reward's parts
      rows/00000.jsonl …     the best answers, as input of `conversations`: rejection sampling
      pairs/00000.jsonl …    preference pairs: the best and the worst answer to each prompt

The stage `constitutional` shares its checks, its splits of the work and its output. Prompts are
answered in batches of a fixed size, counted from the start of each output file. So the batch of a
prompt, and with it the answer, does not depend on the number of workers.
"""

import functools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.prompt_files import FORMAT, Prompt, PromptSet, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder, TextListener
from trainrig.posttrain.rewards import weighted_rewards
from trainrig.posttrain.rewards.reward_contract import Completion
from trainrig.posttrain.stages.model_pass import map_with_model
from trainrig.posttrain.stages.prompted_run_files import AnswerSampling, PromptedRunFile
from trainrig.randomness import RandomKey, draw_words
from trainrig.ray_runtime.split_processing import Progress
from trainrig.splits import Split, Work, sum_counts
from trainrig.tokens.document_set import find_paths, name_files
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from trainrig.models.decoder import Decoder
    from trainrig.models.token_sampling import Sampling


Run = TypeVar("Run", bound=PromptedRunFile)


@dataclass(frozen=True)
class Asked:
    """Model, its prompt encoder, and the prompts that fit it."""

    model: str  # path of the checkpoint
    encoder: PromptEncoder
    prompts: PromptSet

    def build_splits(self, shard_prompts: int) -> list[Split]:
        """Return one split for each run of `shard_prompts` prompts, in order."""
        return [
            Split(f"{number:05d}", {"name": f"{number:05d}", "first": first})
            for number, first in enumerate(range(0, len(self.prompts.prompts), shard_prompts))
        ]


def make_prompts_absolute(run: Run) -> Run:
    """Return a copy of `run` that lists every prompt file by its absolute path."""
    paths = tuple(map(storage.make_absolute, find_paths(FORMAT, run.prompts.paths)))
    return run.model_copy(update={"prompts": run.prompts.model_copy(update={"paths": paths})})


def open_asked(run: PromptedRunFile, model: str, columns: Sequence[str] = ()) -> Asked:
    """Open the checkpoint `model` and read the prompts of `run` whose rows have all `columns`.

    Raises ConfigError if the model is no language model or has too few positions, DataError if no
    row has a usable prompt.
    """
    config, _ = checkpoint.describe(model)
    if config.head != "tokens":
        raise ConfigError(
            f"checkpoint: {model} is {config.description}, which generates no text; name a "
            "language model"
        )
    if run.prompt_tokens + run.maximum_tokens > config.positions:
        raise ConfigError(
            f"prompt_tokens ({run.prompt_tokens}) and maximum_tokens ({run.maximum_tokens}) "
            f"add up to more than the model's {config.positions} positions; lower one of them"
        )
    encoder = PromptEncoder(Encoder.of(checkpoint.read_tokenizer_files(model)))
    prompts = read_prompt_set(run.prompts, encoder, run.prompt_tokens, tuple(columns))
    return Asked(model, encoder, prompts)


def hash_prompted_inputs(run: PromptedRunFile, model: str) -> dict[str, str]:
    """Return the fingerprints of the checkpoint and of the prompt files of `run`."""
    paths = run.prompts.paths
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    return {
        "checkpoint": checkpoint.compute_content_key(model),
        "prompts": manifest.digest([list(pair) for pair in keys]),
    }


def build_sampling(run: PromptedRunFile, purpose: str, prompt: int, sample: int) -> "Sampling":
    """Return the sampling settings of one answer, with a random seed for that answer alone.

    The seed follows from the run's seed, `purpose`, the row number `prompt`, and `sample`, the
    number of the answer among those to the same prompt.
    """
    from trainrig.models.token_sampling import Sampling

    key = RandomKey(run.seed, purpose, sample)
    seed = int(draw_words(key, np.zeros(1, dtype=np.int64), np.array([prompt]))[0])
    return Sampling(
        temperature=run.temperature,
        top_p=run.top_p,
        maximum_tokens=run.maximum_tokens,
        stop=run.stop,
        seed=seed & (2**63 - 1),
    )


def write_rows(
    folder: str, name: str, files: Mapping[str, Iterable[Mapping[str, Any]]]
) -> dict[str, FileSum]:
    """Write rows as FOLDER/KIND/NAME.jsonl for each kind in `files`; return the files' sums."""
    sums = {}
    for kind, rows in files.items():
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        below = f"{kind}/{name}.jsonl"
        storage.write(storage.join(folder, below), lines.encode("utf-8", "replace"))
        sums[below] = manifest.compute_file_sum(storage.join(folder, below))
    return sums


log = logging.getLogger(__name__)
PURPOSE = "sampled answers"  # random key of the samples


def sample_answers(run: AnswerSampling, progress: Progress | None = None) -> Manifest:
    """Sample and score the answers of `run`, write the output folder and return its manifest.

    Raises ConfigError if the model is no language model or a reward cannot be opened, DataError if
    no row has a usable prompt.
    """
    run = make_prompts_absolute(run)
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    weighted_rewards.build_rewards(run.rewards)
    asked = open_asked(run, model, _list_columns(run))
    inputs = hash_prompted_inputs(run, model) | weighted_rewards.hash_reward_inputs(run.rewards)
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        splits = asked.build_splits(run.shard_prompts)
        make = functools.partial(_make_work, run, model)
        summed, files = map_with_model(
            stage, model, run.workers, make, splits, "sample: answer prompts", progress
        )
    counts = _summarise(summed, asked)
    if not counts["rows"]:
        log.warning(
            "%s: none of %d answers became a row; see their scores in samples/, lower "
            "`least`, or sample more",
            run.output,
            counts["samples"],
        )
    return stage.finish(counts, files)


def _list_columns(run: AnswerSampling) -> tuple[str, ...]:
    return tuple(name for part in run.rewards for name in part.columns)


def _summarise(summed: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    samples = summed["samples"]
    prompts = summed["prompts"]
    return {
        "prompts": prompts,
        "prompts_left_out": sum(asked.prompts.left_out.values()),
        "samples": samples,
        "finished": summed["finished"],
        "rows": summed["rows"],
        "pairs": summed["pairs"],
        "prompts_with_a_row": summed["prompts_with_a_row"],
        "reward": round(summed["reward"] / samples, 6),  # mean over answers
        "reward_best": round(
            summed["reward_best"] / prompts, 6
        ),  # mean over prompts of the best answer's reward
        "parts": {n: round(total / samples, 6) for n, total in summed["parts"].items()},
        "faults": summed["faults"],
    }


@dataclass(frozen=True)
class ScoredAnswer:
    """Answer to a prompt, with its reward."""

    prompt: Prompt
    sample: int  # number among the answers to the same prompt, from 0
    completion: Completion
    reward: float
    parts: Mapping[str, float]

    def build_row(self) -> dict[str, Any]:
        """Return the answer as a JSON row of samples/."""
        return {
            "prompt_number": self.prompt.number,
            "sample": self.sample,
            **self.prompt.build_fields(),
            "completion": self.completion.text,
            "finished": self.completion.finished,
            "tokens": len(self.completion.ids),
            "reward": self.reward,
            "parts": dict(self.parts),
        }


def _make_work(run: AnswerSampling, model: str) -> Work:
    """Return the function that answers and scores the prompts of one output file."""
    from trainrig.parallel.mesh import find_local_device
    from trainrig.posttrain.row_scorers import use_threads

    asked = open_asked(run, model, _list_columns(run))
    rewards = weighted_rewards.build_rewards(run.rewards)
    decoder = checkpoint.open_model(model).build().to(find_local_device())

    def sample(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        prompts = asked.prompts.prompts[task["first"] :][: run.shard_prompts]
        groups: list[list[ScoredAnswer]] = []
        faults: Counter[str] = Counter()
        with use_threads(run.threads):
            for first in range(0, len(prompts), run.batch):
                together = prompts[first : first + run.batch]
                groups += answer_all(run, decoder, asked, rewards, together, faults)
        kept = [choose_best(run, group) for group in groups]
        pairs = [pair for group in groups if (pair := choose_pair(run, group))]
        files = {
            "samples": [answer.build_row() for group in groups for answer in group],
            "rows": [_build_row(answer) for group in kept for answer in group],
            "pairs": [_build_pair(*pair) for pair in pairs],
        }
        answers = [answer for group in groups for answer in group]
        counts: dict[str, Any] = {
            "prompts": len(prompts),
            "samples": len(answers),
            "finished": sum(answer.completion.finished for answer in answers),
            "rows": len(files["rows"]),
            "pairs": len(pairs),
            "prompts_with_a_row": sum(bool(group) for group in kept),
            "reward": sum(answer.reward for answer in answers),
            "reward_best": sum(max(answer.reward for answer in group) for group in groups),
            "parts": sum_counts(answer.parts for answer in answers),
            "faults": dict(sorted(faults.items())),
        }
        return counts, write_rows(run.output, task["name"], files)

    return sample


def answer_all(
    run: AnswerSampling,
    model: "Decoder",
    asked: Asked,
    rewards: weighted_rewards.WeightedRewards,
    prompts: Sequence[Prompt],
    faults: Counter[str],
) -> list[list[ScoredAnswer]]:
    """Sample and score `run.samples` answers to each of `prompts` in one batch.

    Returns one list of answers per prompt. The counts of scores that failed are added to `faults`.
    """
    from trainrig.models.generation import Request, generate_batch

    encoder = asked.encoder.encoder
    places = [(prompt, sample) for prompt in prompts for sample in range(run.samples)]
    listeners = [TextListener(encoder, run.stop, run.prompts.chat) for _ in places]
    requests = [
        Request(prompt.ids, build_sampling(run, PURPOSE, prompt.number, sample), listener)
        for (prompt, sample), listener in zip(places, listeners, strict=True)
    ]
    stop = set(encoder.special_tokens.stop_ids)
    said = generate_batch(model, requests, stop, encoder.vocabulary_size)
    completions = [
        Completion(
            prompt=prompt.text,
            text=listener.finish(),
            ids=one.ids if one.stop_id is None else (*one.ids, one.stop_id),
            finished=one.stopped in ("end", "stop"),
            row=prompt.row,
            chat=prompt.chat,
        )
        for (prompt, _), listener, one in zip(places, listeners, said, strict=True)
    ]
    scores = rewards.score(completions, rows=[prompt.number for prompt, _ in places])
    faults.update(scores.faults)
    answers = []
    for n, ((prompt, sample), completion) in enumerate(zip(places, completions, strict=True)):
        parts = {name: values[n] for name, values in scores.parts.items()}
        answers.append(ScoredAnswer(prompt, sample, completion, scores.totals[n], parts))
    return [answers[n : n + run.samples] for n in range(0, len(answers), run.samples)]


def choose_best(run: AnswerSampling, group: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Return the answers of `group` that become rows, by falling reward, then in sample order."""
    found: dict[str, ScoredAnswer] = {}
    for answer in _rank(run, group):
        if run.least is None or answer.reward >= run.least:
            found.setdefault(answer.completion.text.strip(), answer)
    return list(found.values())[: run.keep]


def choose_pair(
    run: AnswerSampling, group: Sequence[ScoredAnswer]
) -> tuple[ScoredAnswer, ScoredAnswer] | None:
    """Return the best and the worst answer of `group`, or None if they differ too little."""
    ranked = _rank(run, group)
    if not ranked:
        return None
    best = ranked[0]
    nonempty = [answer for answer in group if answer.completion.text.strip()]
    worst = min(nonempty, key=lambda answer: answer.reward)
    ahead = best.reward - worst.reward
    return (best, worst) if ahead > 0 and ahead >= run.margin else None


def _rank(run: AnswerSampling, group: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    eligible = [
        answer
        for answer in group
        if answer.completion.text.strip() and (answer.completion.finished or not run.finished)
    ]
    return sorted(eligible, key=lambda answer: -answer.reward)


def _build_row(answer: ScoredAnswer) -> dict[str, Any]:
    return {
        **answer.prompt.build_fields(),
        "completion": answer.completion.text,
        "reward": answer.reward,
        "prompt_number": answer.prompt.number,
        "sample": answer.sample,
    }


def _build_pair(best: ScoredAnswer, worst: ScoredAnswer) -> dict[str, Any]:
    return {
        **best.prompt.build_fields(),
        "chosen": best.completion.text,
        "rejected": worst.completion.text,
        "chosen_reward": best.reward,
        "rejected_reward": worst.reward,
        "prompt_number": best.prompt.number,
    }
