import sys
from pathlib import Path

# Ranks import by name what they run, from processes of their own.
sys.path.insert(0, str(Path(__file__).parents[1]))
