"""What both simulators share: the network as ports, switches, flows and their progress, faults, records."""
