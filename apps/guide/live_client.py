#!/usr/bin/env python3
"""Sends a sound file to `weft stream --listen` and writes the movie of the face that speaks it.
usage: live_client.py ws://127.0.0.1:8188/v1/stream talk.wav live.mp4 [KEY]
The sound is WAV of 16 bits and one channel. Needs python3-websockets."""
import asyncio
import base64
import json
import struct
import sys
import wave

import websockets

PACKET = struct.Struct("<4sHHIIq")  # magic, type, flags, number, length, microseconds
SOUND, HEADER, MEDIA = 1, 2, 3
SILENCE, LAST = 2, 4


async def send_sound(socket, pcm, rate):
    """Sends packets of 80 ms at the pace at which they are spoken."""
    count = rate * 80 // 1000
    for number, at in enumerate(range(0, len(pcm) // 2, count)):
        samples = pcm[2 * at:2 * (at + count)]
        is_last = 2 * (at + count) >= len(pcm)
        await socket.send(PACKET.pack(b"WEFT", SOUND, LAST if is_last else 0, number, len(samples) // 2,
                                      at * 1_000_000 // rate) + samples)
        await asyncio.sleep(0.08)


async def record(url, pcm, rate, movie, key):
    protocols = ["weft.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")] if key else None
    sender, spoken_us = None, 0
    async with websockets.connect(url, subprotocols=protocols, max_size=None) as socket:
        await socket.send(json.dumps({"type": "session_init", "container": "fmp4", "audio": {"rate": rate}}))
        async for message in socket:
            if isinstance(message, str):
                event = json.loads(message)
                if event["type"] == "session_ready":
                    sender = asyncio.create_task(send_sound(socket, pcm, rate))
                elif event["type"] == "error":
                    sys.exit(event["message"])
                continue
            _, kind, flags, _, length, _ = PACKET.unpack_from(message)
            if kind in (HEADER, MEDIA):
                movie.write(message[PACKET.size:])
            if kind == MEDIA and not flags & SILENCE:
                spoken_us += length
            elif kind == MEDIA and spoken_us and sender.done():  # all was sent and spoken
                return spoken_us / 1e6
    sys.exit("the server closed the connection")


url, sound_path, movie_path, *key = sys.argv[1:]
with wave.open(sound_path) as sound, open(movie_path, "wb") as movie:
    if (sound.getnchannels(), sound.getsampwidth()) != (1, 2):
        sys.exit(f"{sound_path} has {sound.getnchannels()} channels of {8 * sound.getsampwidth()} bits, legal: 1 of 16")
    pcm = sound.readframes(sound.getnframes())
    seconds = asyncio.run(record(url, pcm, sound.getframerate(), movie, *key or [None]))
print(f"{movie_path}: the face speaks for {seconds:.1f} s")
