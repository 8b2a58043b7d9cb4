from hypothesis import settings

# Machines are noisy and the first call of a compiled rule compiles it: no test here is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
