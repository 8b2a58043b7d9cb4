"""MRC on real sockets, and the SRv6 lab that it can run over: the protocol of `mrc` outside the simulator."""
