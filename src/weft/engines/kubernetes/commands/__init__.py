"""The client side: submissions, answers and manifests for the commands that people type."""
