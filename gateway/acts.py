"""Which calls are acts of the trail, and what they are called there. Pure."""

from collections.abc import Mapping

from shared import ids

#: By method and route.
ACTS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/files"): "file.uploaded",
    ("GET", "/v1/files/{file_id}/content"): "file.read",
    ("DELETE", "/v1/files/{file_id}"): "file.deleted",
    ("POST", "/v1/uploads"): "upload.created",
    ("POST", "/v1/uploads/{upload_id}/parts"): "upload.part_added",
    ("POST", "/v1/uploads/{upload_id}/complete"): "upload.completed",
    ("POST", "/v1/uploads/{upload_id}/cancel"): "upload.cancelled",
    ("POST", "/v1/batches"): "batch.created",
    ("POST", "/v1/batches/{batch_id}"): "batch.changed",
    ("POST", "/v1/batches/{batch_id}/cancel"): "batch.cancelled",
    ("POST", "/v1/batches/{batch_id}/requests"): "batch.extended",
    ("POST", "/v1/batches/{batch_id}/close"): "batch.closed",
    ("POST", "/v1/batches/{batch_id}/pause"): "batch.paused",
    ("POST", "/v1/batches/{batch_id}/resume"): "batch.resumed",
    ("POST", "/v1/batches/{batch_id}/retry"): "batch.retried",
    ("GET", "/v1/batches/{batch_id}/results"): "results.read",
    ("DELETE", "/v1/cache"): "cache.cleared",
    ("POST", "/ui/sign-in"): "session.opened",
    ("POST", "/ui/sign-out"): "session.closed",
    ("POST", "/ui/files"): "file.uploaded",
    ("GET", "/ui/files/{file_id}/content"): "file.read",
    ("POST", "/ui/batches"): "batch.created",
    ("POST", "/ui/batches/{batch_id}/cancel"): "batch.cancelled",
    ("POST", "/ui/batches/{batch_id}/pause"): "batch.paused",
    ("POST", "/ui/batches/{batch_id}/resume"): "batch.resumed",
    ("POST", "/ui/batches/{batch_id}/retry"): "batch.retried",
    ("GET", "/ui/batches/{batch_id}/results"): "results.read",
    ("POST", "/ui/fleet/dead-letters"): "dead_letter.replayed",
    ("GET", "/ui/batches/{batch_id}/failed"): "results.read",
    ("POST", "/v1/webhook_endpoints"): "webhook.created",
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}"): "webhook.changed",
    ("DELETE", "/v1/webhook_endpoints/{webhook_endpoint_id}"): "webhook.deleted",
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret"): "webhook.secret_rotated",
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/test"): "webhook.tested",
    (
        "POST",
        "/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver",
    ): "webhook.redelivered",
}


def object_of(path_params: Mapping[str, str]) -> str | None:
    """The id of the object that the path names; None if it is no id of ours.

    A client may write anything into a path, and what it writes is not told.
    """
    named = next(iter(path_params.values()), None)
    return named if named is not None and ids.is_id(named) else None
