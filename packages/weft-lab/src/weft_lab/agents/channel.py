"""How programs at the hosts of a lab talk to the command that started them: lines of JSON on their standard streams.

An agent reads on its first line what to do, says where it is (`place`), hears where its peer is (`peer`), and then
says what it has carried every so often until it is asked to stop. An agent whose command has gone stops by itself.
Nothing but the standard library is needed, so that agents start quickly.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

SAMPLE_S = 0.05
"""How often an agent says what it has carried."""

_EAGERNESS = -10


class AgentChannel:
    """An agent's end of the line."""

    def __init__(self) -> None:
        """Read what is asked."""
        # A NIC does not wait for its turn behind other programs; nobody but root may ask for that.
        with suppress(OSError):
            os.nice(_EAGERNESS)
        self._rest = b""
        self.asked = self.wait()
        self._next_s = 0.0

    def wait(self) -> dict[str, Any]:
        """Return the next message; leave the program where the command has gone."""
        while b"\n" not in self._rest:
            piece = os.read(0, 65_536)
            if not piece:
                sys.exit(0)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def say(self, **message: Any) -> None:
        """Send a message."""
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def meet(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """Say where we are and return where the peer is."""
        self.say(place=place)
        return self.wait()["peer"]

    def sample(self, carried: int, **more: Any) -> None:
        """Say how many bytes have been carried so far, if it is time to."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + SAMPLE_S
            self.say(at_ns=time.monotonic_ns(), bytes=carried, **more)
