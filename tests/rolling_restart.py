#!/usr/bin/env python3
"""Restarts `weft stream --listen` again and again under a client that comes back.
usage: rolling_restart.py WEFT [--restarts N] [--cuts N] [--model FOLDER]

While a server lives, a connection that is cut is resumed and loses no packet. SIGTERM ends the server with
exit code 0: the client has what it said spoken, is told by the code 1012, and begins a new session with the
next server. A session that ends in any other way is a fault. Ends with 1 where there is one."""
import argparse
import json
import socket
import sys
import threading
import time

from live_client import HEARD, MEDIA, WebSocket, syllables
from servers import Server, free_port

PATIENCE = 120.0  # seconds for anything that must happen
RATE = 16000


class Viewer(threading.Thread):
    """A client that watches a face for as long as it is told, over any number of connections."""

    def __init__(self, port, container):
        super().__init__(daemon=True)
        self.port, self.container = port, container
        self.counts = dict.fromkeys(("sessions", "resumed", "told", "packets", "again", "spoken"), 0)
        self.faults = []
        self.stopping = False
        self.client = None
        self.changed = threading.Condition()
        self.forget()

    def forget(self):
        """The session is over, and the client knows it."""
        self.token, self.expected, self.seen_us, self.is_resumed = None, 0, -1, False

    def note(self, **counts):
        with self.changed:
            for name, value in counts.items():
                self.counts[name] += value
            self.changed.notify_all()

    def fault(self, what):
        with self.changed:
            self.faults.append(what)
            self.changed.notify_all()

    def wait(self, condition):
        """Waits until condition(counts); False where a fault or nothing came."""
        with self.changed:
            return self.changed.wait_for(lambda: condition(self.counts) or self.faults, PATIENCE) and not self.faults

    def connect(self):
        """A WebSocket, as soon as a server is ready; None at the end."""
        while not self.stopping:
            try:
                client = WebSocket(self.port, timeout=PATIENCE)
            except OSError:  # nobody listens
                client = None
            if client and client.status == 101:
                return client
            if client and client.status not in (0, 503):
                self.fault(f"the upgrade was answered with {client.status}")
            time.sleep(0.1)
        return None

    def run(self):
        while (client := self.connect()) is not None:
            self.client = client
            self.begin()
            while (message := client.next()) is not None:
                self.take(message)
            client.close()
            if client.close_code == 1012:
                self.forget()
                self.note(told=1)
            elif client.close_code != 1006 and not self.stopping:
                self.fault(f"the connection was closed with {client.close_code}")

    def begin(self):
        if self.token:
            self.client.send_message("session_resume", token=self.token, time_us=self.seen_us)
        else:
            self.client.send_message("session_init", container=self.container)

    def take(self, message):
        kind = message["type"]
        if kind == "session_ready":
            if message["resumed"] != (self.token is not None):
                self.fault(f"resumed is {message['resumed']}")
            self.is_resumed = message["resumed"]
            self.token = message["resume_token"]
            self.note(**{"resumed" if message["resumed"] else "sessions": 1})
        elif kind == "error":
            self.fault(f"error: {message}")
        elif kind == "skipped":
            self.fault(f"packets were skipped: {message}")
        elif kind == "packet" and message["kind"] in (MEDIA, HEARD):
            self.take_packet(message)

    def take_packet(self, packet):
        """Packets follow each other; after a resume some may come again."""
        number = packet["number"]
        if number > self.expected or (number < self.expected and not self.is_resumed):
            self.fault(f"packet {number} came, expected {self.expected}")
        is_new = number == self.expected
        self.expected = max(self.expected, number + 1)
        # The sound of a picture is a packet of its own after it, unless it is within the fragment.
        if self.container == "fmp4" or packet["kind"] == HEARD:
            self.seen_us = packet["time_us"]
        is_spoken = is_new and packet["kind"] == MEDIA and not packet["flags"] & 2
        self.note(packets=is_new, again=not is_new, spoken=is_spoken)

    def speak(self, seconds):
        sound = syllables(RATE, seconds)
        for number, first in enumerate(range(0, len(sound), RATE // 10)):
            piece = sound[first:first + RATE // 10]
            self.client.send_sound(number, first * 1000000 // RATE, piece, first + len(piece) == len(sound))

    def cut(self):
        """Breaks the connection without a word."""
        self.client.socket.shutdown(socket.SHUT_RDWR)

    def end(self):
        self.stopping = True
        self.cut()
        self.join(PATIENCE)


def use(viewer, cuts):
    """Watches, and breaks the connection so many times. False at a fault."""
    sessions = viewer.counts["sessions"]
    if not viewer.wait(lambda counts: counts["packets"] > 0 and counts["sessions"] >= max(sessions, 1)):
        return False
    for number in range(cuts + 1):
        packets = viewer.counts["packets"]
        if not viewer.wait(lambda counts: counts["packets"] >= packets + 10):
            return False
        if number < cuts:
            resumed = viewer.counts["resumed"]
            viewer.cut()
            if not viewer.wait(lambda counts: counts["resumed"] > resumed):
                return False
    return True


def run(arguments, container):
    port = free_port()
    flags = ["--model", arguments.model, "--threads", "1"]  # threads would wait for each other on a busy machine
    server = Server(arguments.weft, *flags, port=port)
    viewer = Viewer(port, container)
    viewer.start()
    codes = []
    for number in range(arguments.restarts):
        if not use(viewer, arguments.cuts):
            break
        spoken, told, sessions = (viewer.counts[name] for name in ("spoken", "told", "sessions"))
        viewer.speak(0.6)
        if not viewer.wait(lambda counts: counts["spoken"] > spoken):
            break
        codes.append(server.end(PATIENCE))
        if not viewer.wait(lambda counts: counts["told"] == told + 1):
            break
        server = Server(arguments.weft, *flags, port=port)
        if not viewer.wait(lambda counts: counts["sessions"] == sessions + 1):
            break
    viewer.end()
    codes.append(server.end(PATIENCE))
    line = {"bench": "rolling_restart", "container": container, "restarts": len(codes) - 1, **viewer.counts,
            "exit_codes": sorted(set(codes)), "faults": viewer.faults}
    print(json.dumps(line), flush=True)
    return not viewer.faults and set(codes) == {0} and len(codes) == arguments.restarts + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--cuts", type=int, default=2)
    parser.add_argument("--model", default="models/pocket_avatar")
    parser.add_argument("--container", default="fmp4,jpeg")
    arguments = parser.parse_args()
    return 0 if all([run(arguments, container) for container in arguments.container.split(",")]) else 1


if __name__ == "__main__":
    sys.exit(main())
