"""Requests to one bucket, by the synchronous client. The caller runs them in threads."""

import io
from contextlib import nullcontext
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.datatypes import Object
from minio.error import S3Error

from shared.errors import SetupError, TransientError
from shared.storage.errors import Place, errors_of
from shared.storage.multipart import PART_BYTES, Stored

#: The maximum of objects in one answer to a listing, as S3 defines it.
MAX_LISTED = 1000
LABEL_HEADER = "x-amz-meta-label"
_HASH_HEADER = "x-amz-content-sha256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
#: The codes of Ceph, AWS and MinIO for a bucket in an unknown region.
_NO_SUCH_REGION = {
    "InvalidLocationConstraint",
    "IllegalLocationConstraintException",
    "InvalidRegion",
}


class Listed(NamedTuple):
    """An object as a listing names it; the time in Unix seconds."""

    key: str
    etag: str
    size: int
    modified_at: float


class Client(Minio):
    """Sends a body without a hash of it where the caller says so."""

    def _build_headers(
        self,
        host: str,
        headers: dict[str, str | list[str] | tuple[str]] | None = None,
        body: bytes | None = None,
        creds: Credentials | None = None,
    ) -> tuple[dict[str, str | list[str] | tuple[str]], datetime]:
        if body is None or (headers or {}).get(_HASH_HEADER) != _UNSIGNED:
            return super()._build_headers(host, headers, body, creds)
        # It hashes what it is given.
        built, at = super()._build_headers(host, headers, None, creds)
        return {**built, "Content-Length": str(len(body)), _HASH_HEADER: _UNSIGNED}, at


def close(response: urllib3.BaseHTTPResponse) -> None:
    """Give up an answer, read or not, with its connection."""
    response.close()
    response.release_conn()


class BucketRequests:
    """The bucket and its objects. No call is repeated."""

    def __init__(self, client: Minio, bucket: str, *, region: str) -> None:
        self._client = client
        self._bucket = bucket
        self._region = region

    def make(self) -> None:
        if not self._client.bucket_exists(self._bucket):
            try:
                self._client.make_bucket(self._bucket)
            except S3Error as error:
                if error.code in _NO_SUCH_REGION:
                    raise SetupError(
                        f"The S3 server has no region '{self._region}' where bucket "
                        f"'{self._bucket}' could be made. Set BATCHYARD_S3_REGION to one that it "
                        "has, or make the bucket yourself."
                    ) from error
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

    def page(self, place: Place, after: str | None) -> list[Listed]:
        """Objects whose keys begin as the place's."""
        with errors_of(place) if place.bucket != self._bucket else nullcontext():
            found = self._client.list_objects(
                place.bucket, place.key, recursive=True, start_after=after
            )
            return [
                Listed(
                    item.object_name or "",
                    (item.etag or "").strip('"'),
                    item.size or 0,
                    item.last_modified.timestamp() if item.last_modified else 0.0,
                )
                # Without a limit, the client would fetch further pages, and start over after an
                # error.
                for item in islice(found, MAX_LISTED)
            ]

    def put(self, key: str, body: bytes) -> Stored:
        # In one request: Ceph does not name the ETag of a multipart upload.
        written = self._client.put_object(
            self._bucket, key, io.BytesIO(body), len(body), part_size=max(len(body), PART_BYTES)
        )
        return Stored(key, written.etag or "", len(body))

    def create(self, key: str, body: bytes, label: str = "") -> str | None:
        """The new object's ETag; None if the key is taken.

        A label has a checksum of the body, and is signed as all headers are.
        """
        headers: dict[str, str | list[str] | tuple[str]] = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
        }
        if label:
            # Whoever reads the object finds what its way has damaged. To hash the body a second
            # time, and a third time in the server, takes a quarter of what the call does.
            headers |= {LABEL_HEADER: label, _HASH_HEADER: _UNSIGNED}
        try:
            # The client's put_object drops headers that it does not know.
            answer = self._client._execute(  # noqa: SLF001  # the only way to send If-None-Match
                "PUT",
                bucket_name=self._bucket,
                object_name=key,
                body=body,
                headers=headers,
            )
        except S3Error as error:
            if error.code == "PreconditionFailed":
                return None
            if error.code == "ConditionalRequestConflict":
                raise TransientError(f"S3: {key} is being written by another") from error
            raise
        return str(answer.headers.get("etag", "")).strip('"')

    def stat(self, place: Place) -> Object:
        with errors_of(place):
            return self._client.stat_object(place.bucket, place.key, version_id=place.version_id)

    def get(self, place: Place, start: int, end: int | None, etag: str | None) -> bytes:
        response = self.open(place, start, end, etag)
        try:
            return response.read()
        finally:
            close(response)

    def open(
        self, place: Place, start: int, end: int | None, etag: str | None
    ) -> urllib3.BaseHTTPResponse:
        with errors_of(place):
            return self._client.get_object(
                place.bucket,
                place.key,
                offset=start,
                length=0 if end is None else end - start,
                request_headers={"If-Match": etag} if etag else None,
                version_id=place.version_id,
            )
