"""A rehearsal in short, as plain values: the verdict, what it rests on, and what the charts of its page draw."""
