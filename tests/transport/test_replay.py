"""Wire = simulation: what the compiled thread decided on real sockets, the plain rules decide again."""

from tests.transport.pairs import two

from weft.mrc.invariants import check_receiver, check_sender
from weft.transport.endpoint import Endpoint
from weft.transport.replay import RecordedCalls, replay
from weft.transport.underlay import Loopback


def _lossy(fast: bool, turns: int) -> tuple[RecordedCalls, RecordedCalls, Endpoint, Endpoint]:
    with two(1 << 20, journal_rows=200_000, fast=fast, world=Loopback(planes=4, payload=4096)) as pair:
        for plane in range(4):
            pair.here.lose(plane, 0.05)
        for turn in range(turns):
            pair.send(turn)
        pair.here.cut(3)
        pair.here.port_changed(1, up=False)
        for turn in range(turns):
            pair.send(turn)
    return pair.here.record(), pair.there.record(), pair.here, pair.there


def test_a_lossy_run_replayed_into_the_simulators_rules_decides_the_same() -> None:
    here, there, *ends = _lossy(fast=True, turns=3)
    for record, end in zip((here, there), ends, strict=True):
        assert record.lost == 0
        again = replay(record)
        assert again.difference is None, again.difference
        assert again.calls == len(record.rows) > 100
        for name in ("sent", "resent", "silent", "spurious", "timeouts", "probes", "retired", "readmitted", "draws"):
            assert again.sender.qp[0][name] == end.state.sender.qp[0][name], name
        for name in ("accepted", "duplicates", "sacks", "received_bytes"):
            assert again.receiver.qp[0][name] == end.state.receiver.qp[0][name], name
        check_sender(again.sender, 0)
        check_receiver(again.receiver, 0)
    assert ends[0].state.sender.qp[0]["resent"] > 0, "nothing was lost, so nothing was shown"


def test_a_record_survives_its_file(tmp_path) -> None:
    here, *_ = _lossy(fast=True, turns=1)
    file = tmp_path / "journal.npz"
    here.save(file)
    read = RecordedCalls.load(file)
    assert (read.rows == here.rows).all()
    assert read.starts == here.starts
    assert replay(read).difference is None


def test_a_changed_decision_is_found() -> None:
    here, *_ = _lossy(fast=True, turns=1)
    wrong = here.rows.copy()
    sent = (wrong[:, 0] == 2).nonzero()[0][5]
    wrong[sent, 4] ^= 1
    found = replay(RecordedCalls(here.params, here.paths, here.starts, wrong, 0)).difference
    assert found is not None
    assert (found.row, found.call) == (sent, "next_data")
