"""Compares the frame hashes of two builds of weft over small jobs. usage: signature.py BASE NEW WRITE_SPEECH_MODEL"""
import concurrent.futures
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import zlib

PIPELINE = "tests/golden/pipeline_"
SMALL = ["--prompt", "a red ball", "--size", "64x64", "--seed", "1", "--threads", "1"]
CLIP = [*SMALL, "--num-frames", "9", "--steps", "10"]
LONG = ["--model", "models/pocket", *SMALL, "--num-frames", "97", "--steps", "10"]
T2V = ["generate", "--model", PIPELINE + "t2v/model", *CLIP]
F32, BF16 = ["--dtype", "f32"], ["--dtype", "bf16", "--vae-dtype", "f32"]

# FOLDER is replaced by the folder of face.png, talk.wav and speech/, a model of speech to video.
JOBS = {
    "whole": T2V + F32,
    "whole_bf16": T2V + BF16,
    "pocket": ["generate", "--model", "models/pocket", *CLIP, *BF16],
    "cfg_and_layers": T2V + F32 + ["--layout", "cfg=2,layers=2"],
    "ulysses": T2V + BF16 + ["--layout", "ulysses=2"],
    "ring": T2V + F32 + ["--layout", "ring=2"],
    "two_experts": ["generate", "--model", PIPELINE + "two_experts/model", *CLIP, *F32],
    "picture_first": ["generate", "--model", PIPELINE + "ti2v_5b/model", *CLIP, *F32, "--image", "FOLDER/face.png"],
    "two_experts_picture": ["generate", "--model", PIPELINE + "i2v_a14b/model", *CLIP, *BF16, "--image", "FOLDER/face.png"],
    "distrifusion": T2V + F32 + ["--method", "distrifusion:warmup=2", "--layout", "patch=2"],
    "pcpp": T2V + BF16 + ["--method", "pcpp:warmup=2", "--layout", "patch=2"],
    "pipefusion": T2V + F32 + ["--method", "pipefusion", "--layout", "layers=2"],
    "clips": ["generate", *LONG, *F32, "--method", "clips", "--layout", "clip=2"],
    "queue": ["generate", *LONG, *BF16, "--method", "queue", "--layout", "layers=2"],
    "queue_teacache": ["generate", *LONG, *F32, "--method", "queue", "--cache", "teacache:0.1"],
    "teacache": ["generate", "--model", "models/pocket", *CLIP, *F32, "--cache", "teacache:0.1"],
    "first_block": T2V + F32 + ["--cache", "first-block:0.7"],
    "speech_chunks": ["generate", "--model", "FOLDER/speech", *SMALL, *F32, "--steps", "2", "--guidance-scale", "1",
                      "--image", "FOLDER/face.png", "--audio", "FOLDER/talk.wav"],
    "stream": ["stream", "--model", "models/pocket_avatar", "--seed", "1", "--threads", "1", *F32,
               "--render", "FOLDER/talk.wav"],
    "stream_two_steps_apart": ["stream", "--model", "models/pocket_avatar", "--seed", "1", "--threads", "1", *F32,
                               "--render", "FOLDER/talk.wav", "--layout", "step=2"],
}
# These are stopped after an event of their progress, and go on: stage, step.
STOPPED = {
    "whole": ("denoise", 4),
    "two_experts": ("denoise", 4),
    "cfg_and_layers": ("denoise", 4),
    "clips": ("denoise", 4),
    "queue": ("denoise", 20),
    "speech_chunks": ("denoise", 1),
    "distrifusion": ("denoise", 6),
}
# A job of this method has checkpoints only where it is told to; it is another job then.
STOPPED_FLAGS = {"distrifusion": ["--resync-every", "4"]}


def write_face(path, width=64, height=64):
    rows = b"".join(b"\0" + bytes((7 * x + 13 * y + 50 * c) % 251 for x in range(width) for c in range(3))
                    for y in range(height))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def command(weft, folder, arguments, output):
    flags = [argument.replace("FOLDER", folder) for argument in arguments]
    return [weft, *flags, "--json", "--output", output]


def frame_hash(weft, folder, arguments, output):
    """The hash of a finished job, or the last words of one that has none."""
    done = subprocess.run(command(weft, folder, arguments, output), capture_output=True, text=True, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith("{") and done.returncode == 0:
            found = json.loads(line).get("framehash")
            if found:
                return found
    return "none: " + (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]


def stop(weft, folder, arguments, output, at):
    """Ends a job after an event. Its messages go through a socket that holds a few lines, so it cannot run ahead."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    job = subprocess.Popen(command(weft, folder, arguments, output) + ["--progress", "json", "--checkpoint-every", "1"],
                           stdout=subprocess.DEVNULL, stderr=theirs)
    theirs.close()
    reached = False
    with ours.makefile(errors="replace") as lines:
        for line in lines:
            if reached or not line.startswith("{"):
                continue
            event = json.loads(line)
            if event.get("stage") == at[0] and event.get("step", 0) >= at[1]:
                reached = True
                job.send_signal(signal.SIGINT)
    return reached and job.wait() != 0


def compare(name, base, new, folder):
    arguments = JOBS[name]
    found = [frame_hash(weft, folder, arguments, f"{folder}/{name}_{i}.mp4") for i, weft in enumerate((base, new))]
    verdict = "ok" if found[0] == found[1] and not found[0].startswith("none") else "DIFFERS"
    return [(name, verdict, *found)]


def compare_stopped(name, base, new, folder):
    arguments = JOBS[name] + STOPPED_FLAGS.get(name, [])
    whole, output = frame_hash(base, folder, arguments, f"{folder}/{name}_whole.mp4"), f"{folder}/{name}_stopped.mp4"
    if not stop(new, folder, arguments, output, STOPPED[name]):
        return [(name + " resumed", "DIFFERS", whole, "none: it was not stopped")]
    resumed = frame_hash(new, folder, arguments, output)
    verdict = "ok" if whole == resumed and not whole.startswith("none") else "DIFFERS"
    return [(name + " resumed", verdict, whole, resumed)]


def main():
    base, new, write_speech_model = map(os.path.abspath, sys.argv[1:4])
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        write_face(f"{folder}/face.png")
        subprocess.run([write_speech_model, f"{folder}/speech", f"{folder}/talk.wav"], check=True)
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
            work = [pool.submit(compare, name, base, new, folder) for name in JOBS]
            work += [pool.submit(compare_stopped, name, base, new, folder) for name in STOPPED]
            for done in work:
                for name, verdict, old, now in done.result():
                    failed += verdict != "ok"
                    print(f"{verdict:8}{name:26}{old[:16]}" + ("" if verdict == "ok" else f"  base {old}  new {now}"))
    print(f"{len(work)} jobs, {failed} without the frames of the base")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
