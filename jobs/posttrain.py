"""A checkpoint, fine-tuned on conversations.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/posttrain.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.run_file import FineTuning
from trainrig.posttrain.sft import posttrain

if __name__ == "__main__":
    job.main(FineTuning, posttrain)
