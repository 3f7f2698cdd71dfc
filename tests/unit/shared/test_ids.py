import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import ids

_TENANTS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)
_MESSAGE_IDS = st.from_regex(r"[A-Za-z0-9_.:-]{1,128}", fullmatch=True)


@given(_TENANTS, _MESSAGE_IDS)
def test_a_batch_id_has_openais_shape(tenant: str, message_id: str) -> None:
    assert re.fullmatch(r"batch_[0-9a-f]{32}", ids.batch_id(tenant, message_id))


@given(_TENANTS, _MESSAGE_IDS)
def test_the_same_message_is_the_same_batch(tenant: str, message_id: str) -> None:
    assert ids.batch_id(tenant, message_id) == ids.batch_id(tenant, message_id)


def test_ids_of_uploads_and_parts_have_openais_prefixes() -> None:
    assert re.fullmatch(r"upload_[0-9a-f]{32}", ids.new_upload_id())
    assert re.fullmatch(r"part_[0-9a-f]{32}", ids.new_part_id())
    assert ids.new_part_id() != ids.new_part_id()


def test_two_tenants_may_use_one_message_id() -> None:
    assert ids.batch_id("acme", "1") != ids.batch_id("globex", "1")


def test_no_tenant_and_message_id_run_together() -> None:
    assert ids.batch_id("ab", "c") != ids.batch_id("a", "bc")


@pytest.mark.parametrize(
    "file_id",
    [
        ids.new_file_id(),
        ids.input_file_id("batch_1"),
        ids.retry_file_id("batch_1"),
        ids.output_file_id("batch_1", "output"),
        ids.output_file_id("batch_1", "error"),
    ],
    ids=["new", "input", "retry", "output", "error"],
)
def test_a_file_id_has_openais_shape(file_id: str) -> None:
    assert re.fullmatch(r"file-[0-9A-Za-z]{22}", file_id)


def test_a_batchs_files_have_ids_of_their_own() -> None:
    found = {
        ids.input_file_id("batch_1"),
        ids.output_file_id("batch_1", "output"),
        ids.output_file_id("batch_1", "error"),
        ids.output_file_id("batch_2", "output"),
    }

    assert len(found) == 4


def test_every_finaliser_names_the_same_output_file() -> None:
    assert ids.output_file_id("batch_1", "output") == ids.output_file_id("batch_1", "output")


@given(st.integers(0, 16**8 - 1))
def test_the_row_is_read_back_from_a_result_line(row: int) -> None:
    result = ids.result_id(ids.batch_id("acme", "1"), row)
    line = b'{"id":"' + result.encode() + b'","custom_id":"a"}'

    assert re.fullmatch(r"batch_req_[0-9a-f]{32}", result)
    assert ids.row_of_result(line) == row


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda end: b'{"id":"batch_req_' + end))
def test_another_line_is_refused_with_a_value_error(line: bytes) -> None:
    try:
        row = ids.row_of_result(line)
    except ValueError:
        return

    assert row >= 0


def test_event_ids_sort_by_sequence() -> None:
    found = [ids.event_id("batch_1", sequence) for sequence in (1, 2, 10, 99, 100)]

    assert found == sorted(found)
    assert found[0] == "evt_batch_1_00000001"


def test_new_ids_never_repeat() -> None:
    makers = (ids.new_file_id, ids.new_api_key, ids.new_http_request_id)

    assert all(len({make() for _ in range(1000)}) == 1000 for make in makers)


def test_a_request_id_is_req_and_32_hex_digits() -> None:
    assert re.fullmatch(r"req_[0-9a-f]{32}", ids.new_http_request_id())


def test_an_api_keys_digest_does_not_contain_the_key() -> None:
    key = ids.new_api_key()

    assert re.fullmatch(r"[0-9a-f]{64}", ids.api_key_digest(key))
    assert key not in ids.api_key_digest(key)
