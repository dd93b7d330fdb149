#!/usr/bin/env python3
"""Measures the live page in headless Chromium: the browser, the server and its engine share this machine.
usage: live_page.py WEFT [CASE...] [--screenshots FOLDER]
Prints a JSON line per case: minute, interrupt, resume, slow, turns, killed. Run by hand, never in CI."""
import argparse
import asyncio
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "browser")]
from browser import ROOT, Page, load  # noqa: E402
from servers import Server  # noqa: E402
import websockets  # noqa: E402

PACKET = struct.Struct("<4sHHIIq")
MEDIA, SILENCE = 3, 2
MANY_WORDS = "The face says a long sentence, then another one, and goes on for a good while. " * 45
SENTENCE = "Here is client number {}, and it says a short sentence."


def emit(case, figures, note):
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    print(json.dumps({"bench": "live_page", "case": case, "commit": commit.strip(), **load(), "note": note, **figures}),
          flush=True)


def rounded(value):
    return None if value is None else round(value, 1)


def skew_figures(skews):
    sizes = sorted(abs(skew) for skew in skews)
    within = sum(size <= 40 for size in sizes)
    return {"pictures_measured": len(sizes), "skew_mean_ms": rounded(statistics.mean(skews)),
            "skew_p99_ms": rounded(sizes[int(0.99 * (len(sizes) - 1))]), "skew_most_ms": rounded(sizes[-1]),
            "skew_within_40_ms": round(within / len(sizes), 4)}


def minute(server):
    """A minute of speech."""
    page = Page(server.url)
    page.start()
    page.say(MANY_WORDS)
    page.wait("speech", "w.faceState === 'speaking'")
    first = page.measures()
    page.script("w = window.weft; w.skewMs.length = 0; w.longestGapMs = w.longestStepMs = 0")
    time.sleep(60)
    last = page.measures()
    frames = last["totalFrames"] - first["totalFrames"]
    dropped = last["droppedFrames"] - first["droppedFrames"]
    emit("minute", {
        "first_picture_ms": rounded(last["firstPictureMs"]), "moves_ms": rounded(last["movesMs"]),
        "answer_ms": rounded(last["answerMs"]),
        "frames": frames, "dropped": dropped, "dropped_share": round(dropped / max(1, frames), 5),
        **skew_figures(last["skewMs"]), "jumps": last["jumps"] - first["jumps"], "stalls": last["stalls"] - first["stalls"],
        "freezes": last["freezes"] - first["freezes"], "longest_gap_ms": rounded(last["longestGapMs"]),
        "latency_ms": rounded(last["latencyMs"]), "ahead_ms": rounded(last["aheadMs"]), "errors": last["errors"],
    }, "60 s of speech from a text")
    page.quit()


def interrupt(server):
    """Twenty interruptions, a second after the face began to speak."""
    page = Page(server.url)
    page.start()
    for _ in range(20):
        page.say(MANY_WORDS[:800])
        page.wait("speech", "w.faceState === 'speaking'")
        time.sleep(1)
        page.click("#interrupt")
        page.wait("silence", "w.interrupts.at(-1).goneMs !== null")
    gone = [each["goneMs"] for each in page.measures("interrupts")]
    emit("interrupt", {"count": len(gone), "gone_median_ms": rounded(statistics.median(gone)),
                       "gone_most_ms": rounded(max(gone)), "stalls": page.measures("stalls"),
                       "jumps": page.measures("jumps"), "errors": page.measures("errors")},
         "from the press to the first shown picture that does not speak; wanted: 600 ms and a block of 480 ms")
    page.quit()


def resume(server):
    """Ten lost connections while the face speaks."""
    page = Page(server.url)
    page.start()
    page.say(MANY_WORDS)
    page.wait("speech", "w.faceState === 'speaking'")
    time.sleep(2)
    page.script("w = window.weft; w.longestGapMs = w.longestStepMs = 0; w.stallsBefore = w.stalls")
    for count in range(1, 11):
        page.script("weft.dropConnection()")
        page.wait("the session again", f"w.reconnects === {count} && w.state === 'playing'")
        time.sleep(2)
    last = page.measures()
    emit("resume", {"reconnects": last["reconnects"], "new_sessions": last["newSessions"], "jumps": last["jumps"],
                    "stalls": last["stalls"] - last["stallsBefore"], "longest_gap_ms": rounded(last["longestGapMs"]),
                    "longest_step_ms": rounded(last["longestStepMs"]), "errors": last["errors"]},
         "a step is the distance of two shown pictures in the stream's time: 40 ms where nothing is cut")
    page.quit()


class Client:
    """A program's session, which counts what comes."""

    def __init__(self, url, text=None, bytes_per_second=None):
        self.url, self.text, self.rate = url.replace("http", "ws", 1).rstrip("/") + "/v1/stream", text, bytes_per_second
        self.packets = self.skipped = 0
        self.spoke_at = self.spoke_until = None
        self.errors = []

    async def run(self, until):
        try:
            await self.listen(until)
        except websockets.ConnectionClosed as closed:
            self.errors.append(str(closed))

    async def listen(self, until):
        host, port = self.url.split("/")[2].split(":")
        wire = socket.socket()
        if self.rate:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect((host, int(port)))
        wire.setblocking(False)
        began = time.monotonic()
        limits = {"max_queue": 1, "read_limit": 2048} if self.rate else {}
        async with websockets.connect(self.url, sock=wire, max_size=None, ping_interval=None, **limits) as client:
            await client.send(json.dumps({"type": "session_init"}))
            while not until.is_set():
                try:
                    message = await asyncio.wait_for(client.recv(), 1)
                except asyncio.TimeoutError:
                    continue
                if self.rate:
                    await asyncio.sleep(len(message) / self.rate)
                if isinstance(message, bytes):
                    self.count(message, time.monotonic() - began)
                else:
                    await self.receive(json.loads(message), client)

    async def receive(self, event, client):
        if event["type"] == "session_ready" and self.text:
            await client.send(json.dumps({"type": "text", "text": self.text}))
        if event["type"] == "skipped":
            self.skipped += event["packets"]
        if event["type"] == "error":
            self.errors.append(event["message"])

    def count(self, packet, at):
        _, kind, flags, *_ = PACKET.unpack_from(packet)
        self.packets += kind == MEDIA
        if kind == MEDIA and not flags & SILENCE:
            self.spoke_at = self.spoke_at or at
            self.spoke_until = at


