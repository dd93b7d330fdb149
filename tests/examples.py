#!/usr/bin/env python3
"""Runs the examples of README.md, of the guides and of --help, word for word, and checks that the files
they promise appear. Every document has a scratch folder of its own. Clips get few frames and steps through
--config. An example whose model is not at hand, that takes minutes or that another document has run
already only has its flags read (--print-config). A server listens at a free port in place of the one that is
written, until its document ends. usage: examples.py WEFT"""
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import wave

from servers import free_port

WEFT = os.path.abspath(sys.argv[1])
MEASURE = os.path.join(os.path.dirname(WEFT), "weft_measure")  # built with the tests
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMANDS = re.findall(r"^  (\w+) ", subprocess.run([WEFT, "--help"], capture_output=True, text=True).stdout
                      .split("commands:")[1].split("\n\n")[0], re.M)
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "GOMP_SPINCOUNT": "2000"}
faults = 0
lines_run = set()


def fault(words):
    global faults
    faults += 1
    print("FAULT:", words)


def shell(line):
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRONMENT)


def examples(readme):
    """Indented lines, continued ones joined, without what a comment says. Blocks in fences are of other programs."""
    text = re.sub(r"^```.*?^```", "", readme, flags=re.M | re.S).replace("\\\n", " ")
    return [line.split(" # ")[0].strip() for line in text.splitlines() if line.startswith("    ")]


def words(line):
    return shlex.split(line, comments=True)


def parse(line):
    """The flags of a weft command, read without running it."""
    done = shell(re.sub(r"^mpirun -n \d+ ", "", line) + " --print-config")
    if done.returncode:
        fault(f"{line}: {done.stderr.strip()}")


