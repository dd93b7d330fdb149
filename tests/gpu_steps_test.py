"""Runs `tests/gpu.sh first` on the emulated device, where planted faults must cost a row each.

usage: gpu_steps_test.py WEFT CUDA_TEST FOLDER (binaries with the emulated device, and where rows go)
"""
import json
import os
import subprocess
import sys

weft, cuda_test, folder = sys.argv[1:]
environment = dict(os.environ, TINY="1", WEFT=weft, CUDA_TEST=cuda_test, OUT=folder)
ended = subprocess.run(["bash", "tests/gpu.sh", "first"], env=environment, capture_output=True, text=True, timeout=120)
print(ended.stdout, ended.stderr)
rows = [json.loads(line) for line in open(f"{folder}/first.jsonl")][1:]
verdicts = {f"{row['suite']}.{row['test']}": row["verdict"] for row in rows}
planted = {name.partition(".")[2]: verdict for name, verdict in verdicts.items() if "PlantedFaults" in name}
assert planted == {"BeforeThem": "ok", "Crash": "CRASH", "BetweenThem": "ok", "Hang": "TIME", "WrongResult": "FAILED",
                   "AfterThem": "ok"}, planted
others = {name: verdict for name, verdict in verdicts.items() if "PlantedFaults" not in name and verdict != "ok"}
assert not others, others
assert len(verdicts) == len(rows) > 15, "a row was written twice, or is missing"
assert any(row["suite"] == "bench" and row["figures"]["seconds"] > 0 for row in rows)
assert any(row["suite"].startswith("verify") and row["rel_l2"] < 0.05 for row in rows)
assert ended.returncode == 1, ended.returncode
