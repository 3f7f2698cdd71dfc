import json

from shared.catalog import Catalog, Model, Pool
from shared.input.validation import InputCheck
from shared.lane_shares import LaneShares

CHAT = "/v1/chat/completions"
CATALOG = Catalog(
    pools={"local": Pool(resources={"CPU": 1})},
    models={"m": Model(name="m", pools=("local",))},
)


def test_a_batch_counts_in_its_quota_by_its_sequences() -> None:
    lines = [
        json.dumps(
            {
                "custom_id": str(answers),
                "method": "POST",
                "url": CHAT,
                "body": {"model": "m", "messages": [], "n": answers},
            }
        )
        for answers in (1, 5)
    ]
    check = InputCheck(CHAT, CATALOG.endpoints_by_name())
    shares = LaneShares(CATALOG)

    for row in check.feed("\n".join([*lines, ""]).encode()):
        shares.add(row)

    assert (shares.all[0].rows, shares.fields()["queued_requests"]) == (2, 6)
