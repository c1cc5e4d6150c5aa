"""What storing a teacher's expectations is told."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile


class TeacherScoring(RunFile):
    """`trainrig teacher`: what a teacher expects at each place of conversations."""

    verb: ClassVar[str] = "teacher"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["teacher"] = "teacher"
    # Teacher: a run folder, also of an adapter, or a checkpoint; with the conversations' tokenizer.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Folder that `conversations` wrote with rows = "conversations".
    conversations: Annotated[str, NOT_IDENTITY]
    # Likeliest entries of the vocabulary to keep at each place that is a target; of all others
    # together only the probability is kept. Each takes 6 bytes (8 above 65,536 entries).
    entries: int = Field(default=32, ge=1)
    # What the teacher's logits are divided by, before the softmax (Hinton et al. 2015,
    # arXiv:1503.02531, section 2); the student's run has the same.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Conversations of a forward pass. Another number may give other last digits.
    batch: int = Field(default=8, ge=1)
    # Threads of a worker on a CPU. Another number may give other last digits.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes, on Ray; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Tokens of the conversations of a file, about; also what one worker does at a time.
    part_tokens: int = Field(default=2**18, ge=1)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)
