#!/usr/bin/env python3
"""Serves jobs with replicas or ranks that are processes: they draw what threads draw, a killed one costs one attempt or,
under mpirun, the server, and a signal ends all of them.
usage: serve_processes.py WEFT WAY [--jobs N]   (from the top of the tree)
WAY is workers: two worker processes, ranks: a worker of two processes over UCX; or mpirun starts the server (mpi), or
tests/processes.py does (ucx).
With --jobs it only measures how long so many tiny jobs take with one and two workers."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from live_client import ask, request
from servers import LAUNCH, PATIENCE, JobServer

TINY = {"prompt": "a red ball", "num_frames": 5, "steps": 2, "seed": 7, "size": "64x64"}
LONG = {**TINY, "steps": 150}


def framehash(server, name):
    return server.completed(name)["outputs"][0]["framehash"]


def begun(server, name):
    server.wait(name, lambda job: job["progress"]["step"] > 3)


def descendants(pid):
    """The processes of weft below this one, itself included."""
    found = []
    for name in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split():
        found += descendants(int(name))
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return found + ([pid] if words[0].endswith(b"weft") else [])


def alive(pids):
    """Those that have not ended; one that nobody has waited for has."""
    left = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                left += [pid] if file.read().rpartition(")")[2].split()[0] != "Z" else []
        except OSError:
            pass
    return left


def drawn_by_threads(job, *flags):
    with tempfile.TemporaryDirectory() as folder:
        words = [weft, "generate", "-q", "--json", "--model", "models/pocket", "--threads", "1", "-o", f"{folder}/a.mp4", *flags]
        for name, value in job.items():
            words += ["--" + name, str(value)]
        out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return json.loads(out.splitlines()[-1])["framehash"]


def expect(what, found, wanted):
    global faults
    print(f"{'ok' if found == wanted else 'FAULT'}: {what}: {found}" + ("" if found == wanted else f", wanted {wanted}"))
    faults += found != wanted


def check_workers(folder, flags, layout):
    """Two jobs side by side or one after the other; a worker of the first is killed."""
    server = JobServer(weft, folder, *flags)
    long = server.submit(LONG)
    begun(server, long)
    metrics = ask(server.port, request("GET", "/metrics"))[1].decode()
    name = re.search(r'weft_jobs_running{replica="(.*)"} 1\n', metrics)[1].encode()
    workers = [pid for pid in descendants(server.process.pid) if pid != server.process.pid]
    drawing = [pid for pid in workers if b"--worker-name=" + name in open(f"/proc/{pid}/cmdline", "rb").read()]
    os.kill(drawing[-1], signal.SIGKILL)
    tiny = server.submit(TINY)
    for each, job, attempts in ((tiny, TINY, 1), (long, LONG, 2)):
        expect("framehash", framehash(server, each), drawn_by_threads(job, *layout))
        expect("attempts", server.job(each)["attempt"], attempts)
    code = server.end()
    expect("exit code", code, 0)
    expect("orphans", alive(workers), [])


def check_launched(folder, launch):
    server = JobServer([*launch, weft], folder, "--layout", "ulysses=2")
    wanted = drawn_by_threads(TINY, "--layout", "ulysses=2")
    for _ in range(2):
        expect("framehash", framehash(server, server.submit(TINY)), wanted)
    stopped = server.submit({**LONG, "steps": 190})
    begun(server, stopped)
    server.ask("POST", f"/v1/jobs/{stopped}/cancel")
    server.wait(stopped, lambda job: job["state"] == "cancelled")
    expect("framehash after a cancel", framehash(server, server.submit(TINY)), wanted)
    expect("exit code", server.end(sent=signal.SIGUSR1), 0)
    for when in ("while it draws", "while it waits"):
        server = JobServer([*launch, weft], folder, "--layout", "ulysses=2")
        if when == "while it draws":
            begun(server, server.submit(LONG))
        else:
            server.completed(server.submit(TINY))
        ranks = [pid for pid in descendants(server.process.pid) if pid != server.process.pid]
        os.kill(max(ranks), signal.SIGKILL)
        code = server.process.wait(PATIENCE)
        # Launchers end with the code of the process that ended first, which is the killed one.
        expect(f"end of a server that lost a rank {when}", code in (6, 137), True)
        expect("the first rank names the lost one", "rank 1 is gone" in server.text(), True)
        if way == "ucx":
            expect("its exit code is 6", "rank 0 ended with status 6" in server.text(), True)
        expect("ranks that are left", alive(ranks), [])


def measure(folder, jobs):
    for replicas in ("1", "2"):
        for form in ("threads", "processes"):
            server = JobServer(weft, f"{folder}/{form}{replicas}", "--replicas", replicas, "--workers", form,
                             "--max-queue-per-key", str(jobs))
            begin = time.monotonic()
            for name in [server.submit({**TINY, "seed": seed}) for seed in range(jobs)]:
                server.completed(name)
            seconds = time.monotonic() - begin
            server.end()
            print(f"{replicas} replicas as {form}: {jobs} jobs in {seconds:.1f} s, {jobs / seconds:.1f} a second")


weft, way, faults = os.path.abspath(sys.argv[1]), sys.argv[2], 0
with tempfile.TemporaryDirectory() as scratch:
    if "--jobs" in sys.argv:
        measure(scratch, int(sys.argv[sys.argv.index("--jobs") + 1]))
    elif way == "workers":
        check_workers(scratch, ["--workers", "processes", "--replicas", "2"], [])
    elif way == "ranks":
        check_workers(scratch, ["--workers", "ranks", "--layout", "ulysses=2"], ["--layout", "ulysses=2"])
    else:
        check_launched(scratch, [*LAUNCH[way], "2"])
sys.exit(min(faults, 1))
