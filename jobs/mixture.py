"""Find weights of sources by training small models on many mixtures.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/mixture.py RUN.toml
"""

from trainrig import job
from trainrig.scaling.mixture.mixture_run_file import MixtureFinding
from trainrig.scaling.mixture.mixture_stage import find_mixture

if __name__ == "__main__":
    job.main(MixtureFinding, find_mixture)
