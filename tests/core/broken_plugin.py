"""A plugin that fails while it is imported."""

message = "no licence file"
raise RuntimeError(message)
