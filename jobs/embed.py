"""A vector for each document, by a trained model, as Parquet.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/embed.py RUN.toml
"""

from trainrig import job
from trainrig.evaluate.embed.run_file import DocumentEmbedding
from trainrig.evaluate.embed.stage import embed

if __name__ == "__main__":
    job.main(DocumentEmbedding, embed)
