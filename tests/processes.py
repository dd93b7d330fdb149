#!/usr/bin/env python3
"""Starts a job of several processes on this machine as torchrun does: with its variables and nothing
else, so that they find each other by themselves and their messages go over UCX. It ends with the
first status that is not 0, and names each; processes that have not ended five seconds after the
first are killed and named. A signal goes to all of them.

usage: processes.py RANKS COMMAND..."""
import os
import signal
import subprocess
import sys

from servers import free_port

PATIENCE = 5  # seconds


def tell(rank, what):
    print(f"processes.py: rank {rank} {what}", file=sys.stderr, flush=True)


def main():
    ranks = int(sys.argv[1])
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(free_port())}
    running = {}

    def send(number, _):
        for pid in running:
            os.kill(pid, number)  # one that has ended keeps its id until it is waited for

    def kill_late(*_):
        for pid, (rank, _) in running.items():
            os.kill(pid, signal.SIGKILL)
            tell(rank, "had to be killed")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, send)
    signal.signal(signal.SIGALRM, kill_late)
    for rank in range(ranks):
        process = subprocess.Popen(
            sys.argv[2:], stdin=subprocess.DEVNULL,
            env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        running[process.pid] = (rank, process)
    status = 0
    while running:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        rank, process = running.pop(ended.si_pid)
        code = process.wait()
        code = 128 - code if code < 0 else code
        if code:
            tell(rank, f"ended with status {code}")
        if code and not status:
            status = code
            signal.alarm(PATIENCE)
    return status


if __name__ == "__main__":
    sys.exit(main())
