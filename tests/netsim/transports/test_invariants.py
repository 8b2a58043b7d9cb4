"""Invariants of queue pairs are sampled in every run, and a violation names the pair and what does not hold."""

import pytest
from tests.netsim.scenarios import fault, flows, scenario, simulate, small_site

from weft.netsim.model.records import RunRecords
from weft.netsim.run import prepare
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.column_endpoints import ColumnEndpoints
from weft.netsim.transports.sprayed import SprayedEndpoints

TRAFFIC = flows((0, 5, 60_000), (1, 5, 60_000), (5, 0, 40_000), (6, 3, 20_000))
FAULTS = {
    "none": (),
    "loss": (fault("loss", "t0-p0-i0", 2, 200, amount=0.05),),
    "port-down": (fault("port-down", "nic-i0", 5, 100),),
    "black-hole": (fault("black-hole", "t1-p0-i0", 3, 80),),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("transport", ["mrc", "uet", "random", "reps", "adaptive"])
def test_invariants_hold_for_every_pair_at_every_bin(transport: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    checked: list[int] = []

    def check_all(self: ColumnEndpoints) -> None:
        for pair in range(len(self.pairs)):
            self.check_pair(pair)
            checked.append(pair)

    monkeypatch.setattr(RunRecords, "is_sampled", property(lambda _records: True))
    monkeypatch.setattr(ColumnEndpoints, "check_one", check_all)
    simulate(scenario(TRAFFIC, faults=FAULTS[kind], until_us=300), small_site(), transport)
    assert len(checked) >= 4


def endpoints() -> SprayedEndpoints:
    setup = set_up(scenario(TRAFFIC), small_site())
    (mrc,) = transports_of(setup, ("mrc",))
    found = prepare(setup, mrc)[1].endpoints
    assert isinstance(found, SprayedEndpoints)
    return found


def test_pairs_are_checked_in_turn(monkeypatch: pytest.MonkeyPatch):
    found, checked = endpoints(), []
    monkeypatch.setattr(found, "check_pair", checked.append)
    for _ in range(6):
        found.check_one()
    assert checked == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [("una", 1, "the window runs backwards"), ("cwnd", 0, "congestion window"), ("inflight", 1, "counted wrongly")],
)
def test_a_violation_names_the_pair_and_what_does_not_hold(column: str, value: int, said: str):
    found = endpoints()
    found.host_state.s.qp[0][column] = value
    with pytest.raises(AssertionError, match=f"queue pair 0 from NIC 0 to NIC 5 breaks an invariant: .*{said}"):
        found.check_one()
