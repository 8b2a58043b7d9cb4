"""The fabric in network namespaces: what it is made of, how it goes up, breaks, heals and goes down."""
