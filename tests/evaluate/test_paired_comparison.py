"""Comparison of evaluations: common rows, differences between scores, and a ranking."""

import json
from pathlib import Path

import numpy as np
import pytest

from trainrig import cli, manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.leaderboard import build_leaderboard_page, read_leaderboard
from trainrig.evaluate.paired_comparison import compare
from trainrig.evaluate.scorecards import Scorecard, score_task


@pytest.fixture
def evaluated(tmp_path):
    """Return a function that writes evaluations.

    `evaluated("a", task=[1, 0, …])` returns a folder as `evaluate` leaves it, with these verdicts.
    """

    def make(name, rows_key="rows", flops=None, **tasks):
        output = str(tmp_path / name)
        run = Evaluation(checkpoint="x", output=output, tasks=(TaskChoice(task="copa"),))
        stage = manifest.claim(output, run, {f"task '{task}'": rows_key for task in tasks})
        files = {}
        scores = {}
        for task, verdicts in tasks.items():
            rows = [
                {
                    "row": n,
                    "prompt": f"question {n} <b>",
                    "expected": "yes",
                    "given": "yes" if verdict else "no",
                    "scores": {"exact_match": float(verdict)},
                }
                for n, verdict in enumerate(verdicts, 1)
            ]
            path = f"rows/{task}/00000.jsonl"
            text = "".join(json.dumps(row) + "\n" for row in rows)
            storage.write(stage.build_path(path), text.encode())
            files[path] = manifest.compute_file_sum(stage.build_path(path))
            scores[task] = score_task(rows, 0, False)
        card = Scorecard(
            checkpoint=f"runs/{name}", step=7, scores={}, tasks=scores, training_flops=flops
        )
        storage.write(stage.build_path("scorecard.json"), card.model_dump_json().encode())
        files["scorecard.json"] = manifest.compute_file_sum(stage.build_path("scorecard.json"))
        stage.finish({}, files)
        return output

    return make


def run_cli(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_a_clear_difference_is_significant(evaluated, capsys, tmp_path):
    a = evaluated("a", clear=[0, 1] * 50, noisy=[0, 1] * 50, own=[1])
    b = evaluated("b", clear=[1, 1] * 40 + [0, 1] * 10, noisy=[1, 0] + [0, 1] * 49)
    (found,) = compare([a, b])
    clear, noisy = found.tasks
    assert (clear.verdict, noisy.verdict) == ("B is better", "within noise")
    assert clear.paired.difference.value == pytest.approx(0.4) and len(clear.differing) == 40
    assert (noisy.paired.a_only, noisy.paired.b_only) == (1, 1) and found.left_out == ("own",)
    (back,) = compare([b, a])
    assert back.tasks[0].verdict == "A is better"
    page = str(tmp_path / "compare.html")
    code, out, _ = run_cli(capsys, "compare", a, b, "--html", page)
    assert code == 0 and "+0.4000" in out and "within noise" in out
    text = Path(page).read_text()
    assert "question 1 &lt;b&gt;" in text and "1 of 2 differences are larger than noise" in text
    code, out, _ = run_cli(capsys, "compare", a, b, "--json")
    assert json.loads(out)[0]["tasks"][0]["verdict"] == "B is better"


def test_only_the_same_rows_are_compared(evaluated):
    a = evaluated("a", task=[1, 0, 1])
    b = evaluated("b", task=[1, 1])
    assert compare([a, b])[0].tasks[0].a == 0.5  # only the first two rows count
    with pytest.raises(DataError, match="different task file"):
        compare([a, evaluated("c", rows_key="others", task=[1, 1])])
    with pytest.raises(DataError, match="no task in common"):
        compare([a, evaluated("d", elsewhere=[1])])
    with pytest.raises(ConfigError, match="at least two evaluations"):
        compare([a])


def test_scores_are_shown_with_training_operations(evaluated, capsys, tmp_path):
    for name, flops, right in (("b", 4e15, 8), ("a", 1e15, 5), ("c", 1.6e16, 9), ("d", None, 2)):
        evaluated(f"sweep/{name}", flops=flops, task=[1] * right + [0] * (10 - right), own=[1])
    found = read_leaderboard(str(tmp_path / "sweep")).sort_by_flops()
    assert [(at, score.value) for at, score in found["task"]] == [
        (1e15, 0.5),
        (4e15, 0.8),
        (1.6e16, 0.9),
    ]
    page = str(tmp_path / "board.html")
    run_cli(capsys, "leaderboard", str(tmp_path / "sweep"), "--html", page)
    text = Path(page).read_text()
    assert "Scores against training compute" in text and "n = 3 checkpoints" in text
    _, out, _ = run_cli(capsys, "leaderboard", str(tmp_path / "sweep"), "--json")
    assert {evaluation["training_flops"] for evaluation in json.loads(out)["evaluations"]} == {
        None,
        1e15,
        4e15,
        1.6e16,
    }


def test_the_best_mean_over_shared_tasks_leads(evaluated, capsys, tmp_path):
    evaluated("runs/low", x=[0, 0, 1, 1], y=[0, 1, 0, 1])
    evaluated("runs/high", x=[1, 1, 1, 1], z=[0])
    unfinished = tmp_path / "runs" / "begun"
    unfinished.mkdir()
    (unfinished / "scorecard.json").write_text("{}")
    board = read_leaderboard(str(tmp_path / "runs"))
    assert [row.folder for row in board.rows] == ["high", "low"]
    assert board.shared == ("x",) and [row.mean for row in board.rows] == [1.0, 0.5]
    page = str(tmp_path / "board.html")
    code, out, _ = run_cli(capsys, "leaderboard", str(tmp_path / "runs"), "--html", page)
    assert code == 0 and out.index("high") < out.index("low") and "0.5000 ± 0.2887" in out
    assert "No evaluation is clearly the best: high and low differ within noise" in out
    assert "No evaluation is clearly the best" in Path(page).read_text()
    code, out, _ = run_cli(capsys, "leaderboard", str(tmp_path / "runs"), "--json")
    table = json.loads(out)
    assert table["evaluations"][0]["tasks"]["x"]["value"] == 1.0
    assert table["best"] is None
    assert np.isclose(table["evaluations"][1]["tasks"]["x"]["error"], 0.2887, atol=1e-4)
    with pytest.raises(DataError, match="no such folder"):
        read_leaderboard(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("cards", "verdict"),
    [
        ({"a": {"x": [1, 0]}}, "There is one evaluation, so nothing is compared."),
        ({"a": {"x": [1]}, "b": {"y": [1]}}, "No task is common to all evaluations, so none"),
        ({"a": {"x": [1]}, "b": {"x": [0]}}, "No evaluation is clearly the best: a and b differ"),
        (
            {"a": {"x": [1, 0] * 50}, "b": {"x": [0, 1] * 50}, "c": {"x": [1] * 49 + [0] * 51}},
            "No evaluation is clearly the best: a and b (and 1 more) differ within noise.",
        ),
        (
            {"a": {"x": [1] * 99 + [0]}, "b": {"x": [0, 1] * 50}, "c": {"x": [0] * 100}},
            "a has the best mean of 3 evaluations.",
        ),
    ],
)
def test_only_a_clear_lead_makes_an_evaluation_the_best(evaluated, tmp_path, cards, verdict):
    for name, tasks in cards.items():
        evaluated(f"runs/{name}", **tasks)
    board = read_leaderboard(str(tmp_path / "runs"))
    clear, found = board.describe_best()
    assert found.startswith(verdict)
    assert board.to_json()["best"] == ("a" if clear else None)
    assert found in build_leaderboard_page(board, "runs")
