import pytest

from gateway.model_states import engine_view
from shared.engines import EngineRecord, EngineState, Replica, ReplicaState


def engine(state: EngineState, *replicas: ReplicaState) -> EngineRecord:
    made = tuple(Replica(f"{number}", one) for number, one in enumerate(replicas))
    return EngineRecord(lane="chat@gpu", state=state, since=0.0, seen_at=1.0, replicas=made)


@pytest.mark.parametrize(
    ("engines", "view"),
    [
        ([], ("cold", 0)),
        ([engine("asleep")], ("cold", 0)),
        ([engine("failed")], ("cold", 0)),
        ([engine("waiting", "waiting")], ("starting", 0)),
        ([engine("asleep"), engine("starting", "starting")], ("starting", 0)),
        ([engine("running", "running", "starting")], ("warm", 1)),
        ([engine("running", "running"), engine("running", "running", "running")], ("warm", 3)),
    ],
)
def test_the_engines_of_a_model_are_warm_starting_or_cold(
    engines: list[EngineRecord], view: tuple[str, int]
) -> None:
    assert engine_view(engines) == view
