import json
from pathlib import Path

from weft.cluster.recovery.events import Cause, RankSlot
from weft.cluster.recovery.recovery_state import RecoveryState
from weft.core.clock import ManualClock
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor.incidents import IncidentLog
from weft.training.run_dir import INCIDENTS


def seconds(number: float) -> Picoseconds:
    return Picoseconds(int(number * PICOSECONDS_PER_SECOND))


def test_every_second_of_a_run_with_a_failure_lands_in_one_class(tmp_path: Path):
    clock = ManualClock()
    records = IncidentLog(clock)
    records.use(tmp_path)
    clock.advance(seconds(2))
    records.turn(RecoveryState.RUNNING)
    clock.advance(seconds(10))
    records.stepped({"compute": 6.0, "exposed_communication": 2.0})
    cause = Cause("killed", 1, "gone", slot=RankSlot(1, 0), detected_ps=clock.now(), phase_since_ps=seconds(11), step=9)
    incident = records.begin(cause, 4)
    for state, span in (
        (RecoveryState.FENCING, 0.5),
        (RecoveryState.REFORMING, 1),
        (RecoveryState.RESTORING, 2),
        (RecoveryState.VERIFYING, 0.25),
    ):
        records.turn(state)
        clock.advance(seconds(span))
    records.turn(RecoveryState.RUNNING)
    clock.advance(seconds(3))
    records.stepped({"redo": 3.0})
    incident.restored_from, incident.restored_step = "memory", 7
    incident.resumed_ps = incident.regained_ps = clock.now()
    records.end_if_over()
    goodput = records.goodput()
    assert goodput["seconds"] == {
        "compute": 6.0, "exposed_communication": 2.0, "detect": 1.0, "reform": 1.5, "restore": 2.0, "redo": 3.0,
        "verify": 0.25, "idle": 1.0, "start_up": 2.0,
    }  # fmt: skip
    assert sum(goodput["seconds"].values()) == goodput["wall_s"] == 18.75
    assert goodput["share"] == 8 / 18.75
    (line,) = [json.loads(text) for text in (tmp_path / INCIDENTS).read_text().splitlines()]
    assert line == records.incidents[0]
    assert (line["seconds_lost"], line["gpu_seconds_lost"], line["steps_repeated"]) == (7.75, 31.0, 2)
    assert records.recoveries() == [
        {"step": 9, "cause": "killed", "rank": 1, "seconds": 7.75, "restored_from": "memory"}
    ]


def test_incidents_from_before_there_is_a_folder_are_written_into_it(tmp_path: Path):
    records = IncidentLog(ManualClock())
    records.trouble(0, "checkpoint", 3, "the disk is full")
    assert not (tmp_path / INCIDENTS).exists()
    records.use(tmp_path)
    assert json.loads((tmp_path / INCIDENTS).read_text())["seen"] == "the disk is full"
    assert records.recoveries() == []
