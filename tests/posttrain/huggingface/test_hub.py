"""The commands of docs/huggingface.md that push a model to the Hub and pull it, on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hub_server import Hub, serve_hub
from support.tuning_fixtures import encoder, fresh

from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint

__all__ = ["encoder", "fresh"]


def run_hf(hub: Hub, home: Path, *words: str) -> None:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [str(Path(sys.executable).with_name("hf")), *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_model_is_pushed_and_pulled_to_the_last_bit(fresh: str, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    export_checkpoint(fresh, str(exported), HubFolder())
    with serve_hub() as hub:
        run_hf(hub, tmp_path / "home", "upload", "owner/new", str(exported))
        assert sorted(hub.repositories["owner/new"]) == sorted(
            path.name for path in exported.iterdir()
        )
        pulled = tmp_path / "pulled"
        run_hf(hub, tmp_path / "home", "download", "owner/new", "--local-dir", str(pulled))
        assert hub.tokens - {""} == {"Bearer hf_secret"}  # presigned addresses take none
    for path in exported.iterdir():
        assert (pulled / path.name).read_bytes() == path.read_bytes()
    first = import_checkpoint(str(exported), str(tmp_path / "first"))
    again = import_checkpoint(str(pulled), str(tmp_path / "again"))
    assert first["special_tokens"] == again["special_tokens"]
