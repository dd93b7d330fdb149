#!/usr/bin/env python3
"""Kills a server without warning, again and again: jobs go on, and none is lost or drawn twice.
usage: serve_kill.py WEFT [--kills N] [--posts N]"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import uuid

from servers import JobServer

STEPS = 400
JOB = {"prompt": "a red ball", "num_frames": 9, "steps": STEPS, "seed": 7, "size": "64x64"}


def is_over(job):
    return job["finished"] is not None


def step_of(job):
    progress = job["progress"]
    return progress["step"] if progress["stage"] == "denoise" else STEPS if progress["percent"] > 50 else 0


def kept_steps(folder, name):
    """The steps in the newest whole checkpoint of a job; 0 where it has none."""
    steps = [0]
    for path in pathlib.Path(folder).glob(name + "*checkpoint*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        steps.append(int(header["__metadata__"]["step"]))
    return max(steps)


def kill_running_jobs(weft, folder, kills):
    """Each job is killed once at a random step, and goes on from its newest checkpoint."""
    server = JobServer(weft, folder, "--max-steps", "1000")
    expected = server.completed(server.submit(JOB))["outputs"][0]["framehash"]
    for number in range(kills):
        name = server.submit(JOB)
        target = random.randrange(20, STEPS - 20)
        seen = step_of(server.wait(name, lambda job: step_of(job) >= target or is_over(job)))
        server.kill()
        kept = kept_steps(folder, name)
        server.start()
        again = server.wait(name, lambda job: is_over(job) or (job["attempt"] == 2 and step_of(job) > 0))
        first = step_of(again)
        over = server.completed(name)
        assert over["outputs"][0]["framehash"] == expected, over
        # Every step has a checkpoint; one may be computed, and one be written, when the kill comes.
        assert first >= kept >= seen - 2, (seen, kept, first)
        print(f"kill {number + 1}: at step {seen}, checkpoint of {kept}, seen first again at {first}", flush=True)
    left = [path for path in os.listdir(folder) if ".part" in path or "checkpoint" in path]
    assert not left, left
    assert server.end() == 0


def storm(weft, folder, posts):
    """Clients repeat requests with keys until they are acknowledged, while the server is killed."""
    server = JobServer(weft, folder, "--max-queue", "100000", "--max-queue-per-key", "100000")
    small = {"prompt": "a ball", "num_frames": 1, "steps": 1, "size": "16x16"}
    told = {}
    lock = threading.Lock()
    todo = [str(uuid.uuid4()) for _ in range(posts)]
    work = list(todo)

    def client():
        while True:
            with lock:
                if not work:
                    return
                key = work.pop()
            while True:
                try:
                    name = server.submit(small, key)
                    break
                except (OSError, ValueError, RuntimeError):
                    time.sleep(0.05)
            with lock:
                told.setdefault(key, set()).add(name)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(random.uniform(0.1, 1))
        if len(told) < posts:
            server.kill()
            kills += 1
            server.start()
    names = set()
    for key in todo:
        assert len(told[key]) == 1, told[key]
        names |= told[key]
    assert len(names) == posts
    for name in names:
        over = server.completed(name)
        # One that was killed while it was drawn is drawn again; one that was completed never is.
        assert over["attempt"] <= 1 + kills, over
    files = [path for path in os.listdir(folder) if path.endswith(".png")]
    assert len(files) == posts, len(files)
    attempts = sum(server.job(name)["attempt"] for name in names)
    assert attempts <= posts + kills, (attempts, posts, kills)
    print(f"{posts} requests with keys, {kills} kills: {len(names)} jobs, {attempts} attempts", flush=True)
    assert server.end() == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--posts", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.kills:
            kill_running_jobs(os.path.abspath(arguments.weft), os.path.join(folder, "out"), arguments.kills)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.posts:
            storm(os.path.abspath(arguments.weft), os.path.join(folder, "out"), arguments.posts)


if __name__ == "__main__":
    sys.exit(main())
