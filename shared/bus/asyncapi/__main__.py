import sys
from pathlib import Path

from shared.bus.asyncapi import write

write(Path(__file__).parents[3] / "docs")
sys.stdout.write("written  docs/asyncapi.yaml docs/schemas\n")
