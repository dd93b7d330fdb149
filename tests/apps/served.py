"""Runs the command of a manifest that serves a model, as the pod or the unit would, and restarts it."""
import json
import os
import subprocess
import time
import urllib.error
import urllib.request

PATIENCE = 120  # seconds for anything that must happen
JOB = {"prompt": "a red ball", "num_frames": 5, "steps": 2, "seed": 7, "size": "64x64"}
LONG = {**JOB, "steps": 200}


def after(words, flag):
    return words[words.index(flag) + 1]


class Served:
    """A server that was started by `command`. It listens at 127.0.0.1 and `port`, not where the manifest says, and
    drains in one second, which the manifest gives it more of."""

    def __init__(self, command, port, key, environment=None):
        changed = {"--listen": f"127.0.0.1:{port}", "--drain-seconds": "1"}
        words = [changed.get(before, word) for before, word in zip(["", *command], command)]
        self.port, self.key = port, key
        self.process = subprocess.Popen([*words, "--threads", "1", "--checkpoint-every", "0"], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})})

    def ask(self, route, body=None, key=True):
        """The status and the body of the answer; 0 where nothing listens."""
        headers = {"X-Api-Key": self.key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}{route}", data, headers),
                                        timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()
        except urllib.error.URLError:
            return 0, b""

    def wait(self, enough):
        """What `enough` returns, once that is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if found := enough():
                return found
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(self.process.communicate())

    def submit(self, job):
        status, body = self.ask("/v1/jobs", job)
        assert status == 202, (status, body)
        return json.loads(body)["id"]

    def job(self, name):
        return json.loads(self.ask(f"/v1/jobs/{name}")[1])

    def completed(self, name):
        job = self.wait(lambda: (now := self.job(name))["finished"] and now)
        assert job["state"] == "completed", job
        return job

    def end(self):
        self.process.terminate()
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, (self.process.returncode, output, errors)


def check_server(start, live, ready):
    """`start()` starts the server anew; `live` and `ready` ask it as its probes do. A job that is over and one that
    SIGTERM stopped are there after a restart, and the latter goes on."""
    server = start()
    server.wait(lambda: live(server))
    server.wait(lambda: ready(server))
    assert server.ask("/v1/jobs", key=False)[0] == 401
    done = server.completed(server.submit(JOB))
    stopped = server.submit(LONG)
    server.wait(lambda: server.job(stopped)["progress"]["step"] > 3)
    server.end()
    assert not live(server)
    server = start()
    server.wait(lambda: ready(server))
    assert server.job(done["id"])["outputs"] == done["outputs"], server.job(done["id"])
    found = server.job(stopped)
    assert found["state"] in ("queued", "running", "completed"), found
    assert len(server.ask(f"/v1/jobs/{done['id']}/content")[1]) == done["outputs"][0]["bytes"]
    assert server.completed(stopped)["resolved"]["steps"] == LONG["steps"]
    server.end()
