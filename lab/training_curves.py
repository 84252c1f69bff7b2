"""Draws results/training_curves.svg: losses of a GAN and a U-Net, trained with solutions and with
PyTorch, in results/training_curves.csv. `python lab/training_curves.py FOLDER` first takes the
latter from what tests/test_training_curves.py writes into TCONV_CURVES=FOLDER.
"""

import csv
import json
import re
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA, PICTURE = RESULTS / "training_curves.csv", RESULTS / "training_curves.svg"
TITLES = {"dcgan_generator": "GAN: the generator's loss", "unet": "U-Net: the loss"}
COLOURS = {"ours": "#d7301f", "eager": "#0570b0", "eager without TF32": "#74a9cf"}


def collect(folder: Path) -> None:
    """A row for each step, a column for each model, seed and what trained it."""
    columns = {}
    for path in sorted(folder.glob("*.json")):
        name, seed = re.fullmatch(r"(\w+)_(\d+)", path.stem).groups()
        for key, losses in json.loads(path.read_text()).items():
            columns[f"{name}:{seed}:{key}"] = [f"{loss:.5g}" for loss in losses]
    with DATA.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [columns, *zip(*columns.values(), strict=True)]
        )


def collected() -> dict:
    """Losses by model, then seed, then what trained it."""
    found: dict[str, dict] = {}
    with DATA.open(newline="") as file:
        heads, *rows = csv.reader(file)
    for head, losses in zip(heads, zip(*rows, strict=True), strict=True):
        name, seed, key = head.split(":")
        found.setdefault(name, {}).setdefault(seed, {})[key] = [float(loss) for loss in losses]
    return found


def draw(found: dict) -> None:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots(1, len(found))
    for axis, (name, seeds) in zip(axes, found.items(), strict=True):
        for seed, curves in seeds.items():
            for key, losses in curves.items():
                label = key if seed == min(seeds) else None
                axis.plot(losses, color=COLOURS[key], lw=0.7, alpha=0.8, label=label)
        axis.set(title=f"{TITLES[name]}, {len(seeds)} seeds", xlabel="step", ylabel="loss")
        axis.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "curves"}):
        figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        collect(Path(sys.argv[1]))
    draw(collected())
