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
import select
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from live_client import ask, request  # noqa: E402

PATIENCE = 120.0  # seconds for anything that must happen
TINY = {"prompt": "a red ball", "num_frames": 5, "steps": 2, "seed": 7, "size": "64x64"}
LONG = {**TINY, "steps": 150}
LAUNCH = {"mpi": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"], "ucx": ["python3", "tests/processes.py", "2"]}


class Serving:
    """A running `weft serve`, ready for jobs."""

    def __init__(self, launch, folder, *flags):
        command = [*launch, weft, "serve", "--model", "models/pocket", "--listen", "127.0.0.1:0", "--json", "--threads", "1",
                   "--checkpoint-every", "0", "-o", folder, *flags]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            raise RuntimeError(f"{' '.join(command)}: no address: {self.text()[-2000:]}")
        self.port = json.loads(line)["port"]

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def submit(self, job):
        status, body = ask(self.port, request("POST", "/v1/jobs", body=json.dumps(job).encode()))
        if status != 202:
            raise RuntimeError(f"a job was answered with {status}: {body!r}")
        return json.loads(body)["id"]

    def job(self, name):
        return json.loads(ask(self.port, request("GET", f"/v1/jobs/{name}"))[1])

    def wait(self, name, enough):
        """The job, as soon as enough(job)."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            now = self.job(name)
            if enough(now):
                return now
            time.sleep(0.02)
        raise RuntimeError(f"{name} stays {now}: {self.text()[-2000:]}")

    def over(self, name):
        job = self.wait(name, lambda job: job["finished"])
        if job["state"] != "completed":
            raise RuntimeError(f"{name} is {job['state']}: {job['error']}: {self.text()[-2000:]}")
        return job["outputs"][0]["framehash"]

    def begun(self, name):
        self.wait(name, lambda job: job["progress"]["step"] > 3)

    def end(self, sent=signal.SIGTERM):
        self.process.send_signal(sent)
        return self.process.wait(PATIENCE)


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
    server = Serving([], folder, *flags)
    long = server.submit(LONG)
    server.begun(long)
    metrics = ask(server.port, request("GET", "/metrics"))[1].decode()
    name = re.search(r'weft_jobs_running{replica="(.*)"} 1\n', metrics)[1].encode()
    workers = [pid for pid in descendants(server.process.pid) if pid != server.process.pid]
    drawing = [pid for pid in workers if b"--worker-name=" + name in open(f"/proc/{pid}/cmdline", "rb").read()]
    os.kill(drawing[-1], signal.SIGKILL)
    tiny = server.submit(TINY)
    for each, job, attempts in ((tiny, TINY, 1), (long, LONG, 2)):
        expect("framehash", server.over(each), drawn_by_threads(job, *layout))
        expect("attempts", server.job(each)["attempt"], attempts)
    code = server.end()
    expect("exit code", code, 0)
    expect("orphans", alive(workers), [])


def check_launched(folder, launch):
    server = Serving(launch, folder, "--layout", "ulysses=2")
    wanted = drawn_by_threads(TINY, "--layout", "ulysses=2")
    for _ in range(2):
        expect("framehash", server.over(server.submit(TINY)), wanted)
    stopped = server.submit({**LONG, "steps": 190})
    server.begun(stopped)
    ask(server.port, request("POST", f"/v1/jobs/{stopped}/cancel"))
    server.wait(stopped, lambda job: job["state"] == "cancelled")
    expect("framehash after a cancel", server.over(server.submit(TINY)), wanted)
    expect("exit code", server.end(signal.SIGUSR1), 0)
    for when in ("while it draws", "while it waits"):
        server = Serving(launch, folder, "--layout", "ulysses=2")
        if when == "while it draws":
            server.begun(server.submit(LONG))
        else:
            server.over(server.submit(TINY))
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
            server = Serving([], f"{folder}/{form}{replicas}", "--replicas", replicas, "--workers", form,
                             "--max-queue-per-key", str(jobs))
            begin = time.monotonic()
            for name in [server.submit({**TINY, "seed": seed}) for seed in range(jobs)]:
                server.over(name)
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
        check_launched(scratch, LAUNCH[way])
sys.exit(min(faults, 1))
