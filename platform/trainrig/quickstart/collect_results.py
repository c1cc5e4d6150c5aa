"""Collection of the results of all stages for the report and for the JSON summary.

Everything is read from manifests, metrics, events and documents, so a second call gives the same
results.
"""

import itertools
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import config, manifest, storage
from trainrig.corpus.curate import DROPPED, KEPT, read_rows
from trainrig.corpus.dedup.dedup_decisions import EXACT, NEAR
from trainrig.evaluate.scorecards import SCORECARD
from trainrig.manifest import Manifest
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.text_generator import Spoken, TextGenerator
from trainrig.quickstart import injected_faults
from trainrig.quickstart import quickstart_results as results
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.quickstart_law import fit_scaling
from trainrig.quickstart.site.site_plan import Plant, read_plants
from trainrig.train.pretrain import open_batches
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.run_file.run_files import Pretraining

EXAMPLES = 3  # Dropped texts to show for each reason.
PAIRS = 8  # Near-duplicates to show.
QUESTIONS = 3  # Questions to ask each model.
SPEECH = Sampling(temperature=0.7, top_k=40, seed=0, maximum_tokens=60)

# Reasons in the order in which curation decides.
REASONS = {
    "quarantined": "could not be read",
    "Length": "too short or too long",
    "Language": "not English, or uncertain",
    "GopherRepetition": "repeats itself",
    "GopherQuality": "structured unlike prose",
    "Symbols": "mostly symbols",
    "RepeatedLines": "one line repeated many times",
    "PII": "too much personal data",
    EXACT: "same text as another page",
    NEAR: "nearly the same as another page",
}
KINDS = {
    "exact_duplicate": "pages under a second URL",
    "near_duplicate": "pages with words changed",
    "foreign_language": "pages in other languages",
    "EMAIL": "e-mail addresses",
    "IP": "public IP addresses",
    "PHONE": "phone numbers",
    "CARD": "payment cards",
    "IBAN": "bank accounts (IBAN)",
}


# The stages with a manifest, by their folder in `Folders`.
STAGES = (
    "pages",
    "documents",
    "tokenizer",
    "tokens",
    "model",
    "conversations",
    "tuned",
    "pairs",
    "aligned",
    "scores_early",
    "scores_model",
    "scores_tuned",
    "scores_aligned",
)


def _read_manifests(at: Folders) -> dict[str, Manifest]:
    return {name: manifest.read_manifest(getattr(at, name)) for name in STAGES}


def collect_results(at: Folders, with_law: bool = False) -> results.QuickstartResults:
    """Collect the results of the finished quickstart in `at`; `with_law` includes its sweep."""
    made = _read_manifests(at)
    run = RunFolder(at.model)
    lines = list(metrics.read_lines(at.model))
    checked, lost, repeated = _check_samples(at, made["model"].counts["steps"])
    dropped, pairs = _count_dropped(at, made["documents"])
    return results.QuickstartResults(
        stages=_collect_stages(made, at.sweep if with_law else None),
        documents_in=made["documents"].counts["documents_in"],
        documents_kept=made["documents"].counts["documents_kept"],
        dropped=dropped,
        planted=_count_planted(
            injected_faults.find_outcomes(read_plants(at.planted), at.documents)
        ),
        near_duplicates=pairs,
        tokens_by_source=made["tokens"].counts["train_tokens_of"],
        vocabulary=made["tokens"].counts["vocabulary"],
        parameters=made["model"].counts["parameters"],
        loss=tuple(
            results.LossPoint(
                line["step"], line["train/tokens"], line["train/loss"], line["attempt"]
            )
            for line in lines
        ),
        held_out=(_read_held_out(at.scores_early, lines), _read_held_out(at.scores_model, lines)),
        restarts=_find_restarts(run, lines),
        speed=_read_series(at.model, "train/tokens_per_second"),
        samples_checked=checked,
        samples_lost=lost,
        samples_repeated=repeated,
        tuning=_read_series(at.tuned, "train/loss"),
        preferences=_read_preferences(at, made["pairs"].counts["held_out_pairs"]),
        scores=_read_scores(at),
        generations=_generate_answers(at),
        versions=made["aligned"].environment,
        machine=f"{platform.platform()}, {os.cpu_count()} CPUs",
        manifests={
            name: storage.compute_sha256(storage.join(getattr(at, name), manifest.MANIFEST))
            for name in STAGES
        },
        commands=_list_commands(at),
        scaling=fit_scaling(at) if with_law else None,
    )


def _read_series(run: str, metric: str) -> results.Series:
    return tuple((line["step"], line[metric]) for line in metrics.read_series(run))


