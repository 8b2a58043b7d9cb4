"""From reports to verdicts on nodes: suspicion, quarantine, tests, repair tickets and return to service."""
