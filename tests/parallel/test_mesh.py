from trainrig.parallel.mesh import local_device


def test_all_ranks_lie_along_one_axis(ranks):
    assert ranks(3, "mesh") == [(("data",), 3, rank) for rank in range(3)]


def test_a_process_without_a_gpu_works_on_its_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert local_device().type == "cpu"
