"""What commands say to hostile files: ``python -m benchmarks.hostile``, a table of each file, command, code and answer.

Files and commands are those of ``tests/hostile``; all run in this process, each in a folder of its own.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import table
from tests.hostile.feeding import COMMANDS, KINDS, MORE, fed


def main() -> int:
    """Print the table; the exit code says whether any answer was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="also commands that share their readers with others")
    asked = parser.parse_args()
    rows, wrong = [], []
    for kind, makers in KINDS.items():
        for make in makers.values():
            for command in COMMANDS[kind] + MORE[kind] * asked.all:
                with tempfile.TemporaryDirectory() as top:
                    found = fed(command, make, Path(top))
                words = command.split(" IN")[0]
                rows.append([found.fed, words, str(found.code), found.sentence.replace("|", "¦") or "(described)"])
                wrong += [f"{found.fed}, {words}: {', '.join(found.faults())}"] if found.faults() else []
    print(table(["fed", "command", "code", "said"], rows))
    print(f"\n{len(rows)} answers to {sum(map(len, KINDS.values()))} files; not as they should be: {len(wrong)}")
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
