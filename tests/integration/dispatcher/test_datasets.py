import asyncio
import io
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from dispatcher.datasets import DatasetInputs
from shared import ids
from shared.catalog import Catalog
from shared.dataset.dataset import Dataset
from shared.errors import InvalidInputError, NotFoundError
from shared.input_places import InputPlaces
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.lifecycle import Status
from shared.state import BatchRecord
from shared.submission.accept import accept
from shared.submission.datasets import Datasets
from shared.tasks import end
from tests.integration.dispatcher.conftest import BatchYard, a_planner, good
from tests.manifests import a_manifest, today

ASK = {
    "model": "m",
    "messages": [{"role": "user", "content": "Is this good? {{ text }}"}],
}
PLACE = "inbox/acme/"
_LOOP = "{% for a in 'x' * 2000 %}{% for b in 'x' * 2000 %}{% endfor %}{% endfor %}"
#: Takes a core for a tenth of a second and more for each row.
SLOW = {"model": "m", "messages": [{"role": "user", "content": f"{_LOOP}{{{{ text }}}}"}]}


async def test_each_row_of_a_parquet_file_becomes_a_request(yard: BatchYard) -> None:
    table = {"text": ['say "hi"', "ü\n{{ 7 }}", None], "most": [5, 6, 7], "id": ["a", "b", "c"]}
    await put(yard, "posts.parquet", parquet(table))
    template = {**ASK, "max_tokens": "{{ most }}", "user": "u {{ id }}"}

    record = await planned(yard, objects="posts.parquet", template=template, custom_id="id")

    assert (record.status, record.number("total")) == (Status.IN_PROGRESS, 3)
    requests = await yard.parsed(record.fields["input_file_id"])
    assert requests == [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m",
                "messages": [{"role": "user", "content": f"Is this good? {text}"}],
                "max_tokens": most,
                "user": f"u {name}",
            },
        }
        for name, text, most in [("a", 'say "hi"', 5), ("b", "ü\n{{ 7 }}", 6), ("c", "", 7)]
    ]


async def test_a_batch_over_a_dataset_ends_like_any_other(yard: BatchYard) -> None:
    await put(yard, "posts.csv", b"text\n" + b"x\n" * 7)
    record = await planned(yard, objects="posts.csv")

    await yard.run(record.id, lambda row: good(f"answer {row}"))
    await yard.finaliser.finish(record.id)

    ended = (await yard.state.batches.get(record.id)).to_openai()
    assert (ended.status, ended.request_counts.completed) == (Status.COMPLETED, 7)
    results = await yard.parsed(ended.output_file_id)
    assert [one["custom_id"] for one in results] == [f"row-{row}" for row in range(1, 8)]


@pytest.mark.parametrize(
    ("name", "body", "template", "contents"),
    [
        ("a.csv", b'\xef\xbb\xbfid,text\n007,"a\nb"\n', "{{ id }} {{ text }}", ["007 a\nb"]),
        ("a.jsonl", b'{"text": {"b": [1, 2]}}\n\n{"text": {"b": []}}', "n {{ text.b|length }}",
         ["n 2", "n 0"]),
        ("a.txt", b"a page", "{{ name }}: {{ text }}", ["a.txt: a page"]),
        ("a.png", b"\x89PNG", "{{ image }}", ["data:image/png;base64,iVBORw=="]),
        ("a.csv", b"two words\n1\n", "{{ row['two words'] }}", ["1"]),
        ("a.csv", b"\n\ntext,,\n\na,b,c\n", "{{ text }}", ["a"]),
    ],
    ids=["csv", "jsonl", "text", "image", "any column name", "empty lines and names"],
)  # fmt: skip
async def test_every_format_gives_rows(
    yard: BatchYard, name: str, body: bytes, template: str, contents: list[str]
) -> None:
    await put(yard, name, body)

    record = await planned(yard, objects=name, template=ask(template))

    assert await contents_of(yard, record) == contents


async def test_an_arrow_file_gives_rows(yard: BatchYard) -> None:
    table, sink = pa.table({"text": ["a", "b"]}), io.BytesIO()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    await put(yard, "a.arrow", sink.getvalue())

    record = await planned(yard, objects="a.arrow", template=ask("{{ text }}"))

    assert await contents_of(yard, record) == ["a", "b"]


