"""n-gram language models with modified Kneser-Ney smoothing, trained and applied without KenLM.

Training runs counting → levels → estimate → trie. `arpa` reads and writes the exchange format of
other tools.
"""
