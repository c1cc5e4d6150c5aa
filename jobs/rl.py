"""Train a checkpoint by the rewards of its answers (reinforcement learning).

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/rl.py RUN.toml
"""

from trainrig import job
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import reinforce

if __name__ == "__main__":
    job.main(ReinforcementLearning, reinforce)
