"""The command line: parses, calls, prints (a table for people, JSON for programs). It decides nothing."""
