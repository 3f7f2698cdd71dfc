import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.checksums import Checksum, checksum, sealed, unsealed

_OBJECTS = st.dictionaries(st.text(min_size=1), st.text() | st.integers(), min_size=1)


@given(_OBJECTS)
def test_a_sealed_object_is_still_the_same_json_with_one_member_more(
    fields: dict[str, object],
) -> None:
    body = json.dumps(fields).encode()

    assert json.loads(sealed(body)) == {"seal": checksum(body)} | fields
    assert unsealed(sealed(body)) == body


@given(_OBJECTS, st.data())
def test_a_flipped_bit_is_found_or_changes_nothing(
    fields: dict[str, object], data: st.DataObject
) -> None:
    body = json.dumps({"id": 1, **fields}).encode()
    damaged = bytearray(sealed(body))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    try:
        found = json.loads(unsealed(bytes(damaged)))
    except ValueError:
        return
    # The only flips that are not found are in the name of the seal itself.
    assert json.loads(body).items() <= found.items()


@given(_OBJECTS, st.data())
def test_a_cut_is_found(fields: dict[str, object], data: st.DataObject) -> None:
    whole = sealed(json.dumps(fields).encode())
    damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]

    with pytest.raises(ValueError, match=r"."):
        json.loads(unsealed(damaged))


def test_an_object_of_a_version_without_seals_is_read_as_it_is() -> None:
    assert unsealed(b'{"id":1}') == b'{"id":1}'


@given(st.lists(st.binary()))
def test_a_checksum_does_not_depend_on_how_the_bytes_come(pieces: list[bytes]) -> None:
    found = Checksum()
    for piece in pieces:
        found.add(piece)

    assert (found.text, found.size) == (checksum(b"".join(pieces)), len(b"".join(pieces)))
