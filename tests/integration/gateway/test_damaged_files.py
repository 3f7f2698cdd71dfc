"""Files whose objects are damaged: a download says so, and never ends as if all were well."""

import httpx
import pytest
from openai import InternalServerError

from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import BatchYard, good, lines
from tests.integration.gateway.conftest import Caller

_MEBIBYTE = 1024 * 1024
#: More than one chunk of a download.
_LARGE = "x" * _MEBIBYTE


async def _completed(yard: BatchYard, tenant: str, text: str) -> str:
    """The output file of a batch whose rows all got this answer."""
    batch_id = await yard.plan(lines(6), tenant=tenant)
    await yard.run(batch_id, lambda _: good(text))
    await yard.finaliser.finish(batch_id)
    return (await yard.state.batches.get(batch_id)).fields["output_file_id"]


async def _flip(bucket: Storage, key: str) -> None:
    """The same length and, as on a disk that forgets, the same ETag in our records."""
    body = await bucket.get(key)
    await bucket.put(key, body[:-30] + bytes([body[-30] ^ 1]) + body[-29:])


async def _forget_etag(state: State, bucket: Storage, acme: Caller, file_id: str) -> None:
    """Let the file's record name the ETag that its object has now."""
    file = await state.files.get(acme.tenant, file_id)
    etag = (await bucket.stat(file.key)).etag
    await state.files.delete(acme.tenant, file_id)
    await state.files.create(file._replace(etag=etag))


@pytest.mark.parametrize("damage", ["replaced", "gone", "rotten"])
async def test_a_damaged_result_is_a_500_that_says_so(
    damage: str, acme: Caller, yard: BatchYard, bucket: Storage, gateway_state: State
) -> None:
    file_id = await _completed(yard, acme.tenant, "small")
    key = (await gateway_state.files.get(acme.tenant, file_id)).key
    if damage == "gone":
        await bucket.remove([key])
    else:
        await _flip(bucket, key)
    if damage == "rotten":
        await _forget_etag(gateway_state, bucket, acme, file_id)

    with pytest.raises(InternalServerError, match="damaged in the server's storage") as caught:
        await acme.openai.files.content(file_id)

    assert caught.value.code == "object_damaged"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_a_large_result_that_rotted_breaks_off_before_its_end(
    acme: Caller, yard: BatchYard, bucket: Storage, gateway_state: State
) -> None:
    file_id = await _completed(yard, acme.tenant, _LARGE)
    file = await gateway_state.files.get(acme.tenant, file_id)
    whole = (await acme.openai.files.content(file_id)).content
    assert len(whole) == file.bytes > 2 * _MEBIBYTE
    await _flip(bucket, file.key)
    await _forget_etag(gateway_state, bucket, acme, file_id)

    with pytest.raises(httpx.RemoteProtocolError):
        await acme.http.get(f"/v1/files/{file_id}/content")


async def test_an_uploaded_file_whose_object_is_gone_is_damaged_and_one_that_was_deleted_is_not(
    acme: Caller, bucket: Storage, gateway_state: State
) -> None:
    lost = await acme.openai.files.create(file=("in.jsonl", lines(3)), purpose="batch")
    deleted = await acme.openai.files.create(file=("in.jsonl", lines(3)), purpose="batch")
    await bucket.remove([(await gateway_state.files.get(acme.tenant, lost.id)).key])
    await acme.openai.files.delete(deleted.id)

    damaged = await acme.http.get(f"/v1/files/{lost.id}/content")
    absent = await acme.http.get(f"/v1/files/{deleted.id}/content")

    assert (damaged.status_code, damaged.json()["error"]["code"]) == (500, "object_damaged")
    assert absent.status_code == 404


async def test_results_so_far_of_a_damaged_file_are_an_error_too(
    acme: Caller, yard: BatchYard, bucket: Storage, gateway_state: State
) -> None:
    file_id = await _completed(yard, acme.tenant, "small")
    key = (await gateway_state.files.get(acme.tenant, file_id)).key
    await _flip(bucket, key)

    batch_id = key.split("/")[1]
    answer = await acme.http.get(f"/v1/batches/{batch_id}/results")

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "object_damaged")
