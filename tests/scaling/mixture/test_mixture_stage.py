"""The whole search for a mixture on a local Ray, by tiny models, and its command line."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainrig import cli, config
from trainrig.errors import DataError
from trainrig.scaling.mixture import mixture_stage
from trainrig.scaling.mixture.mixture_run_file import MixtureFinding
from trainrig.scaling.mixture.mixture_stage import find_mixture
from trainrig.scaling.mixture.proxy_trials import ProxyTrials
from trainrig.train.pretrain import prepare
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining


@pytest.fixture
def make_finding(tokens, tmp_path):
    """Return `make_finding("out", confirm=0)`: a search by six runs of seconds in all."""

    def make(output: str = "mix", runs: int = 6, **changes) -> MixtureFinding:
        given = {
            "tokens": tokens,
            "output": str(tmp_path / output),
            "targets": {"books": 0.7, "web": 0.3},
            "proxy": {"parameters": 6_000, "tokens": 1_500, "runs": runs},
            "batches": {"sequence_length": 32, "micro_batch": 4},
            "training": {"fewest_steps": 6},
            "search": {"candidates": 10_000, "finalists": 100, "draws": 40},
            "confirm": 2,
            "trials": {"at_once": 1},
        }
        return config.build(MixtureFinding, given | changes, "mixture.toml")

    return make


def count_attempts(run: MixtureFinding) -> dict[str, int]:
    folders = sorted(Path(run.output).glob("trials/*/*"))
    return {folder.parent.name: len(RunFolder(str(folder)).read_attempts()) for folder in folders}


def read_weights(run: MixtureFinding) -> dict[str, float]:
    return tomllib.loads(Path(run.output, "mixture.toml").read_text())["batches"]["weights"]


@pytest.mark.slow
@pytest.mark.ray
def test_an_interrupted_search_goes_on_and_ends_as_one_with_two_runs_at_a_time(
    local_ray, make_finding, monkeypatch
):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    one = make_finding("one")
    with monkeypatch.context() as patched:
        patched.setattr(mixture_stage, "_confirm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            find_mixture(one)
    assert len(count_attempts(one)) == 6 and not Path(one.output, "mixture.json").exists()
    manifest = find_mixture(one)
    assert count_attempts(one) == dict.fromkeys(count_attempts(one), 1)
    assert len(count_attempts(one)) == 6 + 3 * 2
    shown = []
    two = make_finding("two", trials={"cpus": 0.5, "at_once": 2}, confirm=0)
    find_mixture(two, show=lambda done, of, rows: shown.append((done, of)))
    assert (6, 6) in shown and shown[-1] == (6, 6)
    for name in ("shares.csv", "losses.csv"):
        assert Path(one.output, name).read_bytes() == Path(two.output, name).read_bytes(), name
    assert read_weights(one) == read_weights(two)
    text = Path(one.output, "mixture.toml").read_text()
    assert "# natural: predicted" in text and "measured" in text
    record = json.loads(Path(one.output, "mixture.json").read_text())
    assert record["target_weights"] == {"books": 0.7, "web": 0.3}
    names = [mixture["name"] for mixture in record["confirmation"]["mixtures"]]
    assert names == ["proposed", "natural", "uniform"]
    proposed = record["confirmation"]["mixtures"][0]
    assert proposed["weights"] == read_weights(one) == manifest.counts["weights"]
    assert proposed["interval"]["low"] < proposed["predicted"] < proposed["interval"]["high"]
    assert "Predicted and measured losses" in Path(one.output, "report.html").read_text()
    # a finished search does nothing, and one run more trains only that one and the new proposal
    assert find_mixture(one).counts == manifest.counts
    more = make_finding("one", runs=7)
    find_mixture(more)
    attempts = count_attempts(more)
    assert set(attempts.values()) == {1} and "mix-0006" in attempts
    assert sum(name.startswith("natural-") for name in attempts) == 2
    assert sum(name.startswith("mix-") for name in attempts) == 7


@pytest.mark.slow
@pytest.mark.ray
def test_pretraining_reads_the_weights_that_the_command_prints(
    local_ray, make_finding, make_run, tmp_path, capsys
):
    run = make_finding("found", method="MixingLaw", confirm=0)
    path = tmp_path / "mixture.toml"
    path.write_text(config.to_toml(run))
    with pytest.raises(SystemExit) as ended:
        cli.main(["mixture", str(path)])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    weights = read_weights(run)
    for source, weight in weights.items():
        assert any(
            line.startswith(f"{weight:.4f} ") and line.endswith(f" {source}")
            for line in shown.out.splitlines()
        )
    assert shown.out.splitlines()[3].startswith("mixing laws on runs left out")
    trained = config.to_toml(make_run(tmp_path / "model"))
    large = tmp_path / "large.toml"
    large.write_text(f"{trained}\n{Path(run.output, 'mixture.toml').read_text()}")
    loaded = config.load(Pretraining, str(large))
    assert loaded.batches.weights == weights
    prepare(loaded)  # reads the tokens with these weights


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.toml", "--target", "web"], "--target: is for two tables"),
        (["run.toml", "--out", "mix"], "--out: is for two tables"),
        (["a.csv", "b.csv", "--set", "seed=1"], "--set: changes a run file, but two tables"),
        (["run.toml"], "run.toml: no such run file"),
        (["shares.csv"], "shares.csv: is a table without its losses; give MIXTURES.csv LOSSES.csv"),
    ],
)
def test_options_of_the_other_form_are_refused(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["mixture", *words])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def plan_made_up(output: Path, sources: tuple[str, str], runs: int) -> ProxyTrials:
    """Return a plan that has all that tables of its runs need: sources, shares and a folder."""
    given = {
        "tokens": "t",
        "output": str(output),
        "proxy": {"parameters": 6_000, "tokens": 1_500, "runs": runs},
    }
    run = config.build(MixtureFinding, given, "mixture.toml")
    return ProxyTrials(run, run.build_sweep(), None, None, dict.fromkeys(sources, 0.5))


def build_trials(sources: tuple[str, str], runs: int) -> list[SimpleNamespace]:
    share = {number: (number + 1) / (runs + 1) for number in range(runs)}
    return [
        SimpleNamespace(name=f"mix-{n}", weights={sources[0]: share[n], sources[1]: 1 - share[n]})
        for n in range(runs)
    ]


def test_sources_may_have_names_that_a_table_gives_a_meaning(tmp_path, monkeypatch):
    sources = ("books (M)", "run")
    planned = plan_made_up(tmp_path, sources, runs=6)
    monkeypatch.setattr(mixture_stage, "_read_losses", lambda plan, trial: [2.0, 3.0])
    runs = mixture_stage._collect_runs(planned, build_trials(sources, 6))
    assert runs.sources == sources and len(runs) == 6 and runs.left_out == 0
    assert runs.shares.sum(axis=1) == pytest.approx(1)
    assert runs.losses.tolist() == [[2.0, 3.0]] * 6


@pytest.mark.parametrize(("diverged", "refused"), [(1, False), (2, True), (7, True)])
def test_diverged_runs_are_left_out_until_too_few_are_left(
    tmp_path, monkeypatch, diverged, refused
):
    sources = ("books", "web")
    planned = plan_made_up(tmp_path, sources, runs=7)
    trials = build_trials(sources, 7)
    lost = {trial.name for trial in trials[:diverged]}
    monkeypatch.setattr(
        mixture_stage, "_read_losses", lambda plan, t: None if t.name in lost else [2.0, 3.0]
    )
    if refused:
        with pytest.raises(DataError, match=f"{diverged} of 7 runs diverged.* raise proxy.runs"):
            mixture_stage._collect_runs(planned, trials)
    else:
        runs = mixture_stage._collect_runs(planned, trials)
        assert (len(runs), runs.left_out) == (6, 1)
    assert len((tmp_path / "losses.csv").read_text().splitlines()) == 8
