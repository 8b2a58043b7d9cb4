"""What is done about ranks, gangs and hardware that fail: events in, actions out."""
