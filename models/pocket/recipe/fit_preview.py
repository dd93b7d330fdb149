"""Fit preview.json, the linear map from latents to colours of `--preview proj`, to clips that a model has drawn:
    weft generate --model FOLDER --prompt-file prompts.txt --keep-latents --output work/clips/
    python fit_preview.py work/clips --to FOLDER/vae/preview.json
Needs numpy and the program ffmpeg."""
import argparse, glob, json, subprocess
import numpy as np


def read_latents(path):  # [C, F, h, w], normalised as the transformer sees them
    data = open(path, "rb").read()
    begin = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:begin])["latents"]
    assert entry["dtype"] == "F32", entry
    return np.frombuffer(data, "<f4", np.prod(entry["shape"]), begin + entry["data_offsets"][0]).reshape(entry["shape"])


def read_colours(path, frames, height, width):  # [F, h, w, 3] in [-1, 1]: the mean pixel of every latent value
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", path, "-vf", f"scale={width}:{height}:flags=area+accurate_rnd",
                          "-f", "rawvideo", "-pix_fmt", "rgb48le", "-"], check=True, capture_output=True).stdout
    video = np.frombuffer(raw, "<u2").reshape(-1, height, width, 3) / 32767.5 - 1
    # The first frame is a latent frame of its own, every later one stands for a group of frames.
    return np.concatenate([video[:1], video[1:].reshape(frames - 1, -1, height, width, 3).mean(1)] if frames > 1 else [video])


def fit_map(values, colours):  # -> the map [C + 1, 3] with the least squared error, whose last row is the constant
    best, _, rank, _ = np.linalg.lstsq(values, colours, rcond=None)
    if rank < values.shape[1]:
        raise SystemExit("the clips do not determine a fit: a channel of their latents is constant, or depends on others")
    return best


def relative(errors, colours):  # root mean square of the errors, relative to that of the colours around their mean
    return round(float(np.sqrt((errors ** 2).sum() / ((colours - colours.mean(0)) ** 2).sum())), 5)


def as_json(best):
    return {"rgb": best[:-1].round(5).tolist(), "constant": best[-1].round(5).tolist()}


ap = argparse.ArgumentParser()
ap.add_argument("clips", help="a folder of clips or pictures with their latents")
ap.add_argument("--to", required=True, help="the preview.json beside the VAE's weights")
a = ap.parse_args()
first, later = [], []  # [values of the channels, 1, colour] of the first latent frame, and of those after it
for path in sorted(glob.glob(a.clips + "/*.latents.safetensors")):
    z = read_latents(path)
    stem = path.removesuffix(".latents.safetensors")
    clip = next(p for p in sorted(glob.glob(glob.escape(stem) + ".*")) if p.endswith((".mp4", ".webm", ".gif", ".png")))
    rows = np.concatenate([z.transpose(1, 2, 3, 0), np.ones((*z.shape[1:], 1)), read_colours(clip, *z.shape[1:])], 3)
    first.append(rows[0].reshape(-1, rows.shape[3]))
    later.append(rows[1:].reshape(-1, rows.shape[3]))
parts = [np.split(np.concatenate(rows), [-3], 1) for rows in (first, later)]
parts = [(values, colours) for values, colours in parts if len(values)]
maps = [fit_map(*part) for part in parts]
errors = [colours - values @ best for (values, colours), best in zip(parts, maps)]
fit = {"schema": "weft.preview/v1", **as_json(maps[-1])}
if len(maps) == 2:
    fit["first_frame"] = {**as_json(maps[0]), "relative_error": relative(errors[0], parts[0][1])}
    fit["later_relative_error"] = relative(errors[1], parts[1][1])
fit["relative_error"] = relative(np.concatenate(errors), np.concatenate([colours for _, colours in parts]))
with open(a.to, "w") as f:
    f.write(json.dumps(fit, indent=1) + "\n")
print(f"error {fit['relative_error']} of the colours' spread, over {len(first)} clips; wrote {a.to}")
