"""Encode conversations or preference pairs as token shards with a loss mask.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/conversations.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding

if __name__ == "__main__":
    job.main(ConversationEncoding, encode_conversations)
