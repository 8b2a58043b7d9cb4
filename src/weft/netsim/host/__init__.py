"""What NICs do, as rules over columns: MRC's and RoCE's hosts, their timers, reverse paths and prefetches."""
