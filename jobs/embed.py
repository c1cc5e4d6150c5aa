"""Compute a vector for each document with a trained model, and write Parquet files.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/embed.py RUN.toml
"""

from trainrig import job
from trainrig.evaluate.engine.embed_run_file import DocumentEmbedding
from trainrig.evaluate.engine.embed_stage import embed

if __name__ == "__main__":
    job.main(DocumentEmbedding, embed)
