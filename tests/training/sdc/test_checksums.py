import torch

from weft.training.sdc.checksums import MemoryChecksums


def test_memory_that_stays_the_same_fits_its_seal_once() -> None:
    seals, memory = MemoryChecksums(), torch.arange(10.0)
    seals.put(memory)
    seals.check(memory, "sums")
    memory[3] = 0.0
    seals.check(memory, "sums")
    assert seals.broken() == []


def test_memory_that_changes_under_its_seal_is_named_once() -> None:
    seals, memory = MemoryChecksums(), torch.arange(10.0)
    seals.put(memory)
    memory[3] += 1e-6
    seals.check(memory, "sums")
    assert seals.broken() == ["sums"]
    assert seals.broken() == []


def test_forgotten_seals_accuse_nobody() -> None:
    seals, memory = MemoryChecksums(), torch.arange(10.0)
    seals.put(memory)
    memory[0] = 5.0
    seals.forget()
    seals.check(memory, "sums")
    assert seals.broken() == []
