import json
from pathlib import Path

import pytest
from support.tiny_models import write_untrained_model
from typer.testing import CliRunner

from trainrig.cli import app
from trainrig.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Write a model that no run made, and return its checkpoint."""
    return write_untrained_model(tmp_path / "model")


def test_lineage_prints_the_asked_format_and_writes_a_page(model: str, tmp_path: Path) -> None:
    page = tmp_path / "family.html"
    plain = CliRunner().invoke(app, ["lineage", model, "--html", str(page)])
    assert plain.exit_code == 0, plain.output
    assert plain.stdout.endswith(f"{page}\n") and "<svg" in page.read_text()
    tree = CliRunner().invoke(app, ["lineage", model, "--format", "json"]).stdout
    assert tree == CliRunner().invoke(app, ["lineage", model, "--json"]).stdout
    key = json.loads(tree)["fingerprint"]
    prov = CliRunner().invoke(app, ["lineage", model, "--format", "prov"])
    assert list(json.loads(prov.stdout)["entity"]) == [f"trainrig:{key}"]
    asked = ["lineage", model, "--format", "croissant"]
    croissant = CliRunner().invoke(app, [*asked, "--property", "license=CC0-1.0"])
    assert json.loads(croissant.stdout)["license"] == "CC0-1.0"
    assert "requires 3 more properties: --property creator=…" in croissant.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--format", "prov"], "leave it out, because --format prov is JSON too"),
        (["--property", "license=MIT"], "--property: needs --format croissant"),
    ],
)
def test_options_of_lineage_that_do_not_fit_are_refused(
    model: str, arguments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["lineage", model, *arguments], catch_exceptions=False)


def test_a_wrong_property_is_refused_before_files_are_read(tmp_path: Path) -> None:
    asked = ["lineage", str(tmp_path / "none"), "--format", "croissant", "--property", "colour=red"]
    with pytest.raises(ConfigError, match="write NAME=VALUE, with one of the names"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
