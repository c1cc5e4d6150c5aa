"""Many texts as flat arrays: characters, words, sentences, hashes."""
