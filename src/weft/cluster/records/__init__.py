"""The words of a cluster: jobs, nodes, teams, actions and the state as frozen data, and how they are encoded."""
