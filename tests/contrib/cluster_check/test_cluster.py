"""A whole cluster check: by name or file, as text or JSON, for users and for `cluster up`."""

import json
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.errors import ConfigError
from trainrig.launch.clusters import shipped_clusters
from trainrig.launch.clusters.shipped_clusters import find_cluster
from trainrig_contrib.cluster_check.cluster_check import check_cluster, find_secrets
from trainrig_contrib.cluster_check.pod_templates import parse_quantity
from trainrig_contrib.cluster_check.schema_differences import find_differences

CLUSTER = Path(__file__).parents[3] / "cluster"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["cluster", "check", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_name_means_a_file_that_comes_along() -> None:
    assert find_cluster("aws").samefile(CLUSTER / "aws.yaml")
    assert find_cluster("kuberay/rayjob").samefile(CLUSTER / "kuberay" / "rayjob.yaml")
    assert set(shipped_clusters.list_shipped_clusters()) == {
        "aws",
        "gcp",
        "kuberay/raycluster",
        "kuberay/rayjob",
        "local",
    }


def test_a_users_file_takes_precedence_over_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    own = tmp_path / "cluster" / "aws.yaml"
    own.write_text((CLUSTER / "aws.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    assert find_cluster("aws").samefile(own)


@pytest.mark.parametrize("name", ["asw", "cluster/nothing.yaml"])
def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, name)
    assert (code, out) == (2, "")
    assert "aws" in err
    assert err.count("\n") == 1


def test_a_clean_file_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "aws")
    assert (code, err) == (0, "")
    for part in ("head", "cpu", "gpu", "when idle", "at most", "All P5 Spot Instance Requests"):
        assert part in out


def test_problems_are_printed_one_a_line_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    text = (CLUSTER / "aws.yaml").read_text()
    path.write_text(text.replace("p5.48xlarge\n", "p5.48xlrge\n").replace("CPU: 0", "CPU: 1"))
    code, out, err = run(capsys, str(path))
    assert (code, out) == (2, "")
    assert all(line.startswith(f"trainrig: {path}:") for line in err.splitlines())
    assert "did you mean 'p5.48xlarge'?" in err
    assert "the head must have CPU: 0" in err


def test_json_holds_problems_price_and_quotas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text((CLUSTER / "aws.yaml").read_text().replace("HopLimit: 2", "HopLimit: 1"))
    code, out, _ = run(capsys, str(path), "--json")
    found = json.loads(out)
    assert code == 2
    assert found["problems"][0]["line"] == path.read_text().split("HopLimit: 1")[0].count("\n") + 1
    assert found["price"]["pools"]["gpu"]["most"] == 4
    assert found["quotas"][0]["unit"] == "vCPUs"
    assert found["to_put_in"]


def test_a_users_table_gives_the_prices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "own.toml"
    table.write_text(
        "[devices.gpu]\nflops = { bfloat16 = 1e15 }\nmemory = 8e10\nwatts = 700\nsource = 'x'\n"
        "[instances.'p5.48xlarge']\ndevice = 'gpu'\ndevices = 8\nvcpus = 192\nmemory = 2e12\n"
        "usd = 10.0\nspot_usd = 3.0\nas_of = '2026-11'\nsource = 'the bill'\n"
    )
    code, out, _ = run(capsys, "aws", "--hardware", str(table), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["price"]["pools"]["gpu"]["usd_most"] == 12.0
    assert found["price"]["usd_most"] is None  # the table has no price for the head
    assert any("m7i.2xlarge" in warning for warning in found["warnings"])


def test_the_notice_is_the_pods_grace_where_given() -> None:
    path = CLUSTER / "kuberay" / "raycluster.yaml"
    assert check_cluster(path, checkpoint_seconds=90).warnings == ()
    (warning,) = check_cluster(path, checkpoint_seconds=105).warnings
    assert "110 s after the notice" in warning


def test_up_is_refused_while_the_examples_values_stand() -> None:
    checked = check_cluster(CLUSTER / "aws.yaml")
    checked.refuse(placeholders=False)
    with pytest.raises(ConfigError, match=r"aws\.yaml:\d+: '111122223333' is a placeholder.*more"):
        checked.refuse()
    check_cluster(CLUSTER / "local.yaml").refuse()


def test_the_examples_share_must_be_filled_in() -> None:
    assert any(
        "10.0.0.2" in str(placeholder)
        for placeholder in check_cluster(CLUSTER / "gcp.yaml").placeholders
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", r"UTF-16.*first two.*UTF-8"),
        (b"\xe9", "not UTF-8"),
        (b"a" * 2**21, "at most 1,048,576"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        check_cluster(path)


@pytest.mark.parametrize(
    "text",
    [
        "- a\n",
        "7\n",
        "null\n",
        "cluster_name: x\n",
        "kind: RayCluster\n",
        "kind: 7\n",
        "provider: 3\n",
        "apiVersion: ray.io/v1\nkind: RayJob\nspec: []\nmetadata: 3\n",
        "provider: {type: aws}\navailable_node_types: {a: 3, b: {node_config: []}}\n",
        "provider: {type: gcp}\navailable_node_types: [a]\nhead_node_type: [a]\n",
        "provider: {type: aws}\nhead_start_ray_commands: 3\nmax_workers: a\n",
    ],
)
def test_a_file_of_another_shape_is_refused_in_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    checked = check_cluster(path)
    assert checked.problems
    assert all(problem.line >= 1 for problem in checked.problems)


def test_a_problem_is_one_line_for_any_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text('"a\\nb\\e[2J": 1\nprovider: {type: aws}\n')
    said = [str(problem) for problem in check_cluster(path).problems]
    assert any("unknown key 'a?b?[2J'" in line for line in said)
    assert all(line.isprintable() for line in said)


@pytest.mark.parametrize("name", ["aws", "gcp", "local"])
def test_rays_own_checks_pass_too(name: str) -> None:
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    data = yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())
    if name == "local":
        data["cluster_synced_files"] = []  # Ray has no defaults for this provider
    validate_config(data if name == "local" else prepare_config(data))


def test_a_secret_of_kubernetes_has_no_place_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = (CLUSTER / "kuberay" / "raycluster.yaml").read_text()
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {auth_token: b}\n"
    path.write_text(text + secret)
    (problem,) = check_cluster(path).problems
    assert problem.line == text.count("\n") + 3
    assert "a Secret's values would be in the file" in problem.what


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export WANDB_API_KEY=0123456789abcdef", True),
        ("docker run --env=HF_TOKEN=hf_abcdefgh", True),
        ("AKIAABCDEFGHIJKLMNOP", True),
        ("-----BEGIN RSA PRIVATE KEY-----", True),
        ("HF_TOKEN=$(cat /run/secrets/hf)", False),
        ("HF_TOKEN=$HF_TOKEN python", False),
        ("RAY_AUTH_TOKEN_PATH=/home/ray/.ray/auth_token", False),
        ("SSH_KEY=~/.ssh/trainrig.pem", False),
        ("RAY_AUTH_MODE=token ray start", False),
        ("--ulimit=nofile=65536:65536", False),
    ],
)
def test_secrets_in_commands_are_found_and_never_printed(text: str, found: bool) -> None:
    said = [what for _, what in find_secrets({"commands": [text]})]
    assert bool(said) == found
    assert not any("0123456789abcdef" in what or "hf_abcdefgh" in what for what in said)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500m", 0.5),
        ("2", 2.0),
        (3, 3.0),
        ("16Gi", 16 * 2**30),
        ("1.5k", 1500.0),
        *((quantity, None) for quantity in ("", "x", "1e3", "1.2.3", True, None, [])),
    ],
)
def test_quantities_equal_kubernetes(written: object, meant: float | None) -> None:
    assert parse_quantity(written) == meant


def test_a_shape_names_every_difference() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["one", "two"]}, "size": {"type": "integer", "minimum": 1}},
        "required": ["name", "also"],
        "additionalProperties": False,
    }
    found = dict(find_differences({"name": "onee", "size": 0, "siez": 3}, schema, ("here",)))
    assert found == {
        ("here", "siez"): "unknown key 'siez'; did you mean 'size'?",
        ("here",): "`also` is missing",
        ("here", "name"): "'onee' is not one of the choices; did you mean 'one'?",
        ("here", "size"): "0 is less than 1",
    }
