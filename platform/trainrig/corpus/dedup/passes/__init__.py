"""The passes of the search for duplicates; each task reads the files that the pass before wrote.

A module for each group of passes, in the order in which `dedup.search` runs them:

    repeats           equal keys, then repeats: of URLs where that is asked for, then of texts
    candidates        band keys, divided by their range, and which of them several documents have;
                      for these, what their documents go by; candidate pairs
    verification      remote shingles; candidates compared on their shingles; edges
    decision_rounds   as many rounds of the decision as it takes
    propagation       what became of all that equals what was decided
    final_decisions   each split's own decisions

Tasks over documents are numbered by partition, tasks over keys by part (`PartitionPlan`). The
search that all passes are of, and the files between them, are in `duplicate_search`.
"""
