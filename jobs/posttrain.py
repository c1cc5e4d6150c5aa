"""Fine-tune a checkpoint on conversations.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/posttrain.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning

if __name__ == "__main__":
    job.main(FineTuning, posttrain)
