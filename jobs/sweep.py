"""Train many small models on token shards, to fit scaling laws.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/sweep.py RUN.toml
"""

from trainrig import job
from trainrig.scaling.sweep.sweep import Sweep, sweep

if __name__ == "__main__":
    job.main(Sweep, sweep)
