"""The shapes of ids: OpenAI's prefixes and lengths, deterministic where a repeat needs the same id.

Pure. Clients treat ids as opaque, and nothing outside this file parses one.
"""

import hashlib
import re
import secrets
import string

#: The prefix of API keys that Batchyard creates.
API_KEY_PREFIX = "sk-batchyard-"
_BASE62 = string.digits + string.ascii_letters
#: Digits of a row number inside a result id: enough for 16^8 rows.
_ROW_DIGITS = 8


_ID = re.compile(r"(?:batch|upload|part|we|wh|key|pipe)_[0-9a-f]{24,32}|file-[0-9A-Za-z]{22}")


def is_id(text: str) -> bool:
    """Whether the text has the shape of an id of a batch, a file or another object with one."""
    return _ID.fullmatch(text) is not None


def batch_id(tenant: str, message_id: str) -> str:
    """`batch_` and 32 hex digits; the same message of the same tenant is the same batch."""
    return f"batch_{_digest(tenant, message_id)[:32]}"


def input_file_id(batch: str) -> str:
    """The file id of the S3 object that a batch from the bus reads."""
    return _file_id(_digest("input", batch))


def output_file_id(batch: str, kind: str) -> str:
    """The id of a batch's `output` or `error` file, the same for every finaliser."""
    return _file_id(_digest(kind, batch))


def dataset_file_id(batch: str) -> str:
    """The id of the input that is rendered for a batch over a dataset."""
    return _file_id(_digest("dataset", batch))


def open_file_id(batch: str) -> str:
    """The id of the input that an open batch has once it has ended."""
    return _file_id(_digest("open", batch))


def retry_file_id(batch: str) -> str:
    """The id of the input that is created for a batch that retries another."""
    return _file_id(_digest("retry", batch))


def pipeline_id(tenant: str, message_id: str) -> str:
    """`pipe_` and 32 hex digits; the same call of the same tenant is the same pipeline."""
    return f"pipe_{_digest('pipeline', tenant, message_id)[:32]}"


def stage_message_id(pipeline: str, stage: int) -> str:
    """The message id of the batch that is a stage of the pipeline."""
    return f"pipeline:{pipeline}:{stage}"


def pipeline_file_id(pipeline: str, kind: str) -> str:
    """The id of a pipeline's `output` or `error` file."""
    return _file_id(_digest("pipeline", pipeline, kind))


def new_file_id() -> str:
    """`file-` and 22 base62 digits."""
    return "file-" + "".join(secrets.choice(_BASE62) for _ in range(22))


def new_upload_id() -> str:
    """`upload_` and 32 hex digits."""
    return f"upload_{secrets.token_hex(16)}"


def new_part_id() -> str:
    """`part_` and 32 hex digits."""
    return f"part_{secrets.token_hex(16)}"


def result_id(batch: str, row: int) -> str:
    """`batch_req_` and 32 hex digits, the last eight of them the row number (from 0)."""
    return f"batch_req_{batch.removeprefix('batch_')[:24]}{row:0{_ROW_DIGITS}x}"


def row_request_id(batch: str, row: int) -> str:
    """The request id inside a result: 32 hex digits, the same however often the row is run."""
    return _digest("request", batch, str(row))[:32]


def row_of_result(line: bytes) -> int:
    """The row number in a result line, which begins with its id, as `worker.rows` writes it.

    Raises ValueError for any other line.
    """
    prefix = b'{"id":"batch_req_'
    if not line.startswith(prefix):
        raise ValueError("the line does not begin with a result id")
    end = len(prefix) + 32
    return int(line[end - _ROW_DIGITS : end], 16)


def is_result(line: bytes) -> bool:
    """Whether the line begins as a result line does."""
    try:
        row_of_result(line)
    except ValueError:
        return False
    return True


def event_id(batch: str, sequence: int) -> str:
    """The id of a batch's nth event, the same in a repeated delivery."""
    return f"evt_{batch}_{sequence:08d}"


def new_webhook_endpoint_id() -> str:
    """`we_` and 32 hex digits."""
    return f"we_{secrets.token_hex(16)}"


def new_webhook_test_id() -> str:
    """`wh_` and 32 hex digits, like the ids of deliveries that scripts make."""
    return f"wh_{secrets.token_hex(16)}"


def new_http_request_id() -> str:
    """`req_` and 32 hex digits."""
    return f"req_{secrets.token_hex(16)}"


def new_api_key() -> str:
    """A secret that a client sends as its bearer token."""
    return f"{API_KEY_PREFIX}{secrets.token_urlsafe(32)}"


def api_key_digest(key: str) -> str:
    """The stored form of an API key. Keys are 256 random bits, so a plain digest is enough."""
    return hashlib.sha256(key.encode()).hexdigest()


def api_key_id(digest: str) -> str:
    """The public id of an API key."""
    return f"key_{digest[:24]}"


def _file_id(digest: str) -> str:
    number, digits = int(digest, 16), []
    for _ in range(22):
        number, rest = divmod(number, 62)
        digits.append(_BASE62[rest])
    return "file-" + "".join(digits)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
