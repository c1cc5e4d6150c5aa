"""The pass that decides from edges which documents are dropped; it runs once per round."""

import numpy as np

from trainrig.corpus.dedup.decisions import decision, dedup_decisions
from trainrig.corpus.dedup.pairs.document_reference import DOCUMENT_KEY, deduplicate_names
from trainrig.corpus.dedup.pairs.remote_documents import REMOTE_DOCUMENT
from trainrig.corpus.dedup.pairs.sorted_runs import RunPart
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch
from trainrig.splits import Done, Task, Work


def decide(search: DuplicateSearch, turn: int) -> Work:
    """Return the work of one round of the decision, of number `turn` from 0."""

    def decide_partition(task: Task) -> Done:
        partition = task["number"]
        states = None
        cluster_messages = RunPart(decision.CLUSTER_MESSAGE, ())
        if turn:
            before = f"{turn - 1:05d}"
            states = search.find_part(
                f"words-{before}", search.partitions, partition, decision.STATE_MESSAGE
            ).read()
            cluster_messages = search.find_part(
                f"cluster-messages-{before}", search.partitions, partition, decision.CLUSTER_MESSAGE
            )
        decided = decision.decide(
            deduplicate_names(
                search.find_part("names", search.partitions, partition, DOCUMENT_KEY).read()
            ),
            search.find_part("edges", search.partitions, partition, decision.EDGE).read(),
            search.compute_ref_bounds(partition),
            states,
            cluster_messages.iterate_pieces,
        )
        search.write(
            f"decided-{turn:05d}", task, dedup_decisions.build_decided_rows(decided), decided.refs
        )
        search.write(
            f"cluster-messages-{turn:05d}",
            task,
            decided.cluster_messages,
            decided.cluster_messages["about"],
        )
        remote = search.find_part("remote-documents", search.partitions, partition, REMOTE_DOCUMENT)
        with search.writing(f"words-{turn:05d}", task) as words:
            for piece in remote.iterate_pieces():
                words.add(decided.make_messages(piece["ref"]), piece["reader"].astype(np.int64))
        return {"unsettled": decided.unsettled}, {}

    return decide_partition
