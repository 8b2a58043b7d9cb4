"""Commands for who uses or operates a cluster: submit, jobs, nodes, cluster and their like."""
