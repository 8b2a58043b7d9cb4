"""What a fabric is wired of: shape by arithmetic, names, nodes and links, imported edge lists, and what must hold."""
