"""These tests share helpers with the local engine's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
