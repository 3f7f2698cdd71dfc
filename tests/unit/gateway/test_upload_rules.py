import pytest

from gateway.uploads import fingerprint, in_order
from shared.errors import InvalidInputError
from shared.state import PartRecord, UploadRecord

UPLOAD = UploadRecord(
    id="upload_1",
    tenant="acme",
    bytes=30,
    created_at=1,
    expires_at=2,
    filename="in.jsonl",
    purpose="batch",
)


def test_the_parts_of_a_file_come_in_the_order_asked_for() -> None:
    parts = [PartRecord("b", "kb", "eb", 10), PartRecord("a", "ka", "ea", 20)]

    assert in_order(UPLOAD, ["b", "a"], parts) == [("kb", "eb", 10), ("ka", "ea", 20)]


@pytest.mark.parametrize(
    ("part_ids", "sizes", "param", "message"),
    [
        (["a", "b"], [30, None], "part_ids[1]", "upload 'upload_1' has no part 'b'"),
        (["x" * 5000], [None], "part_ids[0]", f"has no part '{'x' * 100}'"),
        (["a", "a"], [15, 15], "part_ids", "part 'a' is named 2 times"),
        (["a", "b"], [15, 14], "part_ids", "the parts have 29 bytes together"),
        (["a", "b"], [15, 16], "part_ids", "was created with 'bytes' 30"),
        ([], [], "part_ids", "the parts have 0 bytes together"),
    ],
)
def test_what_cannot_be_the_file_is_explained(
    part_ids: list[str], sizes: list[int | None], param: str, message: str
) -> None:
    found = [
        None if size is None else PartRecord(part_id, "k", "e", size)
        for part_id, size in zip(part_ids, sizes, strict=True)
    ]

    with pytest.raises(InvalidInputError, match=message) as refused:
        in_order(UPLOAD, part_ids, found)

    assert (refused.value.param, refused.value.code) == (param, "invalid_value")
    assert len(str(refused.value)) < 300


def test_other_parts_or_another_order_have_another_fingerprint() -> None:
    orders = [["a", "b"], ["b", "a"], ["ab"], ["a"], []]

    assert len({fingerprint(part_ids) for part_ids in orders}) == len(orders)