async def test_times_with_nanoseconds_have_microseconds_and_bytes_are_base64(
    yard: BatchYard,
) -> None:
    at = pa.array([1_234_567_891], pa.timestamp("ns", "UTC"))
    some = pa.array([[{"at": 1_234_567_891}]], pa.list_(pa.struct({"at": pa.duration("ns")})))
    await put(yard, "t.parquet", parquet({"at": at, "some": some, "picture": [b"\x89PNG"]}))
    text = "{{ at.isoformat() }} {{ some|tojson }} {{ picture }}"

    record = await planned(yard, objects="t.parquet", template={**ask(text), "user": "{{ at }}"})

    [request] = await requests_of(yard, record)
    assert request["body"]["user"] == "1970-01-01T00:00:01.234567Z"
    [content] = await contents_of(yard, record)
    assert content == '1970-01-01T00:00:01.234567+00:00 [{"at": "PT1.234567S"}] iVBORw=='


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
@pytest.mark.parametrize("template", ["{{ text }}", "{{ row.n }}"])
async def test_two_columns_of_one_name_are_told_where_they_are_needed(
    yard: BatchYard, name: str, template: str
) -> None:
    table = pa.table([["a"], ["b"], ["c"]], names=["text", "text", "n"])
    sink = io.BytesIO()
    match name.rpartition(".")[2]:
        case "csv":
            sink.write(b"text,text,n\na,b,c\n")
        case "parquet":
            pq.write_table(table, sink)
        case _:
            with pyarrow.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    await put(yard, name, sink.getvalue())

    record = await planned(yard, objects=name, template=ask(template))
    other = await planned(yard, objects=name, template=ask("{{ n }}"))

    problem = json.loads(record.fields["errors"])[0]
    assert problem["code"] == "unreadable_dataset"
    assert "it has 2 columns 'text'" in problem["message"]
    assert await contents_of(yard, other) == ["c"]


async def test_a_folder_is_read_in_the_order_of_its_names_with_the_columns_of_its_folders(
    yard: BatchYard,
) -> None:
    for lang, part in [("en", 0), ("de", 0), ("de", 1)]:
        body = parquet({"text": [f"{lang}{part}"]})
        await put(yard, f"posts/lang={lang}/part-{part}.parquet", body)
    await put(yard, "posts/_SUCCESS", b"marker")
    await put(yard, "posts/lang=de/.hidden", b"x")
    await put(yard, "postscript.parquet", parquet({"text": ["not ours"]}))

    whole = await planned(yard, objects="posts/", template=ask("{{ lang }} {{ text }}"))
    some = await planned(yard, objects="posts/**/part-0.parquet", template=ask("{{ text }}"))

    assert await contents_of(yard, whole) == ["de de0", "de de1", "en en0"]
    assert await contents_of(yard, some) == ["de0", "en0"]


async def test_a_partitioned_dataset_that_arrow_wrote_is_read(
    yard: BatchYard, tmp_path: Path
) -> None:
    posts = pa.table({"text": list("abcd"), "lang": ["en", "de"] * 2, "year": [1, 1, 2, 2]})
    parts = pads.partitioning(
        pa.schema([("lang", pa.string()), ("year", pa.int64())]), flavor="hive"
    )
    for format_ in ("parquet", "feather"):
        pads.write_dataset(posts, tmp_path / format_, format=format_, partitioning=parts)
        for name, body in files_in(tmp_path / format_).items():
            await put(yard, f"{format_}/{name}", body)

        record = await planned(
            yard, objects=f"{format_}/", template=ask("{{ lang }} {{ year }} {{ text }}")
        )
        some = await planned(yard, objects=f"{format_}/*/year=2/*", template=ask("{{ text }}"))

        assert await contents_of(yard, record) == ["de 1 b", "de 2 d", "en 1 a", "en 2 c"]
        assert await contents_of(yard, some) == ["d", "c"]


