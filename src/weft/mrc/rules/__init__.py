"""The protocol as rules over columns: sender, receiver, acknowledgements, recovery, entropy values, congestion."""
