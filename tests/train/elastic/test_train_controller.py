from trainrig.train.elastic.train_controller import select_nodes


def test_every_node_that_is_avoided_is_named_as_ray_reads_it():
    assert select_nodes(frozenset()) is None
    # Ray splits at commas and keeps spaces: " b" would name no node.
    assert select_nodes(frozenset({"b", "a"})) == {"ray.io/node-id": "!in(a,b)"}
