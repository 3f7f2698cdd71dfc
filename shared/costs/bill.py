"""The bill of a month: from what Redis has counted, in FOCUS, as CSV or Parquet."""

import asyncio
import io
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from shared.catalog import Catalog
from shared.costs.focus import COLUMNS, Costs, Month, Row, rows, to_csv
from shared.state import State

Format = Literal["csv", "parquet"]
_TYPES: dict[type, Any] = {
    str: pa.string(),
    Decimal: pa.decimal128(30, 12),
    datetime: pa.timestamp("ms", tz="UTC"),
}


def bill_key(month: Month, form: Format) -> str:
    """The S3 key of a month's bill."""
    return f"bills/focus-{month}.{form}"


async def make_bill(
    state: State, catalog: Catalog, month: Month, form: Format, *, account: str
) -> bytes | None:
    """The bill of a month, or of what has passed of it; None if nothing was counted.

    Raises TransientError.
    """
    days = await state.spending.days(month.days)
    engines = {number: await state.engines.seconds(number) for number in month.days}
    prices = {name: pool.price_per_hour for name, pool in catalog.pools.items()}
    costs = Costs(month, account, days, engines, prices, catalog.currency)
    found = list(rows(costs))
    if not found:
        return None
    return to_csv(found) if form == "csv" else await asyncio.to_thread(_parquet, found)


def _parquet(found: list[Row]) -> bytes:
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([dict(row) for row in found], schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
