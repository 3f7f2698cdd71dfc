"""Ceph's S3 in MinIO's place: `serve.py server /data`, with the user of MinIO's variables."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from cli.servers import CephS3, ceph_cluster

_READY = Path("/tmp/ready")


def main() -> None:
    """Serve until the container is stopped."""
    _READY.unlink(missing_ok=True)
    folder = Path(sys.argv[2], "standin")
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "ports.json").write_text(json.dumps({"ceph-mon": 3300, "s3": 9000}))
    # For the other containers too.
    ceph_cluster._CONFIGURATION = ceph_cluster._CONFIGURATION.replace(  # noqa: SLF001  # only here
        "endpoint=127.0.0.1:", "endpoint=0.0.0.0:"
    )
    server = CephS3(folder, os.environ["MINIO_ROOT_USER"], os.environ["MINIO_ROOT_PASSWORD"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.start()
        _READY.touch()
        # A daemon that dies takes the container with it, as a server's own death does.
        while all(child.is_alive() for child in server.children):
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        _READY.unlink(missing_ok=True)
        server.stop(8)


if __name__ == "__main__":
    main()
