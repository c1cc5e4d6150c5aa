"""What a run's model was seen to say and know, as its folder keeps it.

comparison/step_00000000.json   the model before the first step; there is one of the last step too
"""

from pydantic import TypeAdapter

from trainrig import storage
from trainrig.train.evaluations.comparison import ModelView

FOLDER = "comparison"
_VIEW = TypeAdapter(ModelView)


def view_path(folder: str, step: int) -> str:
    """Where the run in `folder` keeps what its model was like at `step`."""
    return storage.join(folder, FOLDER, f"step_{step:08d}.json")


def write_view(folder: str, view: ModelView) -> None:
    """Keep `view` in the run `folder`."""
    storage.write(view_path(folder, view.step), _VIEW.dump_json(view, indent=1))


def read_views(folder: str) -> list[ModelView]:
    """All views of the run in `folder`, in order of steps."""
    paths = storage.list_files(storage.join(folder, FOLDER), ".json")
    return sorted((_VIEW.validate_json(storage.read(p)) for p in paths), key=lambda v: v.step)
