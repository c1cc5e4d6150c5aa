"""The run file of the stage `teacher`, which stores a teacher's token probabilities."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile


class TeacherScoring(RunFile):
    """Run file of `trainrig teacher`, which stores token probabilities of conversations."""

    verb: ClassVar[str] = "teacher"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["teacher"] = "teacher"
    # Teacher model with the conversations' tokenizer: a run folder (also of an adapter) or a
    # checkpoint.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Folder that `conversations` wrote with rows = "conversations".
    conversations: Annotated[str, NOT_IDENTITY]
    # Number of likeliest vocabulary entries to store for each target. Of all other entries, only
    # the total probability is stored. An entry takes 6 bytes (8 if the vocabulary exceeds 65,536).
    entries: int = Field(default=32, ge=1)
    # Temperature that divides the teacher's logits before the softmax (Hinton et al. 2015,
    # arXiv:1503.02531, section 2). The student's run must have the same temperature.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Conversations in a forward pass. Another number may change the last digits of the results.
    batch: int = Field(default=8, ge=1)
    # CPU threads of a worker. Another number may change the last digits of the results.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # Folder to write, on disk or s3://.
    # Number of worker processes on Ray. 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Approximate tokens of the conversations in a file, which is also the work of one task.
    part_tokens: int = Field(default=2**18, ge=1)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the CPU cores that the workers need."""
        return ResourceRequest.on_cores(self.workers)
