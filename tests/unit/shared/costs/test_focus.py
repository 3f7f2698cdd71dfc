import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.costs.focus import COLUMNS, Costs, Month, rows, to_csv
from shared.engines import EngineSeconds
from shared.spent import Day, GpuUse

_MONTH = Month(2026, 11)
_DAY = _MONTH.days[2]
_HOUR = 3_600_000_000
_MICROS = st.integers(0, 10**15)
#: The columns of FOCUS 1.2 that every data set has.
_MANDATORY = {
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
}
#: These may be unknown.
_NULLABLE = {"ChargeClass", "SubAccountId", "SubAccountName"}


def _costs(gpus: list[GpuUse], engines: list[EngineSeconds] | None = None) -> Costs:
    days = [Day(_DAY, gpus, [])]
    return Costs(_MONTH, "batchyard", days, {_DAY: engines or []}, {"h100": 3.6}, "EUR")


def test_a_days_charge_names_tenant_engine_time_and_money() -> None:
    use = GpuUse("acme", "org/m@h100", _HOUR // 2, {"EUR": 1.8})

    [row] = rows(_costs([use]))

    assert set(row) == set(COLUMNS)
    assert (row["SubAccountId"], row["ResourceId"], row["SkuId"]) == ("acme", "org/m@h100", "h100")
    assert (row["x_Model"], row["x_Pool"], row["x_GpuUse"]) == ("org/m", "h100", "batch")
    assert (row["BilledCost"], row["BillingCurrency"]) == (Decimal("1.8"), "EUR")
    assert (row["PricingQuantity"], row["PricingUnit"]) == (Decimal("0.5"), "GPU-Hours")
    assert row["ChargePeriodStart"] == datetime(2026, 11, 3, tzinfo=UTC)
    assert row["ChargePeriodEnd"] == datetime(2026, 11, 4, tzinfo=UTC)
    assert row["BillingPeriodStart"] == datetime(2026, 11, 1, tzinfo=UTC)
    assert row["BillingPeriodEnd"] == datetime(2026, 12, 1, tzinfo=UTC)


def test_starting_and_idle_time_is_nobodys_and_has_the_prices_of_now() -> None:
    engine = EngineSeconds("m@h100", starting=_HOUR, total=5 * _HOUR, rows=_HOUR, live=_HOUR)

    found = list(rows(_costs([], [engine])))

    assert [(row["x_GpuUse"], row["SubAccountId"]) for row in found] == [
        ("live", None),
        ("starting", None),
        ("idle", None),
    ]
    assert [row["BilledCost"] for row in found] == [Decimal("3.6"), Decimal("3.6"), Decimal("7.2")]


@given(st.lists(st.tuples(_MICROS, st.sampled_from(["acme", "globex"])), max_size=20))
def test_nothing_is_lost_between_what_was_counted_and_the_bill(
    uses: list[tuple[int, str]],
) -> None:
    gpus = [
        GpuUse(tenant, "m@h100", micros, {"EUR": micros / _HOUR * 3.6}) for micros, tenant in uses
    ]

    found = list(rows(_costs(gpus)))

    hours = sum((row["PricingQuantity"] for row in found), Decimal(0))
    billed = sum((row["BilledCost"] for row in found), Decimal(0))
    whole = Decimal(sum(micros for micros, _ in uses)) / _HOUR
    assert abs(hours - whole) <= Decimal("1e-11") * len(uses)
    assert float(billed) == pytest.approx(float(whole) * 3.6, abs=1e-8 * (len(uses) + 1))


def test_the_columns_that_focus_demands_are_there_and_filled() -> None:
    use = GpuUse("acme", "m@h100", _HOUR, {})

    text = to_csv(list(rows(_costs([use], [EngineSeconds("m@h100", 1, 10)])))).decode()
    table = list(csv.DictReader(io.StringIO(text)))

    assert set(COLUMNS) >= _MANDATORY
    assert list(table[0]) == list(COLUMNS)
    assert {name for row in table for name, value in row.items() if not value} <= _NULLABLE
    assert table[0]["ChargePeriodStart"] == "2026-11-03T00:00:00Z"
    assert table[0]["BilledCost"] == "0"


@given(st.integers(1971, 9000), st.integers(1, 12))
def test_months_follow_each_other_without_a_gap(year: int, number: int) -> None:
    month = Month(year, number)

    assert month.next.before == month.before.next == month
    assert month.days[-1] + 1 == month.next.days[0]
    assert Month.named(str(month)) == month
    assert Month.of(month.next.start.timestamp() - 1) == month
