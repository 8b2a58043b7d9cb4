"""Commands for who designs and simulates networks: design, explain, fabric, simulate."""
