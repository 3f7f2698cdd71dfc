"""A live call whose sound comes as a file in a form, as OpenAI's SDKs send it.

It becomes the JSON that the row of a batch would have, so that all further rules are the same.
"""

import base64
import json
from collections.abc import AsyncIterator

from gateway.form import Form
from gateway.route_docs import FORM_MEDIA
from shared.openai.endpoints import Endpoint

#: The field of OpenAI's form, and the one of vLLM's batch form.
_FILE, _URL = "file", "file_url"


def is_form(endpoint: Endpoint, content_type: str) -> bool:
    """Whether the endpoint hears, and the call has a form for it instead of JSON."""
    return endpoint.prompt == "sound" and content_type.lower().startswith(FORM_MEDIA)


async def body_of_form(
    endpoint: Endpoint, content_type: str, chunks: AsyncIterator[bytes], *, max_bytes: int
) -> bytes:
    """The call's body as JSON of at most about `max_bytes`.

    Raises InvalidInputError and TooLargeError.
    """
    form = Form(
        content_type,
        file_field=_FILE,
        fields=sorted(endpoint.fields - {_URL}),
        # In base64, four bytes stand for three.
        max_file_bytes=max_bytes * 3 // 4,
    )
    file = bytearray()
    async for chunk in chunks:
        for piece in form.feed(chunk):
            file += piece
    form.finish()
    # Fields that the endpoint does not have are refused with all others of their kind.
    fields = {**dict.fromkeys(form.others, "?"), **form.fields()}
    # Neutral, because vLLM looks into the file itself.
    sound = f"data:application/octet-stream;base64,{base64.b64encode(file).decode()}"
    return json.dumps({**fields, _URL: sound}).encode()