async def test_a_folder_of_pages_and_one_of_pictures_have_a_row_for_each_object(
    yard: BatchYard,
) -> None:
    for name in ("b.txt", "a.md", "deep/c.txt"):
        await put(yard, f"pages/{name}", f"page {name}".encode())
    for name in ("2.png", "1.jpg"):
        await put(yard, f"pictures/{name}", b"\xff" * int(name[0]))

    pages = await planned(yard, objects="pages/", template=ask("{{ name }} {{ bytes }} {{ text }}"))
    pictures = await planned(
        yard, objects="pictures/*", template=ask("{{ image }}"), custom_id="name"
    )

    assert await contents_of(yard, pages) == [
        "a.md 9 page a.md",
        "b.txt 10 page b.txt",
        "c.txt 15 page deep/c.txt",
    ]
    asked = await requests_of(yard, pictures)
    assert [(one["custom_id"], one["body"]["messages"][0]["content"]) for one in asked] == [
        ("1.jpg", "data:image/jpeg;base64,/w=="),
        ("2.png", "data:image/png;base64,//8="),
    ]


async def test_a_filter_a_sample_and_a_limit_choose_rows_and_their_ids_stay(
    yard: BatchYard,
) -> None:
    await put(yard, "n.parquet", parquet({"text": [str(n) for n in range(1000)], "n": range(1000)}))
    even = {"objects": "n.parquet", "template": ask("{{ text }}"), "filter": "n % 2 == 0"}

    limited = await planned(yard, **even, limit=3)
    sampled = await planned(yard, **even, sample={"fraction": 0.1, "seed": 4})
    again = await planned(yard, **even, sample={"fraction": 0.1, "seed": 4})

    names = [one["custom_id"] for one in await requests_of(yard, limited)]
    assert names == ["row-1", "row-3", "row-5"]
    rows = await contents_of(yard, sampled)
    assert 20 < len(rows) < 90
    assert all(int(row) % 2 == 0 for row in rows)
    assert await contents_of(yard, again) == rows


