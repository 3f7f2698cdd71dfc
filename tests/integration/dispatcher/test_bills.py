"""Bills of months that have ended, of batches that have."""

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from dispatcher.bills import Bills
from shared.catalog_file import load_catalog
from shared.costs.bill import bill_key, make_bill
from shared.costs.focus import Month
from shared.errors import TransientError
from shared.state import State
from shared.storage import Storage

_MONTH = Month(2026, 10)
_DAY = _MONTH.days[4]
_NOW = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
_SPENT = {"gpu acme m@h100": 1_800_000_000, "nano acme m@h100 EUR": 1_500_000_000}
_ENGINES = {
    "m@h100 starting": 60_000_000,
    "m@h100 total": 3_600_000_000,
    "m@h100 rows": 1_800_000_000,
}
_CATALOG = """\
currency: EUR
pools:
  h100: {resources: {GPU: 1}, price_per_hour: 3}
models:
  m: {pools: [h100]}
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.yaml"
    path.write_text(_CATALOG)
    return path


async def _spend(redis_url: str, day: int = _DAY) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.hset(f"{{batchyard}}:spent:{day}", mapping=_SPENT)
        await redis.hset(f"{{batchyard}}:engine-seconds:{day}", mapping=_ENGINES)


async def test_each_month_that_has_ended_gets_one_bill_and_keeps_it(
    redis_server: servers.Redis, own_state: State, storage: Storage, catalog: Path
) -> None:
    bills = Bills(own_state, storage, load_catalog(catalog), "csv")
    await _spend(redis_server.url)
    await _spend(redis_server.url, Month(2026, 11).days[0])
    await bills.write(now=datetime(2026, 11, 1, 0, 59, tzinfo=UTC).timestamp())
    before = await storage.keys("bills/")
    await bills.write(now=_NOW)
    first = await storage.get(bill_key(_MONTH, "csv"))
    await _spend(redis_server.url, _DAY + 1)
    await bills.write(now=_NOW)

    table = list(csv.DictReader(io.StringIO(first.decode())))
    assert before == []
    assert await storage.keys("bills/") == [bill_key(_MONTH, "csv")]
    assert await storage.get(bill_key(_MONTH, "csv")) == first
    assert [(row["x_GpuUse"], row["SubAccountId"], row["BilledCost"]) for row in table] == [
        ("batch", "acme", "1.5"),
        ("starting", "", "0.05"),
        ("idle", "", "1.45"),
    ]
    assert {row["BillingAccountId"] for row in table} == {storage.bucket}


async def test_no_bill_is_made_of_an_older_redis(
    redis_server: servers.Redis,
    own_state: State,
    storage: Storage,
    catalog: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def made(*args: Any, **options: Any) -> Any:
        bill = await make_bill(*args, **options)
        # Its calls waited for a Redis that was put back meanwhile.
        await own_state.restore.begin()
        return bill

    monkeypatch.setattr("dispatcher.bills.make_bill", made)
    await _spend(redis_server.url)
    bills = Bills(own_state, storage, load_catalog(catalog), "csv")

    for _ in ("begun while it was made", "begun before"):
        with pytest.raises(TransientError):
            await bills.write(now=_NOW)

    assert await storage.keys("bills/") == []


async def test_both_forms_of_a_bill_say_the_same(
    redis_server: servers.Redis, own_state: State, catalog: Path
) -> None:
    await _spend(redis_server.url)
    made = load_catalog(catalog)

    text = await make_bill(own_state, made, _MONTH, "csv", account="b")
    table = await make_bill(own_state, made, _MONTH, "parquet", account="b")

    assert text is not None and table is not None
    as_csv = list(csv.DictReader(io.StringIO(text.decode())))
    as_parquet = pq.read_table(io.BytesIO(table)).to_pylist()
    assert [Decimal(row["BilledCost"]) for row in as_csv] == [
        row["BilledCost"] for row in as_parquet
    ]
    assert as_parquet[0]["ChargePeriodStart"] == datetime(2026, 10, 5, tzinfo=UTC)
    assert [row["SubAccountId"] or None for row in as_csv] == [
        row["SubAccountId"] for row in as_parquet
    ]


def test_an_operator_writes_a_bill_by_command(redis_server: servers.Redis, catalog: Path) -> None:
    import asyncio

    asyncio.run(_spend(redis_server.url))
    named = ["--redis-url", redis_server.url, "--catalog", str(catalog)]

    written = CliRunner().invoke(app, ["bill", "2026-10", *named])
    empty = CliRunner().invoke(app, ["bill", "2026-01", *named])
    wrong = CliRunner().invoke(app, ["bill", "october", *named])

    assert written.exit_code == 0
    assert written.stdout.count("\n") == 4
    assert "Nothing was counted in 2026-01" in str(empty.exception)
    assert "october is no month" in str(wrong.exception)
