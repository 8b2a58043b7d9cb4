"""The compiled thread: packets in, packets out, timers, and the loop over them."""
