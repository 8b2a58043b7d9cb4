"""What runs inside a pod: the entry point, the gang's rendezvous, its members and what they report."""
