"""Evaluation of a model on the questions of one shard, with scores for each row."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.evaluate.checks.answers import cut_at, extract_answer, score_answer
from trainrig.evaluate.confined.run import run_confined
from trainrig.evaluate.engine.chat_prompts import encode_chat_prompt
from trainrig.evaluate.engine.encoding import GenerationRequest, LikelihoodRequest, RequestEncoder
from trainrig.evaluate.engine.generation import StopRule, answer_greedily
from trainrig.evaluate.engine.judge import Judge, Pair
from trainrig.evaluate.engine.likelihood import ContinuationScore, score_continuations
from trainrig.evaluate.tasks.definition import Task
from trainrig.evaluate.tasks.prompts import Question
from trainrig.evaluate.tasks.scoring import (
    Continuation,
    GeneratedAnswer,
    MultipleChoice,
    PreferredAnswer,
    ProgramTests,
    RollingText,
)
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.models.decoder import Decoder

Row = dict[str, Any]
"""A scored row as written to disk: `row`, `prompt`, `expected`, `given`, `scores`, and further keys
that depend on the kind of scoring."""


@dataclass(frozen=True)
class Examination:
    """A model, and the task whose questions it answers."""

    model: Decoder
    encoder: RequestEncoder
    task: Task
    batch_tokens: int
    chat: bool  # true: prompts are user turns in the tokenizer's chat format
    judge: Judge | None = None  # judge of the answers, for tasks that need one

    def score_questions(self, questions: Sequence[Question]) -> list[Row]:
        """Return the scored rows of `questions`, in the order of the questions."""
        match self.task.scoring:
            case MultipleChoice() as scoring:
                return self._score_choices(questions, scoring)
            case Continuation():
                return self._score_continuations(questions)
            case GeneratedAnswer() as scoring:
                return self._generate_rows(questions, scoring)
            case PreferredAnswer() as scoring:
                return self._judge_rows(questions, scoring)
            case ProgramTests() as scoring:
                return self._run_programs(questions, scoring)
            case RollingText():
                return self._score_texts(questions)

    # --- likelihoods

    def _score_choices(self, questions: Sequence[Question], scoring: MultipleChoice) -> list[Row]:
        alone = scoring.unconditional or scoring.metric == "acc_mutual_info"
        requests: list[list[LikelihoodRequest]] = []
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

    def _request_choices(self, question: Question) -> list[LikelihoodRequest]:
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
    ) -> list[LikelihoodRequest]:
        """Return requests for `answers` after `prompt`, with the few-shot rows before it."""
        if self.chat:
            context = encode_chat_prompt(self.encoder.encoder, self._build_turns(question, prompt))
            encoded = self.encoder.encoder.encode_batch(list(answers))
            return [self.encoder.request(context, [int(i) for i in ids]) for ids in encoded]
        following = [self.task.delimiter + answer for answer in answers]
        return self.encoder.request_continuations(
            self._render_context(question) + prompt, following
        )

    def _score_requests(
        self, questions: Sequence[Question], requests: Sequence[Sequence[LikelihoodRequest]]
    ) -> list[tuple[Question, Sequence[LikelihoodRequest], list[ContinuationScore]]]:
        """Return each question with its requests and their scores, which are computed together."""
        flat = [request for asked in requests for request in asked]
        found = iter(score_continuations(self.model, flat, self.batch_tokens))
        return [
            (question, asked, [next(found) for _ in asked])
            for question, asked in zip(questions, requests, strict=True)
        ]

    # --- generations

    def _generate_rows(self, questions: Sequence[Question], scoring: GeneratedAnswer) -> list[Row]:
        rows = []
        for question, request, text in self._write_answers(questions, scoring):
            given = extract_answer(text, scoring.extract, scoring.take)
            scores = score_answer(scoring.check, given, question.answers, question.instructions)
            row = _build_row(question, scores, given or "") | {"written": text}
            rows.append(row | _describe_truncation([request]))
        return rows

    def _judge_rows(self, questions: Sequence[Question], scoring: PreferredAnswer) -> list[Row]:
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

    def _run_programs(self, questions: Sequence[Question], scoring: ProgramTests) -> list[Row]:
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
        scoring: GeneratedAnswer | PreferredAnswer | ProgramTests,
    ) -> list[tuple[Question, GenerationRequest, str]]:
        encoder = self.encoder.encoder
        requests = []
        for question in questions:
            if self.chat:
                prompt = tuple(
                    encode_chat_prompt(encoder, self._build_turns(question, question.prompt))
                )
            else:
                prompt = self.encoder.encode_plain_prompt(
                    self._render_context(question) + question.prompt
                )
            requests.append(self.encoder.request_generation(prompt, scoring.maximum_tokens))
        stop = StopRule(
            ids=self._stop_ids(),
            maximum_tokens=scoring.maximum_tokens,
            entries=encoder.vocabulary_size,
            done=_make_stop_test(encoder.decode_text, scoring.until),
        )
        answers = answer_greedily(self.model, requests, stop, self.batch_tokens)
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


def _describe_truncation(requests: Sequence[LikelihoodRequest | GenerationRequest]) -> Row:
    return {"truncated": True} if any(request.truncated for request in requests) else {}


def _build_choice_row(
    question: Question, scoring: MultipleChoice, nats: list[float], without: list[float]
) -> Row:
    """Return the scored row of a question with choices.

    `nats` are the choices' log-likelihoods after the prompt, `without` those after no prompt (empty
    if they were not computed).
    """
    likely = np.array(nats)
    by_metric: dict[str, NDArray[np.float64]] = {"acc": likely}
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
