"""Make the weights of `pocket`, `guard` or the screen again, from nothing, or measure a folder of weights for its card.

python tests/factories/make_weights.py pocket OUT      an hour and a half on one CPU core
python tests/factories/make_weights.py guard OUT       25 minutes
python tests/factories/make_weights.py screen OUT      20 seconds: memory/conversations/weights.npz
python tests/factories/make_weights.py pocket FOLDER --measure
python tests/factories/make_weights.py screen . --measure
"""

import argparse
import logging
from pathlib import Path

import gate
import screen
import torch
from guard import train as guard
from pocket import train as pocket


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("pocket", "guard", "screen"))
    parser.add_argument("folder", type=Path, help="folder (of the screen: file) to write to, or with the weights to measure")
    parser.add_argument("--measure", action="store_true", help="print the tables of the card")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if given.model == "screen":
        print(screen.measure() if given.measure else f"written to {screen.train(given.folder)}")
    elif given.measure:
        print((gate.measure_pocket if given.model == "pocket" else gate.measure_guard)(given.folder))
    else:
        print(f"written to {(pocket if given.model == 'pocket' else guard).train(given.folder)}")


if __name__ == "__main__":
    main()
