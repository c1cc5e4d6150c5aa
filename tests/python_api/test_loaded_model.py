import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tuning_fixtures import encoder, fresh

import trainrig
from trainrig.attribution import attribution_verbs
from trainrig.command_line import spread_options
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.generate_verbs import DrawOptions, EngineOptions, PromptOptions, generate
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint

__all__ = ["encoder", "fresh"]

PROMPTS = ["the sea", "two cats", "é"]


def test_texts_are_those_of_the_command(
    fresh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = trainrig.load(fresh, device="cpu")
    generate(
        fresh,
        asked=PromptOptions(prompt="the sea"),
        tokens=8,
        draw=DrawOptions(top_p=0.9, seed=3),
        engine=EngineOptions(),
    )
    assert capsys.readouterr().out == (
        loaded.generate("the sea", tokens=8, top_p=0.9, seed=3) + "\n"
    )
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    out = tmp_path / "answers.jsonl"
    generate(
        fresh,
        asked=PromptOptions(prompts=str(rows), out=str(out)),
        tokens=6,
        stop=["a"],
        draw=DrawOptions(),
        engine=EngineOptions(),
    )
    answers = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert loaded.generate(PROMPTS, tokens=6, stop=["a"]) == answers
    capsys.readouterr()
    generate(
        fresh,
        asked=PromptOptions(prompt="two cats", chat=True),
        tokens=5,
        draw=DrawOptions(),
        engine=EngineOptions(),
    )
    answer = loaded.chat([{"role": "user", "content": "two cats"}], tokens=5)
    assert capsys.readouterr().out == answer + "\n"
    assert loaded.chat("two cats", tokens=5) == answer


@pytest.mark.parametrize("command", [generate, attribution_verbs.chat])
def test_options_and_defaults_are_those_of_the_command(command: Callable[..., None]) -> None:
    def find_defaults(function: Callable[..., object]) -> dict[str, object]:
        found = inspect.signature(function).parameters.values()
        return {p.name: p.default or None for p in found if p.kind is p.KEYWORD_ONLY}

    options = inspect.signature(spread_options(command)).parameters
    ours = find_defaults(getattr(trainrig.LoadedModel, command.__name__))
    assert ours == {option: options[option].default or None for option in ours}
    assert len(ours) >= 7


def test_a_hugging_face_folder_gives_the_model_that_its_import_gives(
    fresh: str, tmp_path: Path
) -> None:
    export_checkpoint(fresh, str(tmp_path / "exported"), HubFolder())
    direct = trainrig.load(tmp_path / "exported", device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported"]  # nothing is imported
    import_checkpoint(str(tmp_path / "exported"), str(tmp_path / "imported"))
    imported = trainrig.load(tmp_path / "imported", device="cpu")
    loaded = trainrig.load(fresh, device="cpu")
    texts = {model.generate("the sea", tokens=8) for model in (loaded, direct, imported)}
    assert len(texts) == 1  # the export says that a text begins after the end of another
    assert direct.tokenizer.fingerprint == imported.tokenizer.fingerprint
    assert [*direct.model.state_dict()] == [*imported.model.state_dict()]
    assert "parameters" in direct._repr_html_()


def test_mistakes_are_one_line(fresh: str, tmp_path: Path) -> None:
    loaded = trainrig.load(fresh, device="cpu")
    with pytest.raises(trainrig.ConfigError, match=r"^generate: temperature: .*found -1"):
        loaded.generate("the sea", temperature=-1.0)
    with pytest.raises(trainrig.ConfigError, match=r"^chat: .*`role` and `content`"):
        loaded.chat([{"role": "nobody", "content": "hello"}])
    with pytest.raises(trainrig.DataError, match=str(tmp_path)):
        trainrig.load(tmp_path)
