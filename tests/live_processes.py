#!/usr/bin/env python3
"""Serves live faces with ranks that are processes: clients see what they say spoken, and SIGUSR1 ends all processes
with exit code 0.
usage: live_processes.py WEFT WAY   (from the top of the tree)
WAY is mpi: mpirun starts them, or ucx: tests/processes.py does."""
import os
import signal
import sys
import time

from live_client import MEDIA, WebSocket, syllables
from servers import LAUNCH, Server

PATIENCE = 60.0  # seconds for anything that must happen
RATE, SECONDS = 16000, 2
SILENCE = 2  # a flag of packets without speech
PICTURES, FPS = 4, 25  # of a packet


def speech_packets(port):
    """Says some seconds, and counts the packets of speech until the face is silent again."""
    client = WebSocket(port, timeout=PATIENCE)
    client.send_message("session_init", container="fmp4", audio={"rate": RATE})
    if client.wait_for("session_ready", PATIENCE) is None:
        return 0
    sound, each = syllables(RATE, SECONDS), RATE // 10
    for number in range(len(sound) // each):
        client.send_sound(number, number * 100_000, sound[number * each:(number + 1) * each],
                          last=number + 1 == len(sound) // each)
    spoken, end = 0, time.monotonic() + PATIENCE
    while time.monotonic() < end and (message := client.next()) is not None:
        if message["type"] != "packet" or message["kind"] != MEDIA:
            continue
        if not message["flags"] & SILENCE:
            spoken += 1
        elif spoken:
            break
    client.close_session()
    return spoken


def main():
    weft, faults = os.path.abspath(sys.argv[1]), 0
    for layout, ranks in (("step=2", 2), ("layers=2,decode_rank=2", 3)):
        server = Server([*LAUNCH[sys.argv[2]], str(ranks), weft], "--model", "models/pocket_avatar", "--layout", layout, "--threads", "1", "--seed", "1")
        # Two clients take turns.
        counts = [speech_packets(server.port) for _ in range(2)]
        code = server.end(sent=signal.SIGUSR1)
        least = SECONDS * FPS // PICTURES
        print(f"{layout}: {counts} packets of speech, at least {least} wanted; exit code {code}")
        faults += code != 0 or min(counts) < least
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
