"""From times measured on a machine to the figures that the cost model knows it by."""
