"""Curate web archives into documents.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/curate.py RUN.toml
"""

from trainrig import job
from trainrig.corpus.curate import Curation, curate

if __name__ == "__main__":
    job.main(Curation, curate)