@pytest.mark.parametrize(
    ("wanted", "code", "line", "param", "says"),
    [
        ({"template": {"model": "{{ nope }}"}}, "unknown_column", None, "input.template", "'nope'"),
        ({"template": {"model": "m", "a": "{{ text|nope }}"}}, "invalid_template", None,
         "input.template.a", "nope"),
        ({"template": {"model": "m", "a": "{{ 1 // (n - 2) }}"}}, "invalid_row", 2,
         "input.template.a", "ZeroDivisionError"),
        ({"custom_id": "score"}, "invalid_row", 1, "input.custom_id", "float"),
        ({"filter": "n > 99"}, "empty_file", None, "input", "None of the dataset's 2 rows"),
        ({"template": {"messages": []}}, "invalid_request", None, "input.template.model", "Model"),
        ({"template": ASK | {"model": "nope"}}, "model_not_found", None, "input.template.model",
         "'nope' is not supported"),
        ({"template": ASK | {"model": "{{ same }}"}}, "model_not_found", 1, "body.model", "'same'"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_told_before_anything_runs_with_its_place(
    yard: BatchYard, wanted: dict[str, Any], code: str, line: int, param: str, says: str
) -> None:
    table = {"text": ["my secret", "b"], "n": [1, 2], "score": [0.5, 1.5], "same": ["same"] * 2}
    await put(yard, "t.parquet", parquet(table))

    record = await planned(yard, objects="t.parquet", **wanted)

    assert record.status is Status.FAILED
    first = json.loads(record.fields["errors"])[0]
    assert (first["code"], first["line"], first["param"]) == (code, line, param)
    assert says in first["message"]
    assert "my secret" not in record.fields["errors"]


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{{ 'x' * 10 ** 11 }} {{ text }}", "invalid_row"),
        ("{{ 7 ** (10 ** 9) }} {{ text }}", "rendering_failed"),
    ],
    ids=["memory", "time"],
)
async def test_a_template_that_takes_too_much_fails_its_batch_alone(
    yard: BatchYard, template: str, code: str
) -> None:
    await put(yard, "t.csv", b"text\na\n")

    record = await planned(yard, objects="t.csv", template=ask(template))

    assert json.loads(record.fields["errors"])[0]["code"] == code


async def test_slow_datasets_of_one_tenant_hold_up_no_other(yard: BatchYard) -> None:
    await put(yard, "slow.csv", b"text\n" + b"x\n" * 1000)
    await put(yard, "t.csv", b"text\na\n")
    slow = [await submitted(yard, objects="slow.csv", template=SLOW) for _ in range(4)]
    quick = await submitted(yard, "globex", objects="t.csv")
    running = [asyncio.create_task(yard.planner.plan(one)) for one in slow]
    await asyncio.sleep(0)

    try:
        await asyncio.wait_for(yard.planner.plan(quick), 60)
    finally:
        await end(*running)

    assert (await yard.state.batches.get(quick)).status is Status.IN_PROGRESS


async def test_a_batch_that_is_cancelled_is_rendered_no_further(yard: BatchYard) -> None:
    await put(yard, "slow.csv", b"text\n" + b"x\n" * 1000)
    batch_id = await submitted(yard, objects="slow.csv", template=SLOW)
    planning = asyncio.create_task(yard.planner.plan(batch_id))
    await asyncio.sleep(0)

    await cancel(yard.state, yard.storage, batch_id)

    await asyncio.wait_for(planning, 60)
    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.CANCELLING
    with pytest.raises(NotFoundError):
        await yard.state.files.get(record.tenant, record.fields["input_file_id"])


async def test_all_bad_rows_are_told_and_no_file_is_made(yard: BatchYard) -> None:
    await put(yard, "t.jsonl", b'{"text":"a"}\n{}\n{"text":"c"}\n{}\n')

    record = await planned(yard, objects="t.jsonl")

    problems = json.loads(record.fields["errors"])
    assert [one["line"] for one in problems] == [2, 4]
    assert all("the row has no 'text'" in one["message"] for one in problems)
    assert await yard.storage.keys("files/acme/") == []


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b'text,n\n"two\nlines",1\nb,2,3\n', "unreadable_dataset", "line 4 has 3 values"),
        (b'text,n\na,1\n"my secret,2\nc,3\n', "unreadable_dataset", "begins in its line 3 is no"),
        (b"text,n\n", "empty_file", "has no rows"),
        (b"", "empty_file", "has no rows"),
    ],
)
async def test_what_is_wrong_with_a_csv_file_is_told_with_its_line(
    yard: BatchYard, body: bytes, code: str, says: str
) -> None:
    await put(yard, "t.csv", body)

    record = await planned(yard, objects="t.csv")

    [problem] = json.loads(record.fields["errors"])
    assert problem["code"] == code
    assert says in problem["message"]
    assert "my secret" not in problem["message"]


async def test_an_object_that_changed_since_the_creation_is_not_read(yard: BatchYard) -> None:
    await put(yard, "t.csv", b"text\na\n")
    batch_id = await submitted(yard, objects="t.csv")
    await put(yard, "t.csv", b"text\nother\n")

    await yard.planner.plan(batch_id)

    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.FAILED
    assert json.loads(record.fields["errors"])[0]["code"] == "input_changed"


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ("s3://{bucket}/inbox/other/x.csv", "only objects under"),
        ("s3://{bucket}/inbox/acme/../other/x.csv", "only objects under"),
        ("s3://{bucket}/inbox/*/x.csv", "only objects under"),
        ("s3://another/inbox/acme/x.csv", "only objects under"),
        ("s3://{bucket}/inbox/acme/none.csv", "no object"),
        ("s3://{bucket}/inbox/acme/none/", "there is no object"),
        ("s3://{bucket}/inbox/acme/what.bin", "does not say what it is"),
    ],
)
async def test_only_objects_in_a_place_of_the_tenant_are_taken(
    yard: BatchYard, objects: str, says: str
) -> None:
    await put(yard, "what.bin", b"x")
    url = objects.format(bucket=yard.storage.bucket)

    with pytest.raises(InvalidInputError, match=says) as raised:
        await datasets(yard).pinned("acme", Dataset(objects=url, template=ASK))

    assert raised.value.param == "input.objects"


async def test_a_template_that_cannot_be_read_is_refused_at_once(yard: BatchYard) -> None:
    await put(yard, "t.csv", b"text\na\n")

    with pytest.raises(InvalidInputError, match="unexpected") as raised:
        await submitted(yard, objects="t.csv", template=ask("{{ text"))

    assert raised.value.param == "input.template.messages[0].content"


