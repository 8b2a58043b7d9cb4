"""One agent as its coordinator sees it: calls and their answers, what it says in between, and when it is given up."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.engines.supervisor.hosts.host_words import SILENCE_S, Hello, HostAnswer, HostCall
from weft.training.launch.authenticated_channel import AuthenticatedChannel


@dataclass
class HostAgent:
    """One agent that is there."""

    channel: AuthenticatedChannel
    hello: Hello
    nodes: tuple[int, ...]
    heard: float
    """When it was last heard, on this machine's clock."""
    gone: str = ""
    """Why it counts as lost, as soon as it does."""
    unread: list[Any] = field(default_factory=list)
    """What it said while an answer was waited for."""

    def send(self, word: object) -> None:
        """Say something; an agent that has gone does not hear it."""
        self._try(lambda: self.channel.send(word))

    def tell(self, name: str, *arguments: Any) -> None:
        """Have something done."""
        self.send(HostCall(name, arguments, answered=False))

    def ask(self, name: str, *arguments: Any) -> None:
        """Have something done that is answered."""
        self.send(HostCall(name, arguments, answered=True))

    def answer(self) -> Any:
        """Wait for the answer; nothing where the agent has gone meanwhile."""
        return self._try(self._answer)

    def _answer(self) -> Any:
        begun = time.monotonic()
        while not self.gone and time.monotonic() - begun < 2 * SILENCE_S:
            word = self.channel.recv()
            self.heard = time.monotonic()
            if isinstance(word, HostAnswer):
                return word.value
            self.unread.append(word)
        raise OSError("it does not answer")

    def words(self) -> list[Any]:
        """Return what it has said, without waiting."""
        found = list(self.unread)
        self.unread.clear()
        try:
            for word in self.channel.arrived():
                found.append(word)
                self.heard = time.monotonic()
        except (OSError, ValueError) as error:
            self.gone = self.gone or str(error)
        if not self.gone and time.monotonic() - self.heard > SILENCE_S:
            self.gone = f"was silent for {SILENCE_S:.0f} s"
        return found

    def _try(self, work: Callable[[], Any]) -> Any:
        if not self.gone:
            try:
                return work()
            except (OSError, ValueError) as error:
                self.gone = str(error)
        return None
