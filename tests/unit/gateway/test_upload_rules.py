import pytest

from gateway.upload_rules import fingerprint, require_whole
from shared.errors import InvalidInputError


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
    with pytest.raises(InvalidInputError, match=message) as refused:
        require_whole("upload_1", 30, part_ids, sizes)

    assert (refused.value.param, refused.value.code) == (param, "invalid_value")
    assert len(str(refused.value)) < 300


def test_parts_that_are_the_file_are_accepted() -> None:
    require_whole("upload_1", 30, ["b", "a"], [10, 20])


def test_other_parts_or_another_order_have_another_fingerprint() -> None:
    orders = [["a", "b"], ["b", "a"], ["ab"], ["a"], []]

    assert len({fingerprint(part_ids) for part_ids in orders}) == len(orders)
