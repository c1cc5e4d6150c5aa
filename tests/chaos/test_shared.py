"""A run on a cluster that other jobs use as well."""

import pytest
from support import faults, trouble

from trainrig.train.elastic import trainer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.timeout(600)
def test_a_run_takes_free_capacity_and_grows_when_other_jobs_end(one_ray, undisturbed, tmp_path):
    import ray

    @ray.remote(num_cpus=1)
    class Other:
        def there(self):
            return True

    other = Other.remote()  # type: ignore[attr-defined]
    assert ray.get(other.there.remote())
    straight = undisturbed(60)
    # Alone, the run takes at least 30 s: enough to grow on a machine that is busy with other work.
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.5, alone=True)
    events = faults.Events(job.folder)

    def leave():
        events.wait("first_step")
        ray.kill(other)

    aside = faults.Aside(leave)
    trainer.run(job, (1, 2))
    aside.end()
    whys = [(event["why"], event["workers"]) for event in events.all("attempt_started")]
    assert whys == [("start", 1), ("grow", 2)]
    found = faults.read_results(job)
    wanted = faults.read_results(straight)
    assert found == wanted  # two ranks saved the last checkpoint of both runs
