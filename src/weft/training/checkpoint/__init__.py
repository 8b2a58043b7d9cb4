"""Checkpoints: written in the background, sealed by a manifest, loadable under another mesh.

Free of torch itself, so that `weft runs` can read manifests.
"""