def interrupted_job(output):
    """Leaves the checkpoint that an example goes on from."""
    with open("long.json", "w") as file:
        json.dump({"steps": 100}, file)
    job = subprocess.Popen([WEFT, "generate", "--model", "models/pocket", "--prompt", "a ball", "-o", output,
                            "--num-frames", "5", "--progress", "json", "--config", "long.json"],
                           stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    for event in job.stderr:
        if '"denoise","step":3,' in event:
            job.send_signal(signal.SIGINT)
    if job.wait() != 130:
        fault(f"an interrupted job ended with {job.returncode}")


def prepare(line):
    """Makes the files that an example takes for granted."""
    if "prompts.txt" in line:
        with open("prompts.txt", "w") as file:
            file.write("a red ball\n# a comment\na blue star\n")
    if "jobs.jsonl" in line:
        with open("jobs.jsonl", "w") as file:
            file.write('{"id": "shot-1", "prompt": "a red ball", "num_frames": 1}\n')
    if "compare a.mp4" in line:
        for name in ("a.mp4", "b.mp4"):
            shutil.copy("ball.mp4", name)
    if "compare a.safetensors" in line:
        for name in ("a.safetensors", "b.safetensors"):
            shutil.copy("models/pocket/vae/diffusion_pytorch_model.safetensors", name)
    if "talk.wav" in line:
        with wave.open("talk.wav", "wb") as sound:
            sound.setparams((1, 2, 16000, 0, "NONE", ""))
            sound.writeframes(bytes(range(256)) * 125)
    resumed = re.search(r"--resume (\w+)\.mp4\.checkpoint", line)
    if resumed:
        for name in glob.glob(f"{resumed[1]}.*"):
            os.remove(name)
        interrupted_job(f"{resumed[1]}.mp4")


def run(line):
    prepare(line)
    resumed = re.search(r"--resume (\w+)\.mp4\.checkpoint", line)
    short = re.search(r"weft (generate|plan)", line) and not resumed and "--num-frames" not in line
    config = "short_picture.json" if "tests/golden/pipeline_flux2" in line else "short.json"
    done = shell(re.sub(r"(weft (?:generate|plan))\b", rf"\1 --config {config}", line) if short else line)
    if done.returncode:
        fault(f"{line}: exit code {done.returncode}: {done.stderr.strip()}")
    written = re.search(r" > (\S+)$", line)
    if written and not (os.path.exists(written[1]) and os.path.getsize(written[1])):
        fault(f"{line}: nothing in {written[1]}")
    if not done.stdout and not written:
        fault(f"{line}: printed nothing")
    after = dict(zip(words(line), words(line)[1:]))
    for flag in ("-o", "--output", "--svg", "--trace"):
        if flag in after and not os.path.exists(after[flag]):
            fault(f"{line}: no {after[flag]}")
    if resumed and not os.path.exists(f"{resumed[1]}.mp4"):
        fault(f"{line}: no {resumed[1]}.mp4")


servers = {}  # of the present document, by the port that is written


def with_free_ports(line):
    return re.sub(r"(?<=:)(\d{4,5})\b", lambda port: servers[port[1]][0] if port[1] in servers else port[1], line)


def serve(line):
    """Starts a server and waits for the address that it prints when clients can connect."""
    port = re.search(r"--listen \S+:(\d+)", line)[1]
    servers[port] = (str(free_port()), None)
    with open(f"server-{port}.log", "w") as log:
        server = subprocess.Popen(["bash", "-c", f"exec {with_free_ports(line)} --steps 1 --size 64x64"], stdout=subprocess.PIPE, stderr=log,
                                  text=True, env=ENVIRONMENT)
    servers[port] = (servers[port][0], server)
    if not server.stdout.readline():
        with open(f"server-{port}.log") as log:
            fault(f"{line}: no address: {log.read().strip()[-1000:]}")
    return "served"


def end_servers():
    for port, (_, server) in servers.items():
        server.send_signal(signal.SIGTERM)
        server.stdout.close()
        if server.wait() != 0:
            fault(f"the server of port {port} ended with {server.returncode}")
    servers.clear()


def ask(line):
    """Runs a client of the server that the document has started."""
    prepare(line)
    if line.startswith("python3 "):
        line = sys.executable + line.removeprefix("python3")  # the one that sees Debian's modules
    done = shell(with_free_ports(line).replace("curl ", "curl --fail ", 1))
    if done.returncode or not done.stdout:
        fault(f"{line}: exit code {done.returncode}, {done.stderr.strip()}")
    return "asked"


def check(line):
    first = words(line)[0]
    if "--listen" in line and first == "build/weft":
        return serve(line)
    if first == "curl" or (first == "python3" and "_client.py" in line):
        return ask(line)
    if first == "openssl":
        done = shell(line)
        if done.returncode:
            fault(f"{line}: {done.stderr.strip()}")
        return "ran"
    if first == "build-cuda/weft":  # the flags are the same; the device may not be there
        parse(line.replace(first, "build/weft", 1))
        return "parsed"
    if "build/weft_measure" in line:  # minutes each
        if os.path.exists(MEASURE):
            parse(line)
        return "parsed"
    if "build/weft" not in line:
        names = [word for word in words(line) if "/" in word and not word.startswith("(")]
        for name in names:
            if name.endswith(".sh") and not os.path.exists(name):
                fault(f"{line}: no {name}")
        if first not in ("bash", "cmake", "pip", "hf", "wget", "dpkg", "apt-get", "tests/gpu.sh", "tests/gpu_pack.sh"):
            fault(f"{line}: what is {first}?")
        return "named"
    # Every golden case is a test of its own; benches without a model take minutes.
    if ("/path/to" in line or "tests/golden/*" in line or re.search(r"weft bench(?! load)", line)
            or line in lines_run):
        parse(line)
        return "parsed"
    run(line)
    lines_run.add(line)
    return "ran"


counts = {}


def count(what):
    counts[what] = counts.get(what, 0) + 1


def fresh_folder(folder):
    os.mkdir(folder)
    os.chdir(folder)
    for name in ("models", "tests", "apps"):
        os.symlink(os.path.join(ROOT, name), name)
    os.mkdir("build")
    os.symlink(WEFT, "build/weft")
    if os.path.exists(MEASURE):
        os.symlink(MEASURE, "build/weft_measure")
    with open("short.json", "w") as file:
        json.dump({"steps": 2, "num-frames": 5}, file)
    with open("short_picture.json", "w") as file:
        json.dump({"steps": 2}, file)


def check_document(text):
    for line in examples(text):
        count(check(line))
    end_servers()
    # Commands in the running text and in tables.
    for code in re.findall(r"`weft ([^`]*)`", text):
        name = code.split()[0]
        if name not in COMMANDS and not name.isupper() and not name.startswith("-"):
            fault(f"`weft {code}`: no command {name}")
        elif name in COMMANDS and "|" not in code and not any(word.isupper() for word in code.split()):
            parse(f"build/weft {code.split('`')[0]}".replace("...", ""))


with tempfile.TemporaryDirectory() as scratch:
    guides = set(glob.glob("apps/guide/*.md", root_dir=ROOT)) - {"apps/guide/library.md"}  # tests/install follows that
    for path in ("README.md", *sorted(guides)):
        fresh_folder(os.path.join(scratch, os.path.basename(path)))
        with open(os.path.join(ROOT, path)) as file:
            check_document(file.read())
    fresh_folder(os.path.join(scratch, "help"))
    for line in re.findall(r"^example: (.*)", shell("build/weft --help").stdout, re.M):
        run(line.replace("weft", "build/weft", 1))
        count("of --help")
print(", ".join(f"{count} {what}" for what, count in counts.items()) + f", {faults} faults")
sys.exit(1 if faults else 0)
