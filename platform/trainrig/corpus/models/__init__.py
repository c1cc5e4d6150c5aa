"""Models of texts: language identification, classifiers, n-gram models and word lists."""
