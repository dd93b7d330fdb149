#!/usr/bin/env python3
"""Measures `weft stream --listen` under load while a client watches a face: thousands of connections that
are half open or idle, and traffic that is malformed in bulk. Prints a JSON line for each, ends with 1
where a bound does not hold or the session was harmed.

    tests/bench/server_load.py build/weft --model pocket_avatar

/health/live is asked on connections of its own, 1,000 times within about six seconds. The client of the
session, the connections and the prober are processes of their own, on the same cores as the server. How much
later than asked the prober's sleeps end ("sleep_late") says what the machine alone does to a process.
"""
import argparse
import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from live_client import MEDIA, Raw, WebSocket, ask, request, syllables  # noqa: E402
from servers import Server  # noqa: E402

KEY = "0123456789abcdef0123456789abcdef"
LIVE = request("GET", "/health/live")
PROBES, PAUSE = 1000, 0.004
MOST_MS, MOST_GROWTH = 10.0, 16 << 20


def keyed(method, target, headers=None, body=b""):
    return request(method, target, {"Authorization": "Bearer " + KEY, **(headers or {})}, body)


def speak(client, stop):
    """Sends sound like speech at the pace of its time: two seconds of it, two of silence."""
    rate, hop = 16000, 1600
    sound = syllables(rate, 2.0) + [0] * (2 * rate)
    began = time.monotonic()
    for number in range(1 << 30):
        at = number * hop
        time.sleep(max(0.0, began + at / rate - time.monotonic()))
        first = at % len(sound)
        if stop.is_set() or not client.send_sound(number, at * 1000000 // rate, sound[first:first + hop]):
            return


def watch(port, container, ready, stop, results):
    """The client of the session: counts its packets and what is missing of them."""
    client = WebSocket(port, key=KEY)
    client.send_message("session_init", container=container)
    told = {"packets": 0, "missing": 0, "skips": 0, "errors": 0, "spoken": 0, "longest_gap_ms": 0.0}
    expected, last = 0, None
    threading.Thread(target=speak, args=(client, stop), daemon=True).start()
    while not stop.is_set():
        message = client.next()
        if message is None:
            break
        if message["type"] == "packet" and message["kind"] >= MEDIA:
            now = time.monotonic()
            told["packets"] += 1
            told["missing"] += message["number"] - expected
            told["spoken"] += not message["flags"] & 2
            expected = message["number"] + 1
            if last is not None and ready.is_set():
                told["longest_gap_ms"] = max(told["longest_gap_ms"], (now - last) * 1000)
            last = now
            if told["packets"] == 20:
                ready.set()
        told["skips"] += message["type"] == "skipped"
        told["errors"] += message["type"] == "error"
    told["close_code"] = client.close_code  # 0: it was still open
    results.put(told)


def hold(port, count, half_open, ready, stop, results):
    """Holds connections: half a header each, or idle ones whose request was answered."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held, refused = [], 0
    for _ in range(count):
        connection = Raw(port)
        if half_open:
            connection.send(b"GET /health/live HTTP/1.1\r\nHo")
        else:
            refused += connection.ask(LIVE)[0] != 200
        held.append(connection)
    ready.set()
    stop.wait()
    lost = 0
    for connection in held:
        connection.socket.settimeout(10)
        rest = b"st: localhost\r\n\r\n" if half_open else LIVE
        lost += connection.ask(rest)[0] != 200
        connection.close()
    results.put({"refused": refused, "lost": lost})


def probe(port, results):
    times, late = [], []
    for _ in range(PROBES):
        began = time.monotonic()
        status, _ = ask(port, LIVE)
        times.append((time.monotonic() - began) * 1000 if status == 200 else float("inf"))
        began = time.monotonic()
        time.sleep(PAUSE)
        late.append((time.monotonic() - began - PAUSE) * 1000)
    times.sort()
    late.sort()
    results.put({"median_ms": times[PROBES // 2], "p99_ms": times[PROBES * 99 // 100], "most_ms": times[-1],
                 "sleep_late_p99_ms": late[PROBES * 99 // 100]})


def in_process(target, *arguments):
    """Runs it in a process of its own and returns what it puts."""
    results = multiprocessing.Queue()
    process = multiprocessing.Process(target=target, args=(*arguments, results))
    process.start()
    told = results.get()
    process.join()
    return told


def under_connections(server, count, half_open):
    """Latency and memory beside so many held connections."""
    ready, stop, results = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Queue()
    before = server.memory_bytes()
    holder = multiprocessing.Process(target=hold, args=(server.port, count, half_open, ready, stop, results))
    holder.start()
    ready.wait()
    told = in_process(probe, server.port)
    told["growth_mb"] = (server.memory_bytes() - before) / (1 << 20)
    stop.set()
    told.update(results.get())
    holder.join()
    return told


def refused_frame(port, data):
    """The code that a WebSocket is closed with for these bytes."""
    client = WebSocket(port, key=KEY)
    client.send(data)
    while client.frame() is not None:
        pass
    client.close()
    return client.close_code


def refused_message(port, *messages):
    client = WebSocket(port, key=KEY)
    for opcode, payload in messages:
        client.send_frame(opcode, payload)
    while client.frame() is not None:
        pass
    client.close()
    return client.close_code


def session_cases(port):
    """The same of sessions that break the rules. They keep their faces for a while."""
    init = json.dumps({"type": "session_init"}).encode()
    sound = struct.pack("<4sHHIIq", b"WEFT", 1, 0, 0, 100, 0)
    return [
        ("sound without its samples", refused_message(port, (1, init), (2, sound)), 1008),
        ("two session_inits", refused_message(port, (1, init), (1, init)), 1008),
    ]


def malformed_cases(port, routes):
    """(what, what came, what should have come) of every kind of bad traffic."""
    fields = {f"a{i}": "b" for i in range(200000)}
    sound = struct.pack("<4sHHIIq", b"WEFT", 1, 0, 0, 100, 0)
    cases = [
        ("200,000 headers", ask(port, keyed("GET", "/version", fields))[0], 431),
        ("a header of 20,000 bytes", ask(port, keyed("GET", "/version", {"a": "b" * 20000}))[0], 431),
        ("a path of 40,000 bytes", ask(port, keyed("GET", "/" + "a" * 40000))[0], 414),
        ("no HTTP", ask(port, b"\x16\x03\x01 hello\r\n\r\n")[0], 400),
        ("two lengths", ask(port, keyed("GET", "/version", {"Content-Length": "1\r\nContent-Length: 2"}))[0], 400),
        ("a body of 64 MiB and one byte", ask(port, keyed("GET", "/version", {"Content-Length": "67108865"}))[0], 413),
        ("another origin", ask(port, keyed("GET", "/version", {"Origin": "https://example.org"}))[0], 403),
        ("another host", ask(port, keyed("GET", "/version", {"Host": "example.org"}))[0], 403),
        ("a wrong key", ask(port, request("GET", "/version", {"Authorization": "Bearer " + KEY[:-1]}))[0], 401),
        ("a socket of another origin", WebSocket(port, key=KEY, headers={"Origin": "https://example.org"}).status, 403),
        ("a socket with a wrong key", WebSocket(port, key=KEY + "0").status, 401),
        ("a socket without a key", WebSocket(port).status, 401),
        ("reserved bits", refused_frame(port, b"\xf1\x80" + bytes(4)), 1002),
        ("a frame that is not masked", refused_frame(port, b"\x81\x02hi"), 1002),
        ("an unknown opcode", refused_frame(port, b"\x83\x80" + bytes(4)), 1002),
        ("a text that is not UTF-8", refused_message(port, (1, b"\xff\xfe")), 1007),
        ("a message of 2^63 bytes", refused_frame(port, b"\x82\xff\x7f" + b"\xff" * 7 + bytes(4)), 1009),
        ("a message of 2 MiB", refused_message(port, (2, bytes(2 << 20))), 1009),
        ("no JSON", refused_message(port, (1, b"{")), 1008),
        ("an unknown message", refused_message(port, (1, b'{"type": "hello"}')), 1008),
        ("text before a session", refused_message(port, (1, b'{"type": "text", "text": "hi"}')), 1008),
        ("sound before a session", refused_message(port, (2, sound + bytes(200))), 1008),
        ("1,000 pings", refused_message(port, *[(9, b"")] * 1000), 1008),
    ]
    cases += [("no key: " + path, ask(port, request(method, path))[0], 401) for method, path in routes]
    return cases


def malformed(server, rounds):
    """All bad traffic, several times; the first round is a warm-up for the memory."""
    routes = [("GET", "/health/ready"), ("GET", "/version"), ("GET", "/metrics"), ("GET", "/v1/capabilities"),
              ("GET", "/v1/stream"), ("GET", "/"), ("POST", "/v1/jobs")]
    wrong, count, before = {}, 0, 0
    for number in range(rounds + 1):
        if number == 1:
            before = server.memory_bytes()
        once = session_cases(server.port) if number == 0 else []
        for what, came, expected in malformed_cases(server.port, routes) + once:
            count += 1
            if came != expected:
                wrong[what] = f"{came}, expected {expected}"
    return {"requests": count, "wrong": wrong, "growth_mb": (server.memory_bytes() - before) / (1 << 20)}


def holds(line):
    return (line.get("p99_ms", 0) <= MOST_MS and line.get("growth_mb", 0) * (1 << 20) <= MOST_GROWTH
            and not any(line.get(name) for name in
                        ("wrong", "refused", "lost", "missing", "skips", "errors", "close_code")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("--model", default="pocket_avatar")
    parser.add_argument("--container", default="fmp4")
    parser.add_argument("--half-open", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=10000)
    parser.add_argument("--threads", default="1", help="of the engine; the server and its clients have their own")
    parser.add_argument("--rounds", type=int, default=20, help="of all kinds of malformed traffic")
    arguments = parser.parse_args()
    multiprocessing.set_start_method("fork")
    failed = False

    def report(what, told):
        nonlocal failed
        line = {"bench": "server_load", "what": what, **told}
        line["holds"] = holds(line)
        line["load"] = [round(value, 2) for value in os.getloadavg()]
        failed = failed or not line["holds"]
        print(json.dumps({name: round(value, 2) if isinstance(value, float) else value
                          for name, value in line.items()}), flush=True)

    with tempfile.NamedTemporaryFile("w") as key_file:
        key_file.write(KEY + "\n")
        key_file.flush()
        os.chmod(key_file.name, 0o600)
        server = Server(arguments.weft, "--model", arguments.model, "--threads", arguments.threads, "--api-key-file", key_file.name,
                        "--max-connections", "20000", "--max-connections-per-address", "20000")
        ready, stop, results = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Queue()
        viewer = multiprocessing.Process(
            target=watch, args=(server.port, arguments.container, ready, stop, results))
        viewer.start()
        if not ready.wait(120):
            raise RuntimeError("the session gave no pictures")
        try:
            report("the session alone", in_process(probe, server.port))
            report(f"{arguments.half_open} half-open connections",
                   under_connections(server, arguments.half_open, True))
            report(f"{arguments.idle} idle connections", under_connections(server, arguments.idle, False))
            report("malformed traffic", malformed(server, arguments.rounds))
            stop.set()
            report("the session", results.get())
        finally:
            stop.set()
            viewer.join()
            print(json.dumps({"bench": "server_load", "what": "exit code after SIGTERM", "code": server.end()}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
