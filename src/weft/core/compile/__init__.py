"""The compiler of rules: what a rule is, its compiled form, intrinsics, and the cache of compiled code on disk."""
