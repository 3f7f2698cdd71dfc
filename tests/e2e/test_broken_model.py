"""A model that cannot load fails its own batch and affects no other."""

from cli.fleet.catalog import CHAT_MODEL
from tests.e2e.conftest import BROKEN_MODEL, COLD_SECONDS, RunningFleet, until


def test_a_model_that_cannot_load_fails_its_batch_with_the_reason_and_does_not_spin(
    fleet: RunningFleet,
) -> None:
    ended = fleet.wait(fleet.first_batches[BROKEN_MODEL], seconds=COLD_SECONDS)

    assert ended.status == "failed"
    assert ended.errors is not None
    assert ended.errors.data is not None
    problem = ended.errors.data[0]
    assert problem.code == "engine_failed"
    assert "does not exist" in (problem.message or "")
    # Both end after the batch, and nobody starts them again for it.
    until(lambda: not fleet.lane_jobs(BROKEN_MODEL) and not fleet.engines(BROKEN_MODEL), 60)
    healthy = fleet.client.models.list()
    assert CHAT_MODEL in [model.id for model in healthy]
