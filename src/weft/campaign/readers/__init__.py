"""Readers of other projects' job traces, one file each: they recognise a file by its content and yield its jobs."""
