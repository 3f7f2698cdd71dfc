from gateway.organization_shapes import Days, asked_days, completions, costs, embeddings, page_of
from shared.engines import EngineSeconds
from shared.spent import Day, GpuUse, ModelUse

_DAY = 86_400
CHAT, VECTORS = "/v1/chat/completions", "/v1/embeddings"
DAY = Day(
    20_000,
    [
        GpuUse("acme", "m@h100", 7_200_000_000, {"EUR": 8.0}),
        GpuUse("acme", "e@cpu", 1_000_000, {}),
        GpuUse("globex", "m@h100", 3_600_000_000, {"EUR": 4.0}),
    ],
    [
        ModelUse("acme", "m", CHAT, 10, 100, 40, 50),
        ModelUse("acme", "m", "/v1/responses", 1, 2, 0, 3),
        ModelUse("acme", "e", VECTORS, 5, 500, 0, 0),
        ModelUse("globex", "", CHAT, 7, 70, 0, 7),
    ],
)


def test_pages_go_on_where_the_page_before_ended() -> None:
    start, now = 20_000 * _DAY + 5, 20_003 * _DAY + 1.0

    first = asked_days(start, None, limit=3, page=None, now=now)
    last = asked_days(start, None, limit=3, page=first.next_page, now=now)

    assert [*first.numbers] == [20_000, 20_001, 20_002]
    assert ([*last.numbers], last.next_page) == ([20_003], None)
    assert [*asked_days(start, start + 10, limit=3, page=None, now=now).numbers] == [20_000]
    assert [*asked_days(start, start - 10, limit=3, page=None, now=now).numbers] == []


def test_a_bucket_is_a_day() -> None:
    found = page_of(Days([20_000], "20001"), [DAY], lambda day: completions(day, by=()))

    (bucket,) = found.data
    assert (bucket.start_time, bucket.end_time) == (20_000 * _DAY, 20_001 * _DAY)
    assert (found.has_more, found.next_page) == (True, "20001")


def test_usage_is_summed_over_what_it_is_not_grouped_by() -> None:
    (all_,) = completions(DAY, by=())
    grouped = completions(DAY, by=("project_id", "model", "batch"))
    (vectors,) = embeddings(DAY, by=("model",))

    assert (all_.num_model_requests, all_.input_tokens, all_.output_tokens) == (18, 172, 60)
    assert (all_.project_id, all_.model, all_.batch) == (None, None, None)
    assert [(one.project_id, one.model, one.num_model_requests) for one in grouped] == [
        ("acme", "m", 11),
        ("globex", None, 7),
    ]
    assert all(one.batch for one in grouped)
    assert (vectors.model, vectors.input_tokens) == ("e", 500)


def test_costs_of_all_items_are_the_sum() -> None:
    (all_,) = costs(DAY, (), {}, "EUR", by=())
    by_tenant = costs(DAY, (), {}, "EUR", by=("project_id",))

    assert (all_.amount.value, all_.amount.currency) == (12.0, "eur")
    assert all_.gpu_seconds == 10_801.0
    assert [(one.project_id, one.amount.value, one.gpu_seconds) for one in by_tenant] == [
        ("acme", 8.0, 7201.0),
        ("globex", 4.0, 3600.0),
    ]


def test_starting_and_idle_time_is_nobodys_and_has_its_price() -> None:
    engine = EngineSeconds("m@h100", 3_600_000_000, 36_000_000_000, 10_800_000_000)

    found = costs(DAY, [engine], {"h100": 4.0}, "EUR", by=("project_id", "line_item"))

    nobodys = {one.line_item: one for one in found if one.project_id is None}
    assert nobodys["m@h100, starting"].amount.value == 4.0
    assert nobodys["m@h100, idle"].amount.value == 24.0
    assert sum(one.gpu_seconds for one in found) == 36_001.0
