"""A real HTTP server on loopback that fails as it is told, and remembers what it was sent."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override


class HttpReceiver:
    """What was taken, and how to answer."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """Statuses of the next answers; then 200. 0 breaks the connection off without an answer."""
        self.answer: Any = {}
        self.taken: list[Any] = []
        """Bodies that were answered with 200."""
        self.seen: list[tuple[int, Any, dict[str, str]]] = []
        """Every request: what it was answered, its body and its headers."""
        self.url = ""


@contextlib.contextmanager
def receiving() -> Iterator[HttpReceiver]:
    """Serve on a port of loopback while the block runs."""
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            receiver.seen.append((status, body, {key.lower(): value for key, value in self.headers.items()}))
            if status == 0:
                self.close_connection = True
                self.connection.close()
                return
            if status == 200:
                receiver.taken.append(body)
            text = json.dumps(receiver.answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # pyrefly: ignore - a connection that is broken off on purpose is no error
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/health"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
