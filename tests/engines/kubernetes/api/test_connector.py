import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient

_OPENSSL = shutil.which("openssl") or ""
_WATCHES = 5
_SLOW_S = 0.5

pytestmark = pytest.mark.skipif(not _OPENSSL, reason="openssl makes the certificate of the server")


class _SlowToPart:
    """A server over TLS that answers every watch with one line, and a good-bye only after a while or never."""

    def __init__(self, folder, answers: bool) -> None:
        key, certificate = folder / "key.pem", folder / "cert.pem"
        names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(
            [_OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        self._answers = answers
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._serving: list[threading.Thread] = []
        tls = ssl.create_default_context(cafile=str(certificate))
        port = self._listening.getsockname()[1]
        self.access = Access(f"https://127.0.0.1:{port}", context="slow to part", tls=tls)

    def __enter__(self):
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        self._serving.append(accepting)
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._serving:
            one.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(one,))
                thread.start()
                self._serving.append(thread)

    def _serve(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError), raw, self._context.wrap_socket(raw, server_side=True) as one:
            one.recv(65536)
            one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
            if one.recv(1) == b"" and self._answers:
                time.sleep(_SLOW_S)
                one.unwrap()
            self._over.wait()


async def _watch_and_give_up(access: Access) -> None:
    async with ApiClient(access) as client:
        heard = asyncio.Semaphore(0)

        async def watch() -> None:
            async with client.stream("/watch", {}, 60.0) as lines:
                async for _ in lines:
                    heard.release()

        watches = [asyncio.create_task(watch()) for _ in range(_WATCHES)]
        for _ in watches:
            await heard.acquire()
        for one in watches:
            one.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


@pytest.mark.parametrize("answers", [True, False])
def test_a_watch_that_is_given_up_leaves_no_socket_however_slow_the_server_is(tmp_path, answers):
    with _SlowToPart(tmp_path, answers) as server:
        asyncio.run(_watch_and_give_up(server.access))
        # A socket that nobody closed is said when it is collected, and what is said so fails this test.
        gc.collect()
