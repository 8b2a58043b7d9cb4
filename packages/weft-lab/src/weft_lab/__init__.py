"""The lab: a multi-plane SRv6 fabric of network namespaces on one machine, with faults on request.

Switches and hosts are namespaces, links are veth pairs, tables are the static ones of `weft.fabric`; the machine's
kernel forwards. `network` makes and breaks it, `agents` run at its hosts, `measurements` carry MRC and TCP side by side
and look for sick links, `commands` is `weft lab`, `underlay` lets a training job send over it.
"""
