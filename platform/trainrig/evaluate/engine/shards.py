"""The work of an evaluation, divided into shards: ranges of rows of one task, and their scores.

A shard is computed independently of all others, so its file is bit-identical on any worker.
Finished shards are not computed again.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainrig import config, manifest, storage
from trainrig.corpus.array_types import Float64s
from trainrig.evaluate.confined.run import run_confined
from trainrig.evaluate.engine import batched_reading, request_encoding
from trainrig.evaluate.engine.opened_models import OpenedJudge, OpenedModel, Pair
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.scorecards import ROWS
from trainrig.evaluate.tasks import task_definition
from trainrig.evaluate.tasks.answer_checks import cut_at, extract_answer, score_answer
from trainrig.evaluate.tasks.task_prompts import Question, Renderer, ShotPool, read_rows
from trainrig.evaluate.tasks.task_templates import compile_template
from trainrig.manifest import FileSum
from trainrig.models.decoder import Decoder
from trainrig.splits import Split, Work

Row = dict[str, Any]
"""A scored row as written to disk: `row`, `prompt`, `expected`, `given`, `scores`, and further keys
that depend on the kind of scoring."""


@dataclass(frozen=True)
class Examination:
    """A model, and the task whose questions it answers."""

    model: Decoder
    encoder: request_encoding.RequestEncoder
    task: task_definition.Task
    batch_tokens: int
    chat: bool  # true: prompts are user turns in the tokenizer's chat format
    judge: OpenedJudge | None = None  # judge of the answers, for tasks that need one

    def score_questions(self, questions: Sequence[Question]) -> list[Row]:
        """Return the scored rows of `questions`, in the order of the questions."""
        match self.task.scoring:
            case task_definition.MultipleChoice() as scoring:
                return self._score_choices(questions, scoring)
            case task_definition.Continuation():
                return self._score_continuations(questions)
            case task_definition.GeneratedAnswer() as scoring:
                return self._generate_rows(questions, scoring)
            case task_definition.PreferredAnswer() as scoring:
                return self._judge_rows(questions, scoring)
            case task_definition.ProgramTests() as scoring:
                return self._run_programs(questions, scoring)
            case task_definition.RollingText():
                return self._score_texts(questions)

    # --- likelihoods

    def _score_choices(
        self, questions: Sequence[Question], scoring: task_definition.MultipleChoice
    ) -> list[Row]:
        alone = scoring.unconditional or scoring.metric == "acc_mutual_info"
        requests: list[list[request_encoding.LikelihoodRequest]] = []
        for question in questions:
            asked = self._request_choices(question)
            if alone:
                following = [self.task.delimiter + answer for answer in question.answers]
                asked += self.encoder.request_continuations("", following)
            requests.append(asked)
        rows = []
        for question, scored, found in self._score_requests(questions, requests):
            count = len(question.answers)
            nats = [score.log_likelihood for score in found[:count]]
            without = [score.log_likelihood for score in found[count:]]
            rows.append(
                _build_choice_row(question, scoring, nats, without) | _describe_truncation(scored)
            )
        return rows

    def _request_choices(self, question: Question) -> list[request_encoding.LikelihoodRequest]:
        if question.contexts:
            pairs = zip(question.contexts, question.answers, strict=True)
            return [self._request_answers(question, prompt, [text])[0] for prompt, text in pairs]
        return self._request_answers(question, question.prompt, question.answers)

    def _score_continuations(self, questions: Sequence[Question]) -> list[Row]:
        requests = [self._request_answers(q, q.prompt, q.answers) for q in questions]
        rows = []
        for question, asked, (score,) in self._score_requests(questions, requests):
            right = float(score.greedy)
            row = _build_row(question, {"acc": right}, question.expected if score.greedy else "")
            row |= {"log_likelihood": score.log_likelihood, "tokens": score.tokens}
            row["answer_bytes"] = len(question.answers[0].encode())
            rows.append(
                row | {"confidence": math.exp(score.log_likelihood)} | _describe_truncation(asked)
            )
        return rows

    def _score_texts(self, questions: Sequence[Question]) -> list[Row]:
        requests = [self.encoder.request_windows(question.prompt) for question in questions]
        rows = []
        for question, _, found in self._score_requests(questions, requests):
            nats = -sum(score.log_likelihood for score in found)
            size = len(question.prompt.encode())
            row = _build_row(
                question, {"bits_per_byte": nats / math.log(2) / size if size else 0.0}, ""
            )
            row |= {"log_likelihood": -nats, "tokens": sum(score.tokens for score in found)}
            rows.append(row | {"bytes": size, "words": len(question.prompt.split())})
        return rows

    def _request_answers(
        self, question: Question, prompt: str, answers: Sequence[str]
    ) -> list[request_encoding.LikelihoodRequest]:
        """Return requests for `answers` after `prompt`, with the few-shot rows before it."""
        if self.chat:
            context = request_encoding.encode_chat_prompt(
                self.encoder.encoder, self._build_turns(question, prompt)
            )
            encoded = self.encoder.encoder.encode_batch(list(answers))
            return [self.encoder.request(context, [int(i) for i in ids]) for ids in encoded]
        following = [self.task.delimiter + answer for answer in answers]
        return self.encoder.request_continuations(
            self._render_context(question) + prompt, following
        )

    def _score_requests(
        self,
        questions: Sequence[Question],
        requests: Sequence[Sequence[request_encoding.LikelihoodRequest]],
    ) -> list[
        tuple[
            Question,
            Sequence[request_encoding.LikelihoodRequest],
            list[batched_reading.ContinuationScore],
        ]
    ]:
        """Return each question with its requests and their scores, which are computed together."""
        flat = [request for asked in requests for request in asked]
        found = iter(batched_reading.score_continuations(self.model, flat, self.batch_tokens))
        return [
            (question, asked, [next(found) for _ in asked])
            for question, asked in zip(questions, requests, strict=True)
        ]

    # --- generations

    def _generate_rows(
        self, questions: Sequence[Question], scoring: task_definition.GeneratedAnswer
    ) -> list[Row]:
        rows = []
        for question, request, text in self._write_answers(questions, scoring):
            given = extract_answer(text, scoring.extract, scoring.take)
            scores = score_answer(scoring.check, given, question.answers, question.instructions)
            row = _build_row(question, scores, given or "") | {"written": text}
            rows.append(row | _describe_truncation([request]))
        return rows

    def _judge_rows(
        self, questions: Sequence[Question], scoring: task_definition.PreferredAnswer
    ) -> list[Row]:
        assert self.judge is not None
        written = self._write_answers(questions, scoring)
        pairs = [
            Pair(
                question,
                self._render_context(question) + question.prompt + self.task.delimiter,
                self._build_turns(question, question.prompt),
                text.strip(),
                question.expected.strip(),
            )
            for question, _, text in written
        ]
        rows = []
        judged = self.judge.compare(pairs, scoring)
        for (question, request, text), found in zip(written, judged, strict=True):
            row = _build_row(question, {"win_rate": found.preferred}, text.strip())
            row |= {"written": text, "margins": list(found.margins)}
            cut = {"truncated": True} if found.truncated else {}
            rows.append(row | cut | _describe_truncation([request]))
        return rows

    def _run_programs(
        self, questions: Sequence[Question], scoring: task_definition.ProgramTests
    ) -> list[Row]:
        where = f"task '{self.task.name}': scoring."
        make_program = compile_template(scoring.program, f"{where}program")
        make_tests = compile_template(scoring.tests, f"{where}tests")
        rows = []
        for question, request, text in self._write_answers(questions, scoring):
            program = make_program({**question.fields, "completion": text}, question.where)
            tests = make_tests(question.fields, question.where)
            outcome = run_confined(program, tests, scoring.seconds, scoring.memory_mib)
            row = _build_row(question, {"pass_at_1": float(outcome.verdict == "passed")}, text)
            row |= {"written": text, "outcome": outcome.verdict}
            rows.append(row | _describe_truncation([request]))
        return rows

    def _write_answers(
        self,
        questions: Sequence[Question],
        scoring: task_definition.GeneratedAnswer
        | task_definition.PreferredAnswer
        | task_definition.ProgramTests,
    ) -> list[tuple[Question, request_encoding.GenerationRequest, str]]:
        encoder = self.encoder.encoder
        requests = []
        for question in questions:
            if self.chat:
                prompt = tuple(
                    request_encoding.encode_chat_prompt(
                        encoder, self._build_turns(question, question.prompt)
                    )
                )
            else:
                prompt = self.encoder.encode_plain_prompt(
                    self._render_context(question) + question.prompt
                )
            requests.append(self.encoder.request_generation(prompt, scoring.maximum_tokens))
        stop = batched_reading.StopRule(
            ids=self._stop_ids(),
            maximum_tokens=scoring.maximum_tokens,
            entries=encoder.vocabulary_size,
            done=_make_stop_test(encoder.decode_text, scoring.until),
        )
        answers = batched_reading.answer_greedily(self.model, requests, stop, self.batch_tokens)
        texts = [cut_at(encoder.decode_text(answer), scoring.until) for answer in answers]
        return list(zip(questions, requests, texts, strict=True))

    def _stop_ids(self) -> frozenset[int]:
        return frozenset(self.encoder.encoder.special_tokens.stop_ids)

    # --- prompts

    def _render_context(self, question: Question) -> str:
        """Return the text before the prompt: the preamble and the few-shot rows."""
        separator = self.task.few_shot.separator
        shown = "".join(shot.prompt + shot.answer + separator for shot in question.shots)
        return self.task.preamble + shown

    def _build_turns(self, question: Question, prompt: str) -> list[tuple[str, str]]:
        """Return (role, text) turns that end with `prompt`; each few-shot row makes two turns."""
        turns = []
        for shot in question.shots:
            turns += [("user", shot.prompt), ("assistant", shot.answer.strip())]
        turns.append(("user", prompt))
        role, first = turns[0]
        return [(role, self.task.preamble + first), *turns[1:]]


def _make_stop_test(
    decode: Callable[[Sequence[int]], str], until: Sequence[str]
) -> Callable[..., bool]:
    def done(ids: Sequence[int]) -> bool:
        text = decode(ids)
        return any(mark in text for mark in until)

    return done


def _build_row(question: Question, scores: Mapping[str, float], given: str) -> Row:
    found: Row = {
        "row": question.row,
        "prompt": question.prompt,
        "expected": question.expected,
        "given": given,
        "scores": dict(scores),
    }
    return found if question.group is None else found | {"group": question.group}


def _describe_truncation(
    requests: Sequence[request_encoding.LikelihoodRequest | request_encoding.GenerationRequest],
) -> Row:
    return {"truncated": True} if any(request.truncated for request in requests) else {}


def _build_choice_row(
    question: Question,
    scoring: task_definition.MultipleChoice,
    nats: list[float],
    without: list[float],
) -> Row:
    """Return the scored row of a question with choices.

    `nats` are the choices' log-likelihoods after the prompt, `without` those after no prompt (empty
    if they were not computed).
    """
    likely = np.array(nats)
    by_metric: dict[str, Float64s] = {"acc": likely}
    if not question.contexts:  # with `contexts`, all choices score the same text
        by_metric["acc_norm"] = likely / [max(1, len(answer)) for answer in question.answers]
        sizes = [max(1, len(answer.encode())) for answer in question.answers]
        by_metric["acc_bytes"] = likely / sizes
    if without:
        by_metric["acc_mutual_info"] = likely - np.array(without)
    chosen = {name: int(values.argmax()) for name, values in by_metric.items()}
    headline: str = scoring.metric if scoring.metric in chosen else "acc"
    scores = {headline: float(chosen[headline] == question.gold)}
    scores |= {name: float(number == question.gold) for name, number in chosen.items()}
    labels = question.contexts or question.answers
    shares = np.exp(by_metric[headline] - by_metric[headline].max())
    row = _build_row(question, scores, labels[chosen[headline]])
    row |= {"choices": list(labels), "gold": question.gold, "chosen": chosen}
    row |= {"log_likelihoods": nats, "confidence": float(shares.max() / shares.sum())}
    if question.gold is not None:
        row["answer_bytes"] = len(question.answers[question.gold].encode())
    return row | ({"unconditional": without} if without else {})


@dataclass(frozen=True)
class TaskRun:
    """A task with the options under which it is evaluated."""

    task: task_definition.Task
    rows: str  # file of the task's rows
    limit: int | None = None  # number of rows to use, from the first; None: all
    chat: bool = False  # true: prompts are user turns in the tokenizer's chat format


@dataclass(frozen=True)
class TaskPlan:
    """The tasks of an evaluation, as plain data that can be sent to workers."""

    run: Evaluation
    tasks: tuple[TaskRun, ...]

    def make_work(self) -> Work:
        """Load the model and return the function that a worker calls for each split."""
        return functools.partial(self._do, OpenedModel.load(self.run))

    def list_splits(self) -> list[Split]:
        """Return a split for each shard of each task. Raises DataError for invalid rows."""
        found = []
        for number, run in enumerate(self.tasks):
            count = len(load_questions(run))
            for shard, begin in enumerate(range(0, count, self.run.shard_rows)):
                name = f"{run.task.name}-{shard:05d}"
                found.append(Split(name, {"task": number, "shard": shard, "begin": begin}))
        return found

    def _do(
        self, opened: OpenedModel, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, FileSum]]:
        run = self.tasks[given["task"]]
        begin = given["begin"]
        questions = load_questions(run)[begin : begin + self.run.shard_rows]
        scoring = run.task.scoring
        judge = None
        if isinstance(scoring, task_definition.PreferredAnswer):
            judge = OpenedJudge.open(scoring, self.run, opened.model, run.chat)
        examination = Examination(
            model=opened.model,
            encoder=request_encoding.RequestEncoder(
                opened.encoder, opened.model.config.positions, self.run.document_start
            ),
            task=run.task,
            batch_tokens=self.run.batch_tokens,
            chat=run.chat,
            judge=judge,
        )
        rows = examination.score_questions(questions)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        name = f"{ROWS}/{run.task.name}/{given['shard']:05d}.jsonl"
        path = storage.join(self.run.output, name)
        storage.write(path, text.encode("utf-8", "surrogatepass"))
        return {"rows": len(rows)}, {name: manifest.compute_file_sum(path)}


def load_questions(run: TaskRun) -> tuple[Question, ...]:
    """Return a task's questions, in the order of its rows. Raises DataError for invalid rows."""
    return _load_questions(run.task.model_dump_json(), run.rows, run.limit)


@functools.lru_cache(maxsize=4)
def _load_questions(task_json: str, path: str, limit: int | None) -> tuple[Question, ...]:
    task = config.build(task_definition.Task, json.loads(task_json), path)
    rows = read_rows(path)
    renderer = Renderer(task, path)
    questions = [renderer.render_question(row) for row in rows[:limit]]
    if not task.few_shot.count:
        return tuple(questions)
    shown_file = task.few_shot.rows or path
    pool = ShotPool(task, Renderer(task, shown_file), read_rows(shown_file), shown_file, path)
    return tuple(replace(question, shots=pool.select(question)) for question in questions)


def list_program_tasks(tasks: Sequence[TaskRun]) -> list[str]:
    """Return the names of the tasks that run programs written by the model."""
    return [
        run.task.name for run in tasks if isinstance(run.task.scoring, task_definition.ProgramTests)
    ]
