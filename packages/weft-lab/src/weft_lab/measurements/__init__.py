"""What is measured over a lab: streams through faults, round trips, the health of every link."""
