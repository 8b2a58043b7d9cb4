"""Examples of everything that another distribution can add to weft: one file each."""
