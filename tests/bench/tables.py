#!/usr/bin/env python3
"""Measures what the guides say of the pocket model's clips, and prints it as their tables.

The tables of approximations.md and long-video.md, and the PSNR of 8-bit weights in performance.md. With 80 clips it
takes hours of two cores. A command whose lines are there is not run again, so that a run that was stopped goes on;
other weights or another number of clips begin anew. Times are those of one more run, in which all cases take turns.

usage: nice tests/bench/tables.py [CLIPS]; needs the default build. Writes outputs/tables-WEIGHTS-CLIPS/*.jsonl."""
import glob
import hashlib
import json
import os
import re
import subprocess
import sys

DISPLACED, PIECES = "distrifusion:patches=", "pcpp:patches=4,window="
GROUPS = [  # one drawing of the exact clips serves a group
    ["full@ulysses"] + [f"{DISPLACED}{n},warmup={w}@patch" for n in (2, 4) for w in (1, 4)]
    + [f"pipefusion:patches=8,warmup={w}@layers" for w in (1, 4)],
    [f"teacache:{x}@ulysses" for x in (0.05, 0.1, 0.2)] + [f"first-block:{x}@ulysses" for x in (0.04, 0.08, 0.12, 0.2)],
    [f"{PIECES}0.1,warmup=4@patch"] + [f"{PIECES}0.3,warmup={w}@patch" for w in (1, 4, 8)]
    + [f"{PIECES}1,warmup=4@patch", f"{PIECES}1,last_window=0.1,warmup=4@patch"],
    [f"{DISPLACED}{n},warmup=4,code={code}@patch" for n in (2, 4) for code in ("fp8", "residual-fp8")]
    + [f"{PIECES}0.3,warmup=4,code={code}@patch" for code in ("fp8", "residual-fp8")],
    ["full@ring", "full@token_ring", f"{DISPLACED}4,warmup=4,split=frames@patch", f"{DISPLACED}8,warmup=4@patch",
     f"{PIECES}0.3,warmup=4,split=frames@patch", "pipefusion:patches=4,warmup=1@layers", "clips@clip"]]


def weights():
    files = sorted(glob.glob("models/pocket/*/*.safetensors"))
    return hashlib.sha256(b"".join(open(name, "rb").read() for name in files)).hexdigest()[:8]


def kept(folder, name, measure):
    """The lines of a measurement: those that are there, else those that `measure` returns."""
    path = f"{folder}/{name}.jsonl"
    if not os.path.exists(path):
        lines = [line | {"weights": weights()} for line in measure()]
        with open(path + ".part", "w") as file:
            file.writelines(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        os.rename(path + ".part", path)
    return [json.loads(line) for line in open(path)]


def run(command):
    print(" ".join(command), file=sys.stderr, flush=True)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) | {"command": " ".join(command)} for line in output.splitlines() if line.startswith("{")]


def truth(clips, cases):
    return run(["build/weft_measure", "truth", "--model", "models/pocket", "--dtype", "f32", "--json", "--repeat",
                str(clips), *cases])


def eight_bits(folder):
    """The PSNR of a clip drawn with 8-bit weights against the one drawn with those of the file."""
    for form in ("compute", "int8"):
        subprocess.run(["build/weft", "generate", "--model", "models/pocket", "--prompt", "a cyan ring, circling", "--seed",
                        "0", "--dtype", "f32", "--weights", form, "--overwrite", "--frames", "png", "--quiet", "--output",
                        f"{folder}/{form}"], check=True, stdout=subprocess.DEVNULL)
    command = ["ffmpeg", "-v", "info", "-i", f"{folder}/compute/%05d.png", "-i", f"{folder}/int8/%05d.png", "-lavfi", "psnr",
               "-f", "null", "-"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return [{"bench": "int8", "psnr": float(re.search(r"average:([0-9.]+)", said)[1]), "command": " ".join(command)}]


def row(line, times):
    parts = [line["trained"], line["held_out"]]
    clips = sum(part["clips"] for part in parts)
    share = lambda name: f"{100 * sum(part[name] for part in parts) / clips:.0f} %"
    psnr = "same" if line["psnr"] is None else f"{line['psnr']:.1f} dB"
    speeds = [f"{times['one_rank_step_seconds'] / times[link + '_step_seconds']:.2f}x" for link in ("fast", "slow")]
    skipped = f" {line['skipped_steps']:.1f} |" if line["skipped_steps"] else ""
    return (f"| `{line['case']}` |{skipped} {psnr} | {line['ssim']:.3f} | {share('all')} | {share('torn')} | "
            f"{line['bytes_per_step'] / 1024:.0f} | {' | '.join(speeds)} |")


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/../..")
    clips = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    folder = f"outputs/tables-{weights()}-{clips}"
    os.makedirs(folder, exist_ok=True)
    print(f"int8: {kept(folder, 'int8', lambda: eight_bits(folder))[0]['psnr']:.1f} dB\n")
    groups = [kept(folder, f"truth-{n}", lambda: truth(clips, cases)) for n, cases in enumerate(GROUPS, 1)]
    every = [case for cases in GROUPS for case in cases]
    times = {line["case"]: line for line in kept(folder, "times", lambda: truth(1, every))}
    print(f"{clips} clips: case, PSNR, SSIM, right, torn, KiB a step, speed over a fast and over a slow link; for caches also"
          " the skipped steps")
    for line in [line for group in groups for line in group]:
        print(row(line, times[line["case"]]))
    for line in kept(folder, "long", lambda: run(["build/weft_measure", "long", "--dtype", "f32", "--json"])):
        print(json.dumps({key: value for key, value in line.items() if key != "curve"}))


main()
