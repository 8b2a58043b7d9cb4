"""How packets find their way: SRv6 carriers and entropy values, forwarding tables, paths, and the walk through them."""
