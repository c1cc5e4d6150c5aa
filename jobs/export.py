"""Export a checkpoint as a Hugging Face folder.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/export.py RUN_FOLDER OUT
"""

import argparse
import json

from trainrig.job import exit_codes
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a checkpoint as a Hugging Face folder.")
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("out", metavar="OUT")
    given = parser.parse_args()
    with exit_codes():
        print(json.dumps(export_checkpoint(given.checkpoint, given.out, HubFolder())))
