"""What a lane job must be told besides the shared addresses; Ray nodes have it as environment."""

from pydantic import Field

from shared.settings import SharedSettings


class WorkerSettings(SharedSettings):
    """Quantities carry their unit in their name."""

    #: A claim that is not renewed for this long goes back to its lane.
    claim_seconds: float = 30.0
    #: How long a lane job stays when its lane has no work: what comes meanwhile starts at once.
    linger_seconds: float = 300.0
    #: Up to so many rows the lane job runs itself: a Ray Data execution takes seconds to start.
    direct_rows: int = 64
    #: A wave takes what its lane runs in about this time; starting one takes 3 to 6 seconds.
    wave_seconds: float = 30.0
    rows_per_engine_call: int = 16
    #: From so many engines that died of a batch's rows on, none of it is tried alone any more.
    engine_deaths_per_batch: int = Field(default=40, ge=1)
    #: A lane whose engine dies so often in a row, with no result between, fails its batches.
    lane_engine_deaths: int = Field(default=12, ge=5)
    #: Announce each slice that is committed as an event: many small ones, for who wants them.
    slice_events: bool = False
