"""The demo: what it says of an act that does not hold, and that nothing of it stays when it is interrupted."""

import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo() -> ModuleType:
    spec = spec_from_file_location("demo", ROOT / "examples/demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def test_it_has_six_acts(demo: ModuleType):
    assert len(demo.ACTS) == 6


def test_an_act_that_does_not_hold_is_crossed_and_ends_the_demo(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def fail(_stage: object) -> str:
        raise demo.ActFailedError("the runs differ")

    monkeypatch.setattr(demo, "ACTS", (("holds", lambda _stage: "fine"), ("does not", fail), ("never", fail)))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert demo.main([str(tmp_path / "demo")]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    out = capsys.readouterr().out
    assert "1/3 holds\n    ✓ fine" in out
    assert "✗ the runs differ" in out
    assert "never" not in out


def test_a_command_that_fails_is_named_with_what_it_said(demo: ModuleType, tmp_path: Path):
    stage = demo.Stage(tmp_path, demo.Console())
    with pytest.raises(demo.ActFailedError, match=r"weft design nowhere ended with 2\n.*nowhere"):
        stage.weft("design", "nowhere")


@pytest.mark.slow
def test_an_interrupt_ends_it_with_what_it_started(tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/demo.py"), str(tmp_path / "demo")], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    while "2/6" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    out, errors = child.communicate(timeout=300)
    assert child.returncode == 130
    assert "nothing keeps running" in out
    assert "Traceback" not in errors
    # Processes that were told to end may take a moment to be gone.
    deadline = time.monotonic() + 30
    while members(child.pid):
        assert time.monotonic() < deadline, members(child.pid)
        time.sleep(0.1)


def members(group: int) -> list[str]:
    """Return the processes of a group that still run; one that has ended and waits to be asked for runs no more."""
    found: list[str] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                name, _, rest = (path / "stat").read_text().rpartition(")")
                fields = rest.split()
                if int(fields[2]) == group and fields[0] not in "ZX":
                    found.append(name)
    return found


def test_the_console_stands_beside_it_and_ends_with_it(demo: ModuleType, tmp_path: Path):
    with demo.console_beside(tmp_path) as url:
        # The token goes into a cookie.
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(url, timeout=20) as answer:
            assert answer.status == 200
        host = urllib.parse.urlsplit(url)
    with pytest.raises(OSError, match="refused"), socket.create_connection((host.hostname, host.port), 1):
        pass


def test_live_plays_the_acts_and_stays_until_somebody_ends_it(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "play", lambda _stage: None)
    monkeypatch.setattr(signal, "pause", pressed)
    assert demo.main([str(tmp_path / "demo"), "--live"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("the console, live: http://127.0.0.1") < shown.index("the report") < shown.index("until Ctrl-C")
