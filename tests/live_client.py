"""Clients of `weft stream --listen` and of HTTP, for tests and measurements. The WebSocket is written
on a plain socket, so that it can send what no library would."""
import base64
import json
import math
import os
import socket
import struct
import time

MAGIC = b"WEFT"
SOUND, HEADER, MEDIA, HEARD = 1, 2, 3, 4
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def request(method, target, headers=None, body=b""):
    """The bytes of a request."""
    lines = {"Host": "localhost", **({"Content-Length": str(len(body))} if body else {}), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body


class Raw:
    """A connection that speaks HTTP by hand."""

    def __init__(self, port, timeout=20.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def send(self, data):
        """False where the server takes no more."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def more(self):
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self.rest += data
        return bool(data)

    def read(self, count):
        while len(self.rest) < count and self.more():
            pass
        out, self.rest = self.rest[:count], self.rest[count:]
        return out

    def answer(self):
        """Status and body of the next answer; status 0 where none comes."""
        while b"\r\n\r\n" not in self.rest and self.more():
            pass
        head, mark, self.rest = self.rest.partition(b"\r\n\r\n")
        if not mark:
            return 0, b""
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        return int(head.split(b" ", 2)[1]), self.read(int(fields.get(b"content-length", 0)))

    def ask(self, data):
        self.send(data)
        return self.answer()

    def close(self):
        self.socket.close()


def ask(port, data):
    connection = Raw(port)
    try:
        return connection.ask(data)
    finally:
        connection.close()


class WebSocket(Raw):
    """A WebSocket; `status` is what the upgrade was answered with."""

    def __init__(self, port, path="/v1/stream", key=None, headers=None, timeout=20.0):
        super().__init__(port, timeout)
        fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                  "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(), **(headers or {})}
        if key:
            fields["Authorization"] = "Bearer " + key
        self.status, self.refusal = self.ask(request("GET", path, fields))
        self.close_code = 0  # of the server; 1006 where it ended without one

    def send_frame(self, opcode, payload, first_byte=None):
        size = len(payload)
        head = bytes([first_byte if first_byte is not None else 0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += b"\xfe" + struct.pack(">H", size)
        else:
            head += b"\xff" + struct.pack(">Q", size)
        return self.send(head + bytes(4) + payload)  # masked with zeros

    def send_message(self, kind, **fields):
        return self.send_frame(TEXT, json.dumps({"type": kind, **fields}).encode())

    def send_sound(self, number, time_us, samples, last=False):
        """Samples of s16 as bytes, or a list of them."""
        data = samples if isinstance(samples, bytes) else struct.pack(f"<{len(samples)}h", *samples)
        head = struct.pack("<4sHHIIq", MAGIC, SOUND, 4 if last else 0, number, len(data) // 2, time_us)
        return self.send_frame(BINARY, head + data)

    def frame(self):
        """Opcode and payload of the next frame; None where the connection ended."""
        head = self.read(2)
        if len(head) < 2:
            self.close_code = self.close_code or 1006
            return None
        size = head[1] & 127
        if size == 126:
            size = struct.unpack(">H", self.read(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.read(8))[0]
        opcode, payload = head[0] & 15, self.read(size)
        if opcode == PING:
            self.send_frame(PONG, payload)
        if opcode == CLOSE:
            self.close_code = struct.unpack(">H", payload[:2])[0] if len(payload) >= 2 else 1005
            self.send_frame(CLOSE, payload[:2])
            return None
        return opcode, payload

    def next(self):
        """The next message: a dict of a text, or one of a packet with its "payload"."""
        while (frame := self.frame()) is not None:
            opcode, payload = frame
            if opcode == TEXT:
                return json.loads(payload)
            if opcode == BINARY:
                magic, kind, flags, number, length, time_us = struct.unpack("<4sHHIIq", payload[:24])
                if magic != MAGIC:
                    raise ValueError(f"a packet begins with {magic!r}")
                return {"type": "packet", "kind": kind, "flags": flags, "number": number,
                        "length": length, "time_us": time_us, "payload": payload[24:]}
        return None

    def wait_for(self, kind, seconds=60.0):
        """The next message of that type; None where the connection ended or it did not come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (message := self.next()) is not None:
            if message["type"] == kind:
                return message
        return None

    def close_session(self):
        self.send_frame(CLOSE, struct.pack(">H", 1000))
        self.close()


def syllables(rate, seconds):
    """Sound like speech as s16 samples: a few harmonics, four syllables a second."""
    samples = []
    for i in range(int(rate * seconds)):
        t = i / rate
        loud = max(0.0, math.sin(2 * math.pi * 4 * t)) * 4000
        samples.append(int(loud * sum(math.sin(2 * math.pi * 140 * h * t + h) / h for h in range(1, 6))))
    return samples
