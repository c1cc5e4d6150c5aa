"""Passes of the search for duplicates; each task reads files written by earlier passes.

The modules, in the order in which `dedup.search` runs them:

repeats           digests of URLs (if enabled) and texts, and exact repeats
    candidates        band keys by range; keys shared by several documents; their entries;
                      candidate pairs
    verification      shingles of remote documents; comparison of candidates; edges
    decision_rounds   as many rounds of the decision as needed
    propagation       decisions sent to exact repeats
    final_decisions   the decisions on each split

Tasks over documents are numbered by partition, tasks over keys by part (`PartitionPlan`). The
search that the passes share, and the paths of its files, are in `duplicate_search`.
"""
