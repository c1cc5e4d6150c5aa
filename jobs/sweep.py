"""Many small models on token shards, for scaling laws.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/sweep.py RUN.toml
"""

from trainrig import job
from trainrig.scaling.sweep.sweep import Sweep, sweep

if __name__ == "__main__":
    job.main(Sweep, sweep)
