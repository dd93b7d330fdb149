"""Running servers of weft, for tests and measurements."""
import json
import random
import select
import signal
import socket
import subprocess
import tempfile
import time

from live_client import ask, request

PATIENCE = 300.0  # seconds for anything that must happen
# Commands that start so many ranks as processes, from the top of the tree.
LAUNCH = {"mpi": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"], "ucx": ["python3", "tests/processes.py"]}


def free_port():
    """A port that nobody listens to, and that stays free: below those that the system gives to clients."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Server:
    """A running server, `weft stream` unless told otherwise, ready for clients. Where the machine is too busy for a
    live stream, which the server refuses with its speed, it is started again for some minutes."""

    def __init__(self, weft, *flags, port=0, command="stream"):
        program = [weft] if isinstance(weft, str) else weft  # or what starts its ranks
        self.command = [*program, command, "--listen", f"127.0.0.1:{port}", "--json", *flags]
        self.start()

    def start(self):
        end = time.monotonic() + PATIENCE
        while True:
            self.log = tempfile.TemporaryFile("w+")
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True)
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            line = self.process.stdout.readline() if ready else ""
            if line:
                break
            code = self.kill()
            if "cannot keep up" not in self.text() or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(self.command)}: no address, exit code {code}: {self.text()[-2000:]}")
        self.port = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def text(self):
        """What it has told so far."""
        self.log.seek(0)
        return self.log.read()

    def memory_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

    def end(self, wait=120, sent=signal.SIGTERM):
        """Sends the signal, and returns the exit code."""
        self.process.send_signal(sent)
        try:
            return self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def kill(self):
        self.process.kill()
        return self.process.wait()


class JobServer(Server):
    """A `weft serve` that draws the jobs of the pocket model into a folder."""

    def __init__(self, weft, folder, *flags):
        super().__init__(weft, "--model", "models/pocket", "--threads", "1", "--checkpoint-every", "0", "-o", folder, *flags,
                         command="serve")

    def ask(self, method, path, body=None, headers=None):
        """The status and the JSON of the answer; ValueError or OSError where none comes."""
        status, text = ask(self.port, request(method, path, headers, json.dumps(body).encode() if body else b""))
        return status, json.loads(text)

    def submit(self, job, key=None):
        status, answer = self.ask("POST", "/v1/jobs", job, key and {"Idempotency-Key": key})
        if status != 202:
            raise RuntimeError(f"a job was answered with {status}: {answer}")
        return answer["id"]

    def job(self, name):
        return self.ask("GET", f"/v1/jobs/{name}")[1]

    def wait(self, name, enough):
        """The job, as soon as enough(job)."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            now = self.job(name)
            if enough(now):
                return now
            time.sleep(0.01)
        raise RuntimeError(f"{name} stays {now}: {self.text()[-2000:]}")

    def completed(self, name):
        job = self.wait(name, lambda job: job["finished"])
        if job["state"] != "completed":
            raise RuntimeError(f"{name} is {job['state']}: {job['error']}: {self.text()[-2000:]}")
        return job
