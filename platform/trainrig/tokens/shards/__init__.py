"""Token shards: the files of token ids on disk or S3, and how they are written and read."""
