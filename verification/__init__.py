"""Claims against published results, each with a command, a picture and what was found. Run as `make verify`."""