async def test_two_planners_make_one_input(yard: BatchYard, catalog: Catalog) -> None:
    await put(yard, "t.csv", b"text\n" + b"x\n" * 50)
    batch_id = await submitted(yard, objects="t.csv")
    other = a_planner(yard.state, yard.storage, catalog)

    await asyncio.gather(yard.planner.plan(batch_id), other.plan(batch_id))

    record = await yard.state.batches.get(batch_id)
    assert (record.status, record.number("total")) == (Status.IN_PROGRESS, 50)
    assert len(await requests_of(yard, record)) == 50


async def test_a_dataset_outlives_the_sweep_of_what_no_batch_took(yard: BatchYard) -> None:
    await put(yard, "t.csv", b"text\na\n")

    batch_id = await submitted(yard, objects="t.csv")
    pinned = await datasets(yard).pinned("acme", wanted_of(yard, objects="t.csv"))
    await datasets(yard).kept("batch_lost", pinned)

    doomed = await yard.state.survey.will_be_swept(await yard.storage.keys("batches/"))
    assert [key.split("/")[1] for key in doomed] == ["batch_lost"]
    assert (await yard.state.batches.get(batch_id)).fields["dataset"] not in doomed


async def test_more_rows_or_bytes_than_allowed_are_refused(
    yard: BatchYard, catalog: Catalog
) -> None:
    await put(yard, "t.csv", b"text\n" + b"x\n" * 100)

    for limits, code in [({"max_rows": 99}, "too_many_tasks"), ({"max_bytes": 999}, "too_large")]:
        inputs = DatasetInputs(
            yard.state, yard.storage, **{"max_rows": 100, "max_bytes": 99_999, **limits}
        )
        planner = a_planner(yard.state, yard.storage, catalog, datasets=inputs)
        batch_id = await submitted(yard, objects="t.csv")
        await planner.plan(batch_id)
        record = await yard.state.batches.get(batch_id)
        assert json.loads(record.fields["errors"])[0]["code"] == code


def ask(content: str) -> dict[str, Any]:
    """A template with this content."""
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


def parquet(table: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: list(values) for name, values in table.items()}), sink)
    return sink.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    """All files of a folder on this machine, by their paths in it."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


async def put(yard: BatchYard, name: str, body: bytes) -> None:
    await yard.storage.put(f"{PLACE}{name}", body)


def datasets(yard: BatchYard) -> Datasets:
    return Datasets(
        yard.state, yard.storage, InputPlaces(yard.storage.bucket, "inbox/{tenant}/", {})
    )


def wanted_of(yard: BatchYard, *, objects: str, **wanted: Any) -> Dataset:
    url = f"s3://{yard.storage.bucket}/{PLACE}{objects}"
    return Dataset.model_validate({"objects": url, "template": ASK, **wanted})


async def submitted(yard: BatchYard, tenant: str = "acme", **wanted: Any) -> str:
    """A batch that waits for its plan. Its dataset is in a place of acme's."""
    message_id = secrets.token_hex(8)
    pinned = await datasets(yard).pinned("acme", wanted_of(yard, **wanted))
    source = await datasets(yard).kept(ids.batch_id(tenant, message_id), pinned)
    made = a_manifest(message_id, tenant=tenant, **today())
    manifest: Manifest = msgspec.structs.replace(made, **source)
    await accept(yard.state, yard.storage, manifest)
    return manifest.id


async def planned(yard: BatchYard, **wanted: Any) -> BatchRecord:
    """The batch after its plan."""
    batch_id = await submitted(yard, **wanted)
    await yard.planner.plan(batch_id)
    return await yard.state.batches.get(batch_id)


async def requests_of(yard: BatchYard, record: BatchRecord) -> list[dict[str, Any]]:
    assert record.status is Status.IN_PROGRESS, record.fields.get("errors")
    return await yard.parsed(record.fields["input_file_id"])


async def contents_of(yard: BatchYard, record: BatchRecord) -> list[str]:
    return [one["body"]["messages"][0]["content"] for one in await requests_of(yard, record)]
