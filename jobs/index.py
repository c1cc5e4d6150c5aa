"""Sort training tokens into an index, so that texts can be found in them.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/index.py RUN.toml
"""

from trainrig import job
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens

if __name__ == "__main__":
    job.main(CorpusIndexing, index_tokens)
