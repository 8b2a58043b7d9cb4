"""Ranks on several machines: an agent on each, one coordinator that drives them, and who takes over when it dies.

`agent` serves a machine's fork server to whoever coordinates; `host_group` is all agents as one `RankHost`, so that
the supervisor and its decisions are those of one machine; `coordinator` is the process around it. `gang_folder` is what
they share on disk: the run's key, and the epochs, of which each has one coordinator and only the highest is obeyed.
"""