def summarise(at: Folders, told: results.QuickstartResults) -> dict[str, Any]:
    """Return the quickstart's JSON summary."""
    found = injected_faults.find_outcomes(read_plants(at.planted), at.documents)
    duplicates = injected_faults.tally(found, injected_faults.DUPLICATES)
    personal = injected_faults.tally(found, ["personal_data"])
    made = _read_manifests(at)
    return {
        "documents_in": told.documents_in,
        "documents_kept": told.documents_kept,
        "duplicates_planted": sum(duplicates.values()),
        "duplicates_caught": duplicates["caught"],
        "pii_planted": sum(personal.values()),
        "pii_caught": personal["caught"],
        "train_tokens": made["model"].counts["train_tokens"],
        "parameters": told.parameters,
        "loss_first": made["model"].counts["loss_first"],
        "loss_last": made["model"].counts["loss_last"],
        "bits_per_byte": {score.domain: score.bits_per_byte[-1] for score in told.scores},
        **{
            f"bits_per_byte_{model}": {
                score.domain: score.bits_per_byte[n] for score in told.scores
            }
            for n, model in enumerate(results.MODELS[:-1])
        },
        "pairs_right": told.preferences.held_out.accuracy,
        "restarts": len(told.restarts),
        "samples_lost": told.samples_lost,
        "samples_repeated": told.samples_repeated,
        "seconds": {stage.name: stage.seconds for stage in told.stages},
        "report": at.report,
        **({"scaling": _summarise_scaling(told.scaling)} if told.scaling else {}),
    }


def _summarise_scaling(found: results.Scaling) -> dict[str, Any]:
    if found.plan is None:
        return {"points": len(found.points), "problem": found.problem}
    return {
        "points": len(found.points),
        "flops": found.plan.flops,
        "parameters": found.plan.parameters,
        "tokens": found.plan.tokens,
        "loss": found.plan.loss,
        "worst_error": max(abs(point.predicted / point.loss - 1) for point in found.points),
    }


def _collect_stages(
    made: Mapping[str, Manifest], sweep: str | None
) -> tuple[results.StageResult, ...]:
    scored = [name for name in STAGES if name.startswith("scores")]
    pages = made["pages"].counts
    counted: list[tuple[str, Sequence[str], float, str]] = [
        ("pages", ["pages"], pages["docs"] + pages["code"], "pages"),
        ("documents", ["documents"], made["documents"].counts["documents_kept"], "documents"),
        ("tokens", ["tokenizer", "tokens"], made["tokens"].counts["train_tokens"], "tokens"),
        ("model", ["model"], made["model"].counts["parameters"], "parameters"),
        ("tuned", ["conversations", "tuned"], made["tuned"].counts["steps"], "steps"),
        ("aligned", ["pairs", "aligned"], made["aligned"].counts["pairs"], "pairs"),
        (
            "scores",
            scored,
            made["scores_aligned"].counts["bits_per_byte"]["docs"],
            "bits per byte, docs",
        ),
    ]
    stages = [
        results.StageResult(name, sum(made[part].seconds for part in parts), count, unit)
        for name, parts, count, unit in counted
    ]
    if sweep:
        swept = manifest.read_manifest(sweep)
        stages.append(results.StageResult("sweep", swept.seconds, swept.counts["points"], "runs"))
    return tuple(stages)


def _count_dropped(
    at: Folders, documents: Manifest
) -> tuple[tuple[results.Dropped, ...], tuple[results.NearDuplicate, ...]]:
    """Count the dropped documents by reason, and list the least similar near-duplicates.

    Reasons are in the order in which curation decides.
    """
    counts = Counter({"quarantined": sum(documents.counts["quarantined"].values())})
    for rule, number in documents.counts["dropped_by"].items():
        counts[rule.partition(".")[0]] += number
    examples: dict[str, list[str]] = {}
    copies: list[tuple[float, str, str]] = []
    columns = ["url", "text", "dropped_by", "duplicate_of", "similarity"]
    for row in read_rows(at.documents, DROPPED, columns):
        shown = examples.setdefault(row["dropped_by"].partition(".")[0], [])
        if len(shown) < EXAMPLES:
            shown.append(f"{row['dropped_by']}: {row['text']}")
        if row["dropped_by"] == NEAR:
            copies.append((row["similarity"], row["url"], row["duplicate_of"]))
    urls = {row["id"]: row["url"] for row in read_rows(at.documents, KEPT, ["id", "url"])}
    pairs = [results.NearDuplicate(url, urls[kept], s) for s, url, kept in sorted(copies)[:PAIRS]]
    dropped = [
        results.Dropped(words, counts[kind], tuple(examples.get(kind, ())))
        for kind, words in REASONS.items()
        if counts[kind]
    ]
    return tuple(dropped), tuple(pairs)


def _count_planted(found: Mapping[Plant, Any]) -> tuple[results.Planted, ...]:
    counts = injected_faults.count_by_kind(found)
    return tuple(
        results.Planted(words, sum(counts[kind].values()), **counts[kind])
        for kind, words in KINDS.items()
        if kind in counts
    )


