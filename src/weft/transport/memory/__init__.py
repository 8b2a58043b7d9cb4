"""What a thread works on: the columns of an endpoint, raw memory and system calls, and the journal of its decisions."""
