"""Where things are that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
USER_MODELS = ROOT / "tests" / "user_models"
EXAMPLE_RUN = ROOT / "tests" / "data" / "run_tiny"  # small
PUBLISHED = ROOT / "examples" / "published"
