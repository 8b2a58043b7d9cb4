"""What runs inside a pod: the entry point, and what its programs report."""
