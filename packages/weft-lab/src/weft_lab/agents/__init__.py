"""Programs that run at the hosts of a lab: senders, receivers, probers."""
