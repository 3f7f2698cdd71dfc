import pytest

from shared.ledger.end_line import end_line, waits

RECORD = {
    "id": "batch_1",
    "tenant": "acme",
    "status": "completed",
    "door": "bus",
    "model": "m",
    "lane": "m@h100",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "created_at": "100",
    "in_progress_at": "103",
    "started_at": "110",
    "finalizing_at": "170",
    "completed_at": "172",
    "total": "10",
    "completed": "9",
    "failed": "1",
    "input_tokens": "500",
    "output_tokens": "70",
    "spent": '{"m@h100":2500000}',
}


def test_the_line_has_counts_tokens_duration_and_what_was_waited_for() -> None:
    line = end_line(RECORD)

    assert (line["total"], line["completed"], line["failed"]) == (10, 9, 1)
    assert (line["input_tokens"], line["cached_tokens"], line["output_tokens"]) == (500, 0, 70)
    assert (line["gpu_seconds"], line["seconds"]) == (2.5, 72)
    assert line["waits"] == {"check": 3, "lane": 7, "run": 60, "write": 2}
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("changes", "gone", "expected"),
    [
        ({"status": "failed", "failed_at": "105"}, "in_progress_at", {"check": 5}),
        ({"status": "expired", "expired_at": "190"}, "started_at", {"check": 3, "lane": 87}),
    ],
)
def test_what_a_batch_never_came_to_is_left_out(
    changes: dict[str, str], gone: str, expected: dict[str, int]
) -> None:
    later = ("in_progress_at", "started_at", "finalizing_at", "completed_at")
    fields = {**RECORD, **changes}
    for name in later[later.index(gone) :]:
        del fields[name]

    found = waits(fields, int(fields[f"{fields['status']}_at"]))

    assert found == expected
