import json

from gateway.batch_bodies import body_of, page_body
from shared.openai.shapes import Batch, CursorPage
from shared.state import BatchRecord


def record(number: int) -> BatchRecord:
    return BatchRecord(
        {
            "id": f"batch_{number:032x}",
            "tenant": "t",
            "endpoint": "/v1/embeddings",
            "input_file_id": "file-1",
            "completion_window": "24h",
            "status": "completed",
            "created_at": "1",
            "expires_at": "2",
            "metadata": '{"what": "\u00e4 \\"quoted\\" word"}',
        }
    )


def test_a_page_is_what_its_shape_says() -> None:
    records = [record(number) for number in range(3)]
    batches = [one.to_openai() for one in records]

    body = page_body([one.id for one in records], [body_of(one) for one in batches], has_more=True)

    page = CursorPage[Batch](
        data=batches, first_id=batches[0].id, last_id=batches[-1].id, has_more=True
    )
    assert json.loads(body) == page.model_dump(mode="json")
    assert list(json.loads(body)) == list(page.model_dump())


def test_an_empty_page_has_no_ids() -> None:
    assert json.loads(page_body([], [], has_more=False)) == CursorPage[Batch](data=[]).model_dump()
