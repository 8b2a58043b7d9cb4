"""What the ends of a simulated run are asked and decide, kept for others to decide again (`weft.mrc.rules.replay`)."""

from weft.mrc.columns import NEVER, Receiver, Sender, make_receiver, make_sender
from weft.mrc.journal import make_journal
from weft.netsim.host.ends import opposite
from weft.netsim.transports.sprayed import SprayedEndpoints


def keep_journal(endpoints: SprayedEndpoints, rows: int) -> tuple[Sender, Receiver]:
    """Let all ends keep a journal of so many calls from now on; return their columns as they are now, a row an end.

    To be called before anything is sent. The readable simulator keeps journals, the engine does not.
    """
    hosts, pairs = endpoints.host_state, range(len(endpoints.pairs))
    sender, receiver = make_sender(endpoints.params, 2 * len(pairs)), make_receiver(endpoints.params, 2 * len(pairs))
    # No EV yet in any slot, as `start_sender` leaves it.
    sender.packets["ev"] = sender.packets["before"] = -1
    receiver.heard[:] = -NEVER
    # What an end says that has received nothing: it has no row of its own in a simulation.
    receiver.qp["heard_ps"] = receiver.qp["came_ev"] = receiver.qp["reverse_probe_ev"] = -1
    for pair in pairs:
        k = int(opposite(hosts, pair))
        for number, half in ((2 * pair, hosts.s), (2 * pair + 1, hosts.b)):
            for name in ("qp", "evs", "rotation", "planes"):
                getattr(sender, name)[number] = getattr(half, name)[pair]
        receiver.qp[2 * k if k >= 0 else 2 * pair + 1] = hosts.r.qp[pair]
    endpoints.host_state = hosts._replace(journal=make_journal(rows))
    return sender, receiver
