"""Training in lock-step: torch in the process, from one plan.

The only place where weft imports torch. Import the parts from their modules; this one stays free of torch so that
`weft runs`, which only reads the files of a run, starts quickly.
"""
