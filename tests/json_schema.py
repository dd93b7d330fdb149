#!/usr/bin/env python3
"""Runs every command with --json and validates each line it prints, and the progress events, against
apps/output.schema.json.
usage: json_schema.py WEFT"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import wave

try:
    import jsonschema
except ImportError:
    print("skipped: no python3-jsonschema (apps/setup.sh tests installs it)")
    sys.exit(77)

WEFT = os.path.abspath(sys.argv[1])
with open("apps/output.schema.json") as file:
    SCHEMA = json.load(file)
jsonschema.Draft202012Validator.check_schema(SCHEMA)
seen, faults = set(), 0


def fault(words):
    global faults
    faults += 1
    print("FAULT:", words)


def errors(kind, line):
    reference = {"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]}
    return list(jsonschema.Draft202012Validator(reference).iter_errors(json.loads(line)))


def validate(kind, text, about):
    seen.add(kind)
    for line in text.splitlines():
        for error in errors(kind, line):
            fault(f"{about}: {error.json_path}: {error.message[:200]}")


def weft(kind, *arguments, codes=(0,), progress=False):
    command = [WEFT, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    about = " ".join(command[1:])
    if done.returncode not in codes:
        fault(f"{about}: exit code {done.returncode}: {done.stderr.strip()}")
    if not done.stdout:
        fault(f"{about}: no line")
    if kind == "verify":  # the profile is the last line
        lines = done.stdout.splitlines()
        validate("profile_line", lines.pop(), about)
        done.stdout = "\n".join(lines)
    validate(kind, done.stdout, about)
    if progress:
        events = [line for line in done.stderr.splitlines() if line.startswith("{")]
        if len(events) < 10:
            fault(f"{about}: {len(events)} progress events")
        validate("progress", "\n".join(events), about)


def server(kind, *arguments):
    """The line of a server, which is then told to end."""
    command = [WEFT, *arguments, "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        line = running.stdout.readline()
        running.terminate()
    about = " ".join(command[1:])
    if running.returncode:
        fault(f"{about}: exit code {running.returncode}")
    validate(kind, line, about)


model, transformer = "models/pocket", "models/pocket/transformer/diffusion_pytorch_model.safetensors"
with tempfile.TemporaryDirectory() as folder:
    clip, other = folder + "/clip.mp4", folder + "/other.mp4"
    job = ["generate", "--model", model, "--prompt", "a red ball", "--num-frames", "5", "--steps", "2",
           "--quiet"]
    weft("generate", *job, "--seed", "1", "-o", clip)
    weft("generate", *[word for word in job if word != "--quiet"], "--seed", "2", "-o", other,
         "--profile", "--progress", "json", progress=True)
    weft("generate", *job, "--seed", "1", "-o", folder + "/caption.mp4", "--expand-prompt", "auto")
    weft("generate_dry_run", *job, "--dry-run")
    with open(folder + "/jobs.jsonl", "w") as file:
        file.write('{"id":"a","prompt":"a red ball","num_frames":1,"steps":1}\n'
                   '{"id":"b","prompt":"x","num_frames":1,"steps":1,"output":"a.png/b.png"}\n')
    weft("batch", "batch", folder + "/jobs.jsonl", "--model", model, "--quiet", "-o", folder + "/batch/",
         codes=(1,))
    with open("apps/job.schema.json") as file:
        job_schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(job_schema)
    with open(folder + "/batch/a.png.json") as file:
        requests = [json.load(file)["request"]]
    with open(folder + "/jobs.jsonl") as file:
        requests += [json.loads(line) for line in file]
    for request in requests:
        for error in jsonschema.Draft202012Validator(job_schema).iter_errors(request):
            fault(f"job.schema.json: {error.json_path}: {error.message[:200]}")
    with wave.open(folder + "/hum.wav", "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(bytes(range(256)) * 64)
    weft("stream", "stream", "--model", "models/pocket_avatar", "--render", folder + "/hum.wav", "--quiet",
         "-o", folder + "/face.mp4")
    weft("stream_dry_run", "stream", "--model", "models/pocket_avatar", "--render", folder + "/hum.wav", "--dry-run")
    server("serve", "serve", "--model", model, "-o", folder + "/served/")
    weft("print_config", *job, "--print-config")
    weft("inspect", "inspect", model, transformer, model + "/transformer/config.json", clip)
    weft("inspect", "inspect", model, "--verbose-tensors")
    weft("inspect_memory", "inspect", model, "--memory", "17x128x128")
    language = model + "/language"
    weft("inspect", "inspect", language, language + "/config.json")
    weft("inspect_language_memory", "inspect", language, "--memory", "512")
    weft("complete", "complete", "--model", language, "--chat", "a red", "blue", "--profile", "--quiet")
    weft("compare", "compare", clip, other)
    weft("compare", "compare", clip, clip)
    weft("compare", "compare", transformer, transformer)
    weft("replay", "replay", clip, "--quiet")
    weft("replay", "replay", clip, "--quiet", "--dry-run")
weft("verify", "verify", "--profile", *sorted(glob.glob("tests/golden/scheduler_euler*")),
     "tests/golden/dit_wan_tiny")
weft("stream_dry_run", "plan", "--model", "models/pocket_avatar", "--device-gflops", "100", "--device-gbs", "10")
weft("plan", "plan", "--model", model, "--ranks", "2", "--layout", "all", "--device-gflops", "100",
     "--device-gbs", "10", "--check")
weft("plan", "plan", "--model", model, "--ranks", "2", "--device-gflops", "100", "--device-gbs", "10")
weft("plan", "plan", "--model", model, "--device", "cuda", "--resident-layers", "2", "--weights", "fp8",
     "--device-host-gbs", "50")
weft("inspect_memory", "inspect", model, "--memory", "17x128x128", "--device", "cuda:3")
weft("doctor", "doctor", codes=(0, 1))
weft("bench", "bench", "load", "--model", model, "--repeat", "1")
weft("bench", "bench", "stream", "--seconds", "3")

for kind in sorted(seen - {"bench", "print_config"}):
    if not errors(kind, '{"surprise": 1}'):
        fault(f"{kind} takes anything")
print(f"{len(seen)} kinds of lines, {faults} faults")
sys.exit(1 if faults else 0)
