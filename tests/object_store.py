"""An S3-compatible server in this process, on a port that the system chooses."""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import localbucket


class _Handler(localbucket.S3Handler):
    """Adds what Arrow asks for besides: many deletions in one request, and the empty objects that mark folders.

    The marks are accepted and forgotten, as by a store whose folders are no more than the beginnings of keys.
    """

    disable_nagle_algorithm = True  # its small writes would wait 40 ms each

    def _put(self, bucket: str, key: str) -> None:
        if not key.endswith("/"):
            super()._put(bucket, key)
            return
        self._read_body()
        self._send(HTTPStatus.OK, headers={"ETag": '"0"'})

    def _delete_request(self, bucket: str, key: str) -> None:
        if key.endswith("/"):
            self._send(HTTPStatus.NO_CONTENT)
        else:
            super()._delete_request(bucket, key)

    def _post_request(self, bucket: str, key: str) -> None:
        if "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        for key in ET.fromstring(self._read_body()).iter(f"{{{localbucket.S3_NAMESPACE}}}Key"):
            if key.text and not key.text.endswith("/"):
                self._object_path(bucket, key.text).unlink(missing_ok=True)
        self._send_xml(ET.Element("DeleteResult", xmlns=localbucket.S3_NAMESPACE))


@contextmanager
def object_store(folder: Path, bucket: str = "runs") -> Iterator[str]:
    """The query that leads a URI ``s3://key:secret@<bucket>/<path>?<query>`` to the server while the block runs."""
    (folder / bucket).mkdir(parents=True)
    handler: Any = type("Handler", (_Handler,), {"data_root": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
