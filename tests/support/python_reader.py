"""Reads folders of PNG frames with the pocket model's own reader: a JSON line per folder. It made
python_reader.jsonl from the folders of `clip_score --draw 40 FOLDER/`. Needs models/pocket/recipe/requirements.txt.
usage: python tests/support/python_reader.py FOLDER..."""
import json
import pathlib
import sys

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "models/pocket/recipe"))
import read

for folder in map(pathlib.Path, sys.argv[1:]):
    frames = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in sorted(folder.glob("*.png"))])
    out = read.read(frames)
    print(json.dumps({"clip": folder.name, **{k: out[k] for k in ("ground", "colour", "shape", "motion", "kinds")},
                      "views": [round(v, 3) for v in out["views"]]}))
