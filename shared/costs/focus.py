"""What a month has cost, as FOCUS 1.2 has it: FinOps' common form of bills. Pure.

One row is a day's GPU time of one tenant, or of nobody, on one engine.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from shared.engines import EngineSeconds
from shared.retention import DAY_SECONDS
from shared.spent import Day, Prices

#: Whoever runs the fleet sells, makes and bills it.
_NAME = "Batchyard"
_UNIT = "GPU-Hours"
_HOUR = Decimal(3_600_000_000)
_MONEY, _HOURS = Decimal("1e-9"), Decimal("1e-12")
_LAST_MONTH = 12
_USES = {"batch": "Batches", "live": "Live calls"}

#: Texts, numbers and times; None for what is not known.
Row = Mapping[str, Any]

#: The columns in the order of files; those after the last of FOCUS are our own.
COLUMNS: Mapping[str, type] = {
    "BilledCost": Decimal,
    "BillingAccountId": str,
    "BillingAccountName": str,
    "BillingCurrency": str,
    "BillingPeriodEnd": datetime,
    "BillingPeriodStart": datetime,
    "ChargeCategory": str,
    "ChargeClass": str,
    "ChargeDescription": str,
    "ChargeFrequency": str,
    "ChargePeriodEnd": datetime,
    "ChargePeriodStart": datetime,
    "ConsumedQuantity": Decimal,
    "ConsumedUnit": str,
    "ContractedCost": Decimal,
    "EffectiveCost": Decimal,
    "InvoiceIssuerName": str,
    "ListCost": Decimal,
    "PricingCategory": str,
    "PricingQuantity": Decimal,
    "PricingUnit": str,
    "ProviderName": str,
    "PublisherName": str,
    "ResourceId": str,
    "ResourceName": str,
    "ResourceType": str,
    "ServiceCategory": str,
    "ServiceName": str,
    "ServiceSubcategory": str,
    "SkuId": str,
    "SubAccountId": str,
    "SubAccountName": str,
    "x_GpuUse": str,
    "x_Model": str,
    "x_Pool": str,
}


class Month(NamedTuple):
    """A month of UTC."""

    year: int
    number: int

    @classmethod
    def of(cls, seconds: float) -> "Month":
        """The month in which this Unix time is."""
        at = datetime.fromtimestamp(seconds, UTC)
        return cls(at.year, at.month)

    @classmethod
    def named(cls, text: str) -> "Month":
        """The month with a name such as `2026-11`. Raises ValueError."""
        at = date.fromisoformat(f"{text}-01")
        return cls(at.year, at.month)

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    @property
    def next(self) -> "Month":
        if self.number == _LAST_MONTH:
            return Month(self.year + 1, 1)
        return Month(self.year, self.number + 1)

    @property
    def before(self) -> "Month":
        return (
            Month(self.year - 1, _LAST_MONTH)
            if self.number == 1
            else Month(self.year, self.number - 1)
        )

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def days(self) -> Sequence[int]:
        """Its days, counted from 1970."""
        first, stop = (int(one.timestamp()) // DAY_SECONDS for one in (self.start, self.next.start))
        return range(first, stop)


class Costs(NamedTuple):
    """What is known of a month: its days, its engines by the day, and the prices of now."""

    month: Month
    #: The bucket, which stands for the fleet.
    account: str
    days: Sequence[Day]
    engines: Mapping[int, Sequence[EngineSeconds]]
    prices: Prices
    currency: str


class _Charge(NamedTuple):
    day: int
    lane: str
    tenant: str | None
    use: str
    micros: int
    cost: Decimal
    currency: str


def rows(costs: Costs) -> Iterator[Row]:
    """The month's charges, day by day."""
    for day in costs.days:
        for charge in (*_of_tenants(day, costs.currency), *_of_operator(day.number, costs)):
            yield _row(charge, costs)


def to_csv(found: Sequence[Row]) -> bytes:
    """The rows as CSV; what is not known is empty."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in found:
        table.writerow(_text(row[column]) for column in COLUMNS)
    return text.getvalue().encode()


def _of_tenants(day: Day, currency: str) -> Iterator[_Charge]:
    for use in day.gpus:
        amounts = use.amounts or {currency: 0.0}
        for number, (unit, amount) in enumerate(amounts.items()):
            # The time counts once, should a batch have been planned in another currency.
            micros = 0 if number else use.micros
            yield _Charge(day.number, use.lane, use.tenant, "batch", micros, _money(amount), unit)


def _of_operator(day: int, costs: Costs) -> Iterator[_Charge]:
    for one in costs.engines.get(day, ()):
        price = costs.prices.get(one.lane.rpartition("@")[2], 0.0)
        for use, micros in one.overheads.items():
            if micros:
                amount = _money(float(Decimal(micros) / _HOUR) * price)
                yield _Charge(day, one.lane, None, use, micros, amount, costs.currency)


def _row(charge: _Charge, costs: Costs) -> Row:
    model, _, pool = charge.lane.rpartition("@")
    hours = (Decimal(charge.micros) / _HOUR).quantize(_HOURS)
    what = _USES.get(charge.use, f"GPUs that are {charge.use}")
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), charge.cost),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), hours),
        **dict.fromkeys(("ConsumedUnit", "PricingUnit"), _UNIT),
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), _NAME),
        "BillingAccountId": costs.account,
        "BillingAccountName": costs.account,
        "BillingCurrency": charge.currency,
        "BillingPeriodStart": costs.month.start,
        "BillingPeriodEnd": costs.month.next.start,
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{what}: {model} on {pool}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _midnight(charge.day),
        "ChargePeriodEnd": _midnight(charge.day + 1),
        "PricingCategory": "Standard",
        "ResourceId": charge.lane,
        "ResourceName": charge.lane,
        "ResourceType": "Engine",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Batch inference",
        "ServiceSubcategory": "Generative AI",
        "SkuId": pool,
        "SubAccountId": charge.tenant,
        "SubAccountName": charge.tenant,
        "x_GpuUse": charge.use,
        "x_Model": model,
        "x_Pool": pool,
    }


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%SZ")
        case Decimal():
            return f"{value.normalize():f}"
        case _:
            return str(value)


def _money(amount: float) -> Decimal:
    return Decimal(str(amount)).quantize(_MONEY)


def _midnight(day: int) -> datetime:
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC)
