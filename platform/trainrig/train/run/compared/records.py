"""Records of what a run's model answered, in the run folder.

comparison/step_00000000.json   the model before the first step; the last step has such a file too
"""

from pydantic import TypeAdapter

from trainrig import storage
from trainrig.train.evaluations.comparison import ModelView

FOLDER = "comparison"
_VIEW = TypeAdapter(ModelView)


def view_path(folder: str, step: int) -> str:
    """Return the path of the record of the model at `step`, in the run `folder`."""
    return storage.join(folder, FOLDER, f"step_{step:08d}.json")


def write_view(folder: str, view: ModelView) -> None:
    """Store `view` in the run `folder`."""
    storage.write(view_path(folder, view.step), _VIEW.dump_json(view, indent=1))


def read_views(folder: str) -> list[ModelView]:
    """Read all records of the run in `folder`, in order of steps."""
    paths = storage.list_files(storage.join(folder, FOLDER), ".json")
    return sorted((_VIEW.validate_json(storage.read(p)) for p in paths), key=lambda v: v.step)
