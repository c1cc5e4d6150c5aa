"""n-gram language models: modified Kneser-Ney smoothing, trained and asked without a tool beside.

counting → levels → estimate → trie; arpa reads and writes the format that other tools share.
"""
