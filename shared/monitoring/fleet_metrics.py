"""The metrics of the whole fleet, as every dispatcher shows them: made from what Redis counts.

Names of tenants come from operators. There are never more of them than `MAX_TENANTS` in a metric:
those with the largest numbers, and `other` for the rest.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric, SummaryMetricFamily

from shared.call_times import call_times
from shared.engine_starts import whole_start
from shared.monitoring.metrics import Sample, counter, exposition, gauge, service_calls
from shared.slices import ReleaseReason
from shared.state.census import FleetCounts, LaneCount, Total

MAX_TENANTS = 20
OTHER = "other"
_LANE = ("lane",)
_BATCH = ("batch", "tenant")
_BY_TENANT = ("lane", "tenant")
_MICROS, _THOUSAND = 1_000_000, 1000
_GPU_USES = {"gpu_rows": "batch", "gpu_live": "live", "gpu_starting": "starting"}
_ENDS = {"ended_p50": "p50", "ended_p80": "p80", "ended_later": "later"}
_MADE = ("creation", "running")
_TOKENS = {"input_tokens": "input", "cached_tokens": "cached", "output_tokens": "output"}

#: Counters of vLLM's, by the names that they have in Redis.
_OF_VLLM = {
    "preemptions": "Sequences that vLLM put back because its KV cache was full.",
    "computed_tokens": "Tokens of prompts and answers that vLLM has computed.",
    "recomputed_tokens": "Those of them that it had computed before it put a sequence back.",
    "prefix_queries": "Tokens of prompts that vLLM looked for in its prefix cache.",
    "prefix_hits": "Those of them that it found there.",
}

_OF_LANES: tuple[tuple[str, str, Callable[[LaneCount], float]], ...] = (
    ("batches", "Running batches that are not paused.", lambda lane: lane.batches),
    ("ready_slices", "Slices that are ready to be claimed.", lambda lane: lane.ready_slices),
    ("claimed_slices", "Slices that the lane job has claimed.", lambda lane: lane.claimed_slices),
    ("rows", "Rows that the current lane job has committed.", lambda lane: lane.rows),
    ("failed", "1 if the engine cannot start.", lambda lane: lane.has_failed),
    ("rows_per_second", "The lane's rate, as the lane job measures it.", lambda one: one.row_rate),
    (
        "tokens_per_second",
        "The lane's rate in tokens, as they were predicted.",
        lambda lane: lane.token_rate,
    ),
)


def fleet_exposition(
    counted: FleetCounts | None, *, up: Mapping[str, bool], dead_letters: int | None, leads: bool
) -> bytes:
    """The body of a scrape of a dispatcher. What could not be counted is left out."""
    return exposition(_families(counted, up, dead_letters, leads=leads))


def _families(
    counted: FleetCounts | None, up: Mapping[str, bool], dead_letters: int | None, *, leads: bool
) -> Iterator[Metric]:
    services = [([service], is_up) for service, is_up in up.items()]
    yield gauge("batchyard_service_up", "1 if the service answers.", ["service"], services)
    yield gauge(
        "batchyard_dispatcher_leads", "1 if this dispatcher leads.", [], [([], float(leads))]
    )
    yield service_calls(call_times())
    if dead_letters is not None:
        text = "Messages that could not be read, in batch.dead.submit."
        yield gauge("batchyard_dead_letters", text, [], [([], dead_letters)])
    if counted is not None:
        yield from _batches(counted)
        yield from _running(counted)
        yield from _redis(counted)
        yield from _lanes(counted)
        totals = [*counted.totals, *_zeros(counted)]
        yield from _work(totals)
        yield from _predictions(totals)
        yield from _engines(counted)
        yield from _of_vllm(counted, totals)


def _zeros(counted: FleetCounts) -> Iterator[Total]:
    """The counters of known lanes and tenants to which nothing has been added so far.

    Prometheus sees a growth only from a value that it has seen.
    """
    known = {(one.what, one.lane, one.whose) for one in counted.totals}
    wanted = {
        *((what, lane, "-") for lane in counted.lanes for what in ("first_results", *_OF_VLLM)),
        *(("given_back", lane, reason.value) for lane in counted.lanes for reason in ReleaseReason),
        *((end, lane, made) for lane in counted.lanes for end in _ENDS for made in _MADE),
        *(("failed", lane, whose) for what, lane, whose in known if what == "completed"),
    }
    return (Total(*name, 0) for name in sorted(wanted - known))


def _batches(counted: FleetCounts) -> Iterator[Metric]:
    at = counted.at
    yield gauge(
        "batchyard_batches",
        "Batches in each status that is not final.",
        ["status"],
        [([status], found.number) for status, found in counted.live.items()],
    )
    yield gauge(
        "batchyard_oldest_batch_seconds",
        "Time since the batch that has been longest in the status entered it.",
        ["status"],
        [([status], _age(at, found.since)) for status, found in counted.live.items()],
    )
    yield counter(
        "batchyard_batches_ended",
        "Batches that have ended.",
        ["status"],
        [([status], number) for status, number in counted.ended.items()],
    )
    yield gauge(
        "batchyard_outbox_entries",
        "Outbox entries that are not published yet.",
        ["outbox"],
        [([box], found.number) for box, found in counted.outboxes.items()],
    )
    yield gauge(
        "batchyard_outbox_oldest_seconds",
        "Time since the oldest outbox entry was written: how far the relay lags.",
        ["outbox"],
        [([box], _age(at, found.since)) for box, found in counted.outboxes.items()],
    )
    if counted.next_window_at is not None:
        yield gauge(
            "batchyard_next_window_seconds",
            "Time until the next completion window of a live batch ends.",
            [],
            [([], counted.next_window_at - at)],
        )
    yield gauge(
        "batchyard_webhooks_overdue_seconds",
        "Time since the first webhook delivery that waits was due.",
        [],
        [([], _age(at, counted.webhooks_due_at))],
    )


def _running(counted: FleetCounts) -> Iterator[Metric]:
    """The batches that have run longest, one by one."""
    batches = [((one.id, one.tenant), one) for one in counted.running]
    yield gauge(
        "batchyard_batch_rows",
        "Rows of a running batch.",
        [*_BATCH, "outcome"],
        [
            ((*key, outcome), number)
            for key, one in batches
            for outcome, number in (
                ("completed", one.completed),
                ("failed", one.failed),
                ("left", one.total - one.completed - one.failed),
            )
        ],
    )
    yield gauge(
        "batchyard_batch_tokens",
        "Tokens of its rows that have a result.",
        [*_BATCH, "kind"],
        [
            ((*key, kind), number)
            for key, one in batches
            for kind, number in (("input", one.input_tokens), ("output", one.output_tokens))
        ],
    )
    yield gauge(
        "batchyard_batch_gpu_seconds",
        "GPU time of these rows.",
        _BATCH,
        [(key, one.gpu_micros / _MICROS) for key, one in batches],
    )
    yield gauge(
        "batchyard_batch_seconds_left",
        "Time until the predicted P50 and P80 of its end, and until its window closes.",
        [*_BATCH, "until"],
        [
            ((*key, until), at - counted.at)
            for key, one in batches
            for until, at in (
                ("p50", one.finish_at),
                ("p80", one.finish_p80_at),
                ("window", one.expires_at),
            )
            if at is not None
        ],
    )


def _redis(counted: FleetCounts) -> Iterator[Metric]:
    yield gauge(
        "batchyard_redis_memory_bytes",
        "Memory that Redis uses.",
        [],
        [([], counted.memory_bytes)],
    )
    yield gauge(
        "batchyard_redis_max_memory_bytes",
        "Memory at which Redis refuses writes, or the memory of its machine if it has no limit.",
        [],
        [([], counted.max_memory_bytes)],
    )


def _lanes(counted: FleetCounts) -> Iterator[Metric]:
    lanes = counted.lanes
    for name, text, number in _OF_LANES:
        values = [([lane], number(count)) for lane, count in lanes.items()]
        yield gauge(f"batchyard_lane_{name}", text, _LANE, values)
    yield gauge(
        "batchyard_lane_job_silent_seconds",
        "Time since the lane job's last sign of life.",
        _LANE,
        [
            ([lane], _age(counted.at, count.job_beat_at))
            for lane, count in lanes.items()
            if count.job_beat_at
        ],
    )
    yield gauge(
        "batchyard_cost_prediction_error",
        "How far predicted costs of batches were off lately: 0.2 is a fifth of the real ones.",
        _LANE,
        [
            ([lane], count.cost_error)
            for lane, count in lanes.items()
            if count.cost_error is not None
        ],
    )


def _work(totals: Sequence[Total]) -> Iterator[Metric]:
    """What has been done, by lane and tenant."""
    rows = [("completed", one) for one in totals if one.what == "completed"]
    rows += [("failed", one) for one in totals if one.what == "failed"]
    yield counter(
        "batchyard_rows",
        "Rows that have a result.",
        [*_BY_TENANT, "outcome"],
        _by_tenant(rows),
    )
    tokens = [(_TOKENS[one.what], one) for one in totals if one.what in _TOKENS]
    yield counter(
        "batchyard_tokens",
        "Tokens of these rows; `cached` are among `input`.",
        [*_BY_TENANT, "kind"],
        _by_tenant(tokens),
    )
    yield counter(
        "batchyard_slices_given_back",
        "Claims on slices that have ended without a result; these slices run again.",
        ["lane", "reason"],
        [([one.lane, one.whose], one.number) for one in totals if one.what == "given_back"],
    )
    first = SummaryMetricFamily(
        "batchyard_first_result_seconds",
        "Time from a batch's creation to its first result, counted on the lane that had it.",
        labels=_LANE,
    )
    seconds = {one.lane: one.number for one in totals if one.what == "first_seconds"}
    for one in totals:
        if one.what == "first_results":
            first.add_metric([one.lane], one.number, float(seconds.get(one.lane, 0)))
    yield first


def _predictions(totals: Sequence[Total]) -> Iterator[Metric]:
    """What became of the ends that batches with one lane were told."""
    ended = [(_ENDS[one.what], one) for one in totals if one.what in _ENDS]
    yield counter(
        "batchyard_predicted_ends",
        "Batches that have ended: by the predicted P50, by the P80, or later. `made` says whether "
        "that was told at the batch's creation, or when a fifth of it had run.",
        ["lane", "made", "ended"],
        [([one.lane, one.whose, end], one.number) for end, one in ended],
    )
    error = SummaryMetricFamily(
        "batchyard_end_prediction_error",
        "How far the predicted P50 was off, as a part of the time from the prediction to the end: "
        "0.2 is a fifth.",
        labels=["lane", "made"],
    )
    counts = Counter[tuple[str, str]]()
    for _, one in ended:
        counts[one.lane, one.whose] += one.number
    sums = {(one.lane, one.whose): one.number for one in totals if one.what == "end_error"}
    for key, count in sorted(counts.items()):
        error.add_metric(key, count, sums.get(key, 0) / _THOUSAND)
    yield error


def _engines(counted: FleetCounts) -> Iterator[Metric]:
    engines = counted.engines
    yield gauge(
        "batchyard_engine_state",
        "1 for the state that the engine is in.",
        ["lane", "state"],
        [([one.lane, one.state], 1) for one in engines],
    )
    yield gauge(
        "batchyard_engine_state_seconds",
        "How long the engine has been in its state.",
        _LANE,
        [([one.lane], _age(counted.at, one.since)) for one in engines],
    )
    replicas = Counter((one.lane, replica.state) for one in engines for replica in one.replicas)
    yield gauge(
        "batchyard_engine_replicas",
        "Replicas of the engine.",
        ["lane", "state"],
        [(key, number) for key, number in sorted(replicas.items())],
    )
    yield counter(
        "batchyard_engine_starts",
        "Starts of replicas that have ended in a running one.",
        _LANE,
        [([one.lane], one.starts) for one in engines],
    )
    yield gauge(
        "batchyard_engine_last_start_seconds",
        "How long the last of them took.",
        _LANE,
        [([one.lane], one.last_start_seconds) for one in engines if one.starts],
    )
    yield gauge(
        "batchyard_engine_last_start_stage_seconds",
        "What it was made of, as its replica has told it; the stages sum up to it.",
        ["lane", "stage"],
        [
            ([one.lane, stage], seconds)
            for one in engines
            if (start := counted.starts.get(one.lane))
            for stage, seconds in whole_start(start, one.last_start_seconds).items()
        ],
    )
    yield counter(
        "batchyard_gpu_seconds",
        "Time of GPUs by its use: rows of batches that have their result, live calls, starting, "
        "and idle, which is all else. Where an engine runs on a processor, it counts as one GPU.",
        ["lane", "use"],
        _gpu_uses(counted.totals),
    )


def _of_vllm(counted: FleetCounts, totals: Sequence[Total]) -> Iterator[Metric]:
    """What vLLM says of itself; gauges only of replicas that were asked of late."""
    shown = {lane: found for lane, found in counted.replicas.items() if found}
    yield gauge(
        "batchyard_engine_kv_usage",
        "The part of vLLM's KV cache that is in use, in the replica where it is largest.",
        _LANE,
        [([lane], max(one.kv_usage for one in found)) for lane, found in shown.items()],
    )
    yield gauge(
        "batchyard_engine_sequences",
        "Sequences that vLLM computes, and those that it has and does not.",
        ["lane", "state"],
        [
            ([lane, state], sum(getattr(one, state) for one in found))
            for lane, found in shown.items()
            for state in ("running", "waiting")
        ],
    )
    for name, text in _OF_VLLM.items():
        samples = [([one.lane], one.number) for one in totals if one.what == name]
        yield counter(f"batchyard_engine_{name}", text, _LANE, samples)


def _gpu_uses(totals: Sequence[Total]) -> Iterator[Sample]:
    known = {(one.what, one.lane): one.number for one in totals}
    for lane in sorted({one.lane for one in totals if one.what == "gpu_total"}):
        uses = {use: known.get((what, lane), 0) for what, use in _GPU_USES.items()}
        uses["idle"] = max(0, known["gpu_total", lane] - sum(uses.values()))
        for use, number in uses.items():
            yield [lane, use], number / _MICROS


def _by_tenant(counts: Iterable[tuple[str, Total]]) -> list[Sample]:
    """Samples by lane, tenant and kind, with no more than MAX_TENANTS names."""
    found = list(counts)
    sizes = Counter[str]()
    for _, one in found:
        sizes[one.whose] += one.number
    named = {tenant for tenant, _ in sizes.most_common(MAX_TENANTS)}
    sums = Counter[tuple[str, str, str]]()
    for kind, one in found:
        sums[one.lane, one.whose if one.whose in named else OTHER, kind] += one.number
    return [(key, number) for key, number in sorted(sums.items())]


def _age(at: float, since: float | None) -> float:
    return 0.0 if since is None else max(0.0, at - since)