def _read_card(scores: str) -> dict[str, Any]:
    return dict(json.loads(storage.read(storage.join(scores, SCORECARD))))


def _read_held_out(scores: str, lines: Sequence[Mapping[str, Any]]) -> results.HeldOutPoint:
    """Return the loss over the held-out documents of all sources, without conversations."""
    card = _read_card(scores)
    documents = [score for name, score in card["scores"].items() if name != "conversations"]
    nats = sum(score["loss"] * score["tokens"] for score in documents)
    tokens = next(line["train/tokens"] for line in lines if line["step"] == card["step"])
    loss = nats / sum(score["tokens"] for score in documents)
    return results.HeldOutPoint(card["step"], tokens, loss)


def _find_restarts(
    run: RunFolder, lines: Sequence[Mapping[str, Any]]
) -> tuple[results.Restart, ...]:
    """Return each attempt that the fault injection ended, with its cost."""
    kills = [event for event in run.read_events() if event["event"] == injected_faults.KILLED]
    restarts = []
    for before, after in itertools.pairwise(run.read_attempts()):
        last = max((li["step"] for li in lines if li["attempt"] == before.number), default=0)
        again = next(
            (li for li in lines if li["attempt"] > before.number and li["step"] > last), None
        )
        killed = next((kill for kill in kills if kill["attempt"] == before.number), None)
        if killed and again:
            seconds = again["time"] - killed["time"]
            restarts.append(results.Restart(last, after.resumed_step, seconds, killed["target"]))
    return tuple(restarts)


def _check_samples(at: Folders, steps: int) -> tuple[int, int, int]:
    """Compare the trained samples with those that the seed prescribes.

    Returns the number of prescribed samples, of samples never trained on, and of trainings beyond
    one for each sample.
    """
    pretraining = config.load(Pretraining, storage.join(at.model, "run.toml"))
    batches = open_batches(at.tokens, pretraining.batches)
    trained = read_trained_samples(RunFolder(at.model))
    checked = lost = repeated = 0
    for step in range(1, steps + 1):
        prescribed = Counter(int(s) for micro in batches.at(step - 1) for s in micro.samples)
        seen = Counter(trained.get(step, ()))
        checked += prescribed.total()
        lost += (prescribed - seen).total()
        repeated += (seen - prescribed).total()
    return checked, lost, repeated


def _read_preferences(at: Folders, held_out_pairs: int) -> results.Preferences:
    """Read the rewards of right and wrong answers from the run's metrics."""
    measured = metrics.read_held_out_series(at.aligned)[-1]
    told = "eval/diagnostics/"
    return results.Preferences(
        steps=tuple(
            _build_preference_point(line, "train/diagnostics/")
            for line in metrics.read_series(at.aligned)
        ),
        held_out=_build_preference_point(measured, told),
        held_out_pairs=held_out_pairs,
        right_drift=measured[f"{told}chosen_drift"],
        wrong_drift=measured[f"{told}rejected_drift"],
    )


def _build_preference_point(line: Mapping[str, Any], told: str) -> results.PreferencePoint:
    names = ("chosen_reward", "rejected_reward", "reward_accuracy")
    return results.PreferencePoint(line["step"], *(line[told + name] for name in names))


def _read_scores(at: Folders) -> tuple[results.DomainScore, ...]:
    folders = (at.scores_model, at.scores_tuned, at.scores_aligned)
    cards = [_read_card(folder) for folder in folders]
    return tuple(
        results.DomainScore(
            domain=name,
            bits_per_byte=tuple(card["scores"][name]["bits_per_byte"] for card in cards),
            perplexity=tuple(card["scores"][name]["perplexity"] for card in cards),
        )
        for name in cards[0]["scores"]
    )


def _generate_answers(at: Folders) -> tuple[results.PromptAnswers, ...]:
    """Generate the answer of each model to the first held-out questions."""
    models = [TextGenerator.open(path) for path in (at.model, at.tuned, at.aligned)]
    lines = itertools.islice(storage.read(at.questions).splitlines(), QUESTIONS)
    questions = [json.loads(line)["messages"][0]["content"] for line in lines]
    return tuple(
        results.PromptAnswers(
            question, tuple(_answer(model.speak(question, SPEECH, chat=True)) for model in models)
        )
        for question in questions
    )


def _answer(spoken: Spoken) -> results.ModelAnswer:
    stops = {"end": "end of turn", "length": "length", "positions": "positions"}
    return results.ModelAnswer(spoken.text, spoken.tokens, stops[spoken.stopped])


def _list_commands(at: Folders) -> tuple[tuple[str, str], ...]:
    question = "What does `json.dumps` do?"
    return (
        ("Ask the aligned model", f"trainrig generate {at.aligned} --chat --prompt '{question}'"),
        ("Convert it for Transformers", f"trainrig export {at.aligned} {at.out}/hugging-face"),
        ("Explain a run file", "trainrig check jobs/configs/quickstart/pretrain.toml"),
    )
