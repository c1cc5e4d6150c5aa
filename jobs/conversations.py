"""Conversations, or pairs of answers, to token shards with a mask.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/conversations.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.conversation_run import ConversationEncoding
from trainrig.posttrain.conversations import encode_conversations

if __name__ == "__main__":
    job.main(ConversationEncoding, encode_conversations)
