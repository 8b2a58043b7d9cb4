import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typing_extensions import override

from weft.engines.kubernetes.controller.observed import read_report as read
from weft.engines.kubernetes.pod import reporting
from weft.engines.kubernetes.pod.reporting import newest_checkpoint_ms


def test_a_report_is_read_and_its_clock_is_not_trusted():
    seen = [{"check": "xid", "severity": "fatal", "text": "79"}, {"check": "x", "severity": "loud"}]
    told = {"job": "space/job", "uid": "u", "node": "n", "checkpoint_ms": 10_000, "seen": seen}
    report = read(told, now_ms=5_000)
    assert report.checkpoint_ms == 5_000
    assert [(one.check, one.at_ms) for one in report.seen] == [("xid", 5_000)]


@pytest.mark.parametrize("told", [None, [], {}, {"job": "a"}, {"job": "a", "uid": "b", "node": "c", "seen": [1]}])
def test_what_is_no_report_is_refused(told):
    with pytest.raises(ValueError, match="a report has job, uid, node"):
        read(told, 0)


def test_the_newest_checkpoint_counts(tmp_path):
    assert newest_checkpoint_ms(tmp_path) is None
    for number, at in ((1, 100), (2, 200)):
        path = tmp_path / "run-1" / "checkpoints" / f"step-{number}"
        path.mkdir(parents=True)
        os.utime(path, (at, at))
    assert newest_checkpoint_ms(tmp_path) == 200_000


def test_only_what_is_new_is_told_and_nobody_waits_for_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "_EVERY_S", 0.01)
    heard: list[bytes] = []
    enough = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            # The first answer is a refusal: it is told again.
            self.send_response(503 if len(heard) == 1 else 200)
            self.end_headers()
            if len(heard) == 2:
                enough.set()

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "run-1" / "checkpoints" / "one").mkdir(parents=True)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with reporting.reporting(f"http://127.0.0.1:{server.server_port}", {"job": "a"}, tmp_path):
            assert enough.wait(20.0)
            threading.Event().wait(0.1)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(heard) == 2
    assert heard[0] == heard[1]
