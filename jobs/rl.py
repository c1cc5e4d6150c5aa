"""A checkpoint taught by what its own answers are worth.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/rl.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.rollouts.run_file import ReinforcementLearning
from trainrig.posttrain.rollouts.stage import reinforce

if __name__ == "__main__":
    job.main(ReinforcementLearning, reinforce)
