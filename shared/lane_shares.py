"""The share of a batch on each of its lanes; most batches have one. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.catalog import Catalog, Model
from shared.input.rows import Row
from shared.ordering.pace import TokensOfRows
from shared.slices import Slice
from shared.spent import prices_text


@dataclass
class LaneShare:
    """The part of a batch that one lane runs."""

    number: int
    lane: str
    model: Model
    rows: int = 0
    slices: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    sequences: int = 0


class LaneShares:
    """The lanes of a batch, numbered in the order in which its rows name their models."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_model: dict[str, LaneShare] = {}
        self.all: list[LaneShare] = []

    @property
    def lanes(self) -> list[str]:
        return [share.lane for share in self.all]

    @property
    def slices(self) -> int:
        """The slices of all lanes that have been counted."""
        return sum(share.slices for share in self.all)

    @property
    def tokens(self) -> dict[str, TokensOfRows]:
        """By lane, the tokens that are predicted for its rows, and how many rows those are."""
        return {share.lane: TokensOfRows(share.tokens, share.rows) for share in self.all}

    @property
    def sequences(self) -> int:
        """The sequences of all rows, each a prompt times its answers."""
        return sum(share.sequences for share in self.all)

    def add(self, row: Row) -> LaneShare:
        """Count the row for its lane's share, which is returned."""
        share = self.share_of(row.model)
        share.rows += 1
        share.sequences += row.sequences
        share.tokens += row.tokens
        share.prompt_tokens += row.tokens - row.output
        return share

    def share_of(self, model: str) -> LaneShare:
        """The share of the lane that runs the model, which may be the first to name it."""
        return self._by_model.get(model) or self._new_share(model)

    def count(self, slices: Iterable[Slice]) -> None:
        """Add slices that will run to their lanes' numbers."""
        for slice_ in slices:
            self.all[slice_.lane].slices += 1

    def fields(self) -> dict[str, str | int]:
        """The fields of a batch's record about its lanes."""
        several = self.all if len(self.all) > 1 else []
        return {
            "lane": " ".join(self.lanes),
            "slices_total": self.slices,
            # What counts against the quota of requests.
            "queued_requests": self.sequences,
            "queued_model": " ".join(share.model.name for share in self.all),
            "prompt_tokens": " ".join(str(share.prompt_tokens) for share in self.all),
            # Predicted tokens and rows of each lane.
            "lane_tokens": " ".join(f"{share.tokens}/{share.rows}" for share in self.all),
            **self._prices(),
            **{f"rows_left:{share.lane}": share.rows for share in several},
            **{f"slices_left:{share.lane}": share.slices for share in several},
        }

    def _prices(self) -> dict[str, str]:
        """The prices that hold for the batch from now on; none where nothing has a price."""
        pools = {pool for share in self.all for pool in share.model.pools}
        prices = {pool: self._catalog.pools[pool].price_per_hour for pool in pools}
        if not any(prices.values()):
            return {}
        return {"prices": prices_text(prices, self._catalog.currency)}

    def _new_share(self, model: str) -> LaneShare:
        lane = self._catalog.lane_of(model).name
        share = next((one for one in self.all if one.lane == lane), None)
        if share is None:
            share = LaneShare(len(self.all), lane, self._catalog.model(model))
            self.all.append(share)
        self._by_model[model] = share
        return share
