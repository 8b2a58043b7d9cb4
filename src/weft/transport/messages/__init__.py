"""Named messages between two endpoints, and collective programs made of them."""