class Clients:
    """Programs' sessions beside the browser, on a thread of their own."""

    def __init__(self, clients):
        self.clients = clients
        self.until = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()

    async def run(self):
        await asyncio.gather(*(client.run(self.until) for client in self.clients))

    def end(self):
        self.until.set()
        self.thread.join()


def slow(server):
    """A reader that takes a quarter of what it is sent, beside a page."""
    page = Page(server.url)
    page.start()
    before = page.measures()
    others = Clients([Client(server.url, bytes_per_second=4000)])
    time.sleep(60)
    last = page.measures()
    others.end()
    emit("slow", {"slow_packets": others.clients[0].packets, "slow_skipped": others.clients[0].skipped,
                  "page_packets": last["packets"] - before["packets"], "page_skipped": last["skipped"],
                  "page_dropped": last["droppedFrames"] - before["droppedFrames"],
                  "page_jumps": last["jumps"] - before["jumps"], "page_stalls": last["stalls"] - before["stalls"],
                  "errors": last["errors"] + others.clients[0].errors}, "60 s")
    page.quit()


def turns(server):
    """Eight sessions that want to speak at the same time: the page and seven programs."""
    page = Page(server.url)
    page.start()
    others = Clients([Client(server.url, SENTENCE.format(number)) for number in range(2, 9)])
    page.say(SENTENCE.format(1))
    page.wait("speech", "w.faceState === 'speaking'")
    began = time.monotonic()
    while time.monotonic() < began + 240 and not all(client.spoke_at for client in others.clients):
        time.sleep(0.2)
    page.wait("the end of the speech", "w.faceState === 'idle'")
    time.sleep(3)
    others.end()
    last = page.measures()
    emit("turns", {"sessions": 8, "spoke": 1 + sum(client.spoke_at is not None for client in others.clients),
                   "spoke_at_s": [rounded(client.spoke_at) for client in others.clients],
                   "spoke_until_s": [rounded(client.spoke_until) for client in others.clients],
                   "page_answer_ms": rounded(last["answerMs"]), "page_frames": last["totalFrames"],
                   "page_dropped": last["droppedFrames"], "page_stalls": last["stalls"],
                   "errors": last["errors"] + sum((client.errors for client in others.clients), [])},
         "spoke_at_s counts from each client's connection")
    page.quit()


def killed(server, weft, *flags):
    """kill -9 of the server, and its restart at the same port."""
    page = Page(server.url)
    page.start()
    server.kill()
    page.wait("a page that says so", "w.state === 'reconnecting'")
    said = page.find("#status").text
    again = Server(weft, *flags, port=server.port)
    ready = time.monotonic()
    page.wait("a new session", "w.newSessions === 1 && w.state === 'playing'")
    playing = time.monotonic()
    shown = page.measures("totalFrames")
    page.wait("more pictures", f"w.totalFrames > {shown + 10}")
    last = page.measures()
    emit("killed", {"page_said": said, "ready_to_session_s": rounded(playing - ready), "new_sessions": last["newSessions"],
                    "reconnects": last["reconnects"], "jumps": last["jumps"], "errors": last["errors"]},
         "seconds from the restarted server's readiness")
    page.quit()
    again.end()


def screenshots(server, folder):
    """The page while the face speaks, at both widths, light and dark."""
    os.makedirs(folder, exist_ok=True)
    for dark in (False, True):
        page = Page(server.url, 1920, 1080, dark)
        page.start()
        page.say(MANY_WORDS[:400])
        page.wait("speech", "w.faceState === 'speaking'")
        time.sleep(8)
        for width, height in ((1920, 1080), (360, 2400)):
            page.size(width, height)
            time.sleep(1)
            page.driver.save_screenshot(f"{folder}/live-{width}-{'dark' if dark else 'light'}.png")
        page.quit()


CASES = {"minute": minute, "interrupt": interrupt, "resume": resume, "slow": slow, "turns": turns}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weft")
    parser.add_argument("cases", nargs="*", help=", ".join([*CASES, "killed"]))
    parser.add_argument("--screenshots", metavar="FOLDER")
    parser.add_argument("--server", metavar="FLAGS", default="", help="more flags of the server, as '--steps 2'")
    given = parser.parse_args()
    weft = os.path.abspath(given.weft)
    os.chdir(ROOT)
    flags = ["--model", "models/pocket_avatar", *given.server.split()]
    if given.screenshots:
        CASES["screenshots"] = lambda server: screenshots(server, given.screenshots)
        given.cases.append("screenshots")
    for name in given.cases or [*CASES, "killed"]:
        server = Server(weft, *flags)
        if name == "killed":
            killed(server, weft, *flags)
            continue
        try:
            CASES[name](server)
        finally:
            server.end()


if __name__ == "__main__":
    main()
