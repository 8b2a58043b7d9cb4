"""Two connected endpoints on loopback, for tests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.queue_pair import Completion, QueuePair
from weft.transport.regions import Region
from weft.transport.underlay import Loopback, Underlay


class Two:
    """Two connected endpoints, the first with something to say."""

    def __init__(self, here: Endpoint, there: Endpoint, size: int) -> None:
        self.here, self.there = here, there
        self.given = np.random.default_rng(7).integers(0, 256, size, dtype=np.uint8)
        self.taken = np.zeros(size, np.uint8)
        self.source: Region = here.register(self.given)
        self.target: Region = there.register(self.taken)
        self.out: QueuePair = here.offer("there")
        self.back: QueuePair = there.offer("here")
        self.out.connect(self.back.card)
        self.back.connect(self.out.card)

    def send(self, immediate: int = 1) -> None:
        self.taken[:] = 0
        number = self.out.write(
            self.source, 0, self.source.size, self.target.address, self.target.key, immediate=immediate
        )
        assert self.back.wait(20) == Completion("immediate", immediate)
        assert self.out.wait(20) == Completion("sent", number)
        assert np.array_equal(self.given, self.taken)


@contextlib.contextmanager
def two(size: int = 4 << 20, world: Underlay | None = None, **options: Any) -> Iterator[Two]:
    place = world or Loopback(planes=4)
    here_settings, there_settings = (EndpointSettings(seed=seed, **options) for seed in (1, 2))
    with Endpoint(place, here_settings) as here, Endpoint(place, there_settings) as there:
        yield Two(here, there, size)
