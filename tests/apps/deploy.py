#!/usr/bin/env python3
"""Checks the manifests of apps/deploy against the parts of Kubernetes' API that they use, and runs their pods as processes,
likewise the unit of systemd and the command of the container's image.

usage: deploy.py WEFT (from the root of the tree)
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import jsonschema
import yaml

sys.path.insert(0, "tests")
import containerfile  # noqa: E402
from served import Served, after, check_server  # noqa: E402
from servers import free_port  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
DEPLOY = pathlib.Path("apps/deploy")
SMALL = ["--size", "64x64", "--num-frames", "5", "--steps", "2", "--threads", "1", "--progress", "none"]


def closed(required="", **properties):
    """An object that has no other fields; those named in `required` must be there."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


TEXT, COUNT, SWITCH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS = {"type": "array", "items": TEXT}
NAMED = closed("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})
LABELS = {"type": "object", "additionalProperties": TEXT}
AMOUNTS = closed(cpu=TEXT, memory=TEXT)
PROBE = closed(
    httpGet=closed("path port", path=TEXT, port=TEXT), exec=closed("command", command=TEXTS),
    periodSeconds=COUNT, timeoutSeconds=COUNT, failureThreshold=COUNT)
CONTAINER = closed(
    "name image", name=TEXT, image=TEXT, command=TEXTS, args=TEXTS,
    env={"type": "array", "items": closed("name value", name=TEXT, value=TEXT)},
    ports={"type": "array", "items": closed("containerPort", name=TEXT, containerPort=PORT)},
    startupProbe=PROBE, livenessProbe=PROBE, readinessProbe=PROBE,
    resources=closed(requests=AMOUNTS, limits=AMOUNTS),
    securityContext=closed(allowPrivilegeEscalation=SWITCH, readOnlyRootFilesystem=SWITCH, capabilities=closed(drop=TEXTS)),
    volumeMounts={"type": "array", "items": closed("name mountPath", name=TEXT, mountPath=TEXT, readOnly=SWITCH)})
VOLUME = {**closed(
    "name", name=TEXT, persistentVolumeClaim=closed("claimName", claimName=TEXT), secret=closed("secretName", secretName=TEXT),
    emptyDir=closed(medium={"const": "Memory"}, sizeLimit=TEXT)), "minProperties": 2, "maxProperties": 2}


def pod(restart):
    spec = closed(
        "containers", subdomain=TEXT, restartPolicy={"enum": restart}, containers={"type": "array", "items": CONTAINER},
        volumes={"type": "array", "items": VOLUME}, terminationGracePeriodSeconds=COUNT,
        automountServiceAccountToken=SWITCH, enableServiceLinks=SWITCH,
        securityContext=closed(
            runAsNonRoot=SWITCH, runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT,
            fsGroupChangePolicy={"enum": ["OnRootMismatch", "Always"]},
            seccompProfile=closed("type", type={"enum": ["RuntimeDefault", "Localhost", "Unconfined"]})))
    return closed("spec", metadata=closed(labels=LABELS), spec=spec)


def replicas():
    return closed("replicas template", replicas=COUNT, template=pod([]))


SCHEMAS = {
    ("v1", "Service"): closed(
        "selector", clusterIP={"const": "None"}, publishNotReadyAddresses=SWITCH, selector=LABELS,
        ports={"type": "array", "items": closed("port", name=TEXT, port=PORT, targetPort=TEXT)}),
    ("v1", "PersistentVolumeClaim"): closed(
        "accessModes resources", accessModes={"type": "array", "items": {"enum": ["ReadWriteOnce", "ReadWriteOncePod"]}},
        resources=closed("requests", requests=closed("storage", storage=TEXT)), storageClassName=TEXT),
    ("apps/v1", "Deployment"): closed(
        "selector template", replicas=COUNT, strategy=closed("type", type={"enum": ["Recreate", "RollingUpdate"]}),
        selector=closed("matchLabels", matchLabels=LABELS), template=pod(["Always"])),
    ("batch/v1", "Job"): closed("template", completionMode={"const": "Indexed"}, completions=COUNT, parallelism=COUNT,
                                backoffLimit=COUNT, template=pod(["Never", "OnFailure"])),
    ("kubeflow.org/v2beta1", "MPIJob"): closed(
        "mpiReplicaSpecs", slotsPerWorker=COUNT,
        runPolicy=closed(cleanPodPolicy={"enum": ["None", "Running", "All"]}, backoffLimit=COUNT),
        mpiReplicaSpecs=closed("Launcher Worker", Launcher=replicas(), Worker=replicas())),
}


def documents(name):
    """The manifest's objects by kind; each has the fields of its kind and no others."""
    found = {}
    for document in yaml.safe_load_all((DEPLOY / name).read_text()):
        schema = closed("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=NAMED,
                        spec=SCHEMAS[document["apiVersion"], document["kind"]])
        jsonschema.validate(document, schema)
        found[document["kind"]] = document
    return found


def container_of(template):
    """The only container. Every folder that it mounts is one of its pod's volumes."""
    (container,) = template["spec"]["containers"]
    volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
    assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes, container
    return container


def command_of(container, data, environment):
    """What the pod runs, with the files of /data in a folder, and $(NAME) replaced as Kubernetes does."""
    words = container["command"] + container["args"]
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return [WEFT if word == "weft" else word.replace("/data/", f"{data}/") for word in words]


def start(command, environment):
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def end(processes):
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, (process.args, process.returncode, output, errors)


def pods_of(job, data, extra, environment):
    """Starts the pods of an indexed Job."""
    container = container_of(job["spec"]["template"])
    given = {one["name"]: one["value"] for one in container.get("env", [])}
    for index in range(job["spec"]["completions"]):
        own = {**given, **environment, "JOB_COMPLETION_INDEX": str(index)}
        yield start(command_of(container, data, own) + extra, own)


def check_ranks_job(data):
    found = documents("ranks_job.yaml")
    service, job = found["Service"], found["Job"]
    spec, template = job["spec"], job["spec"]["template"]
    environment = {one["name"]: one["value"] for one in container_of(template)["env"]}
    assert environment["WEFT_RANKS"] == str(spec["completions"]) == str(spec["parallelism"]), spec
    assert template["spec"]["subdomain"] == service["metadata"]["name"], service
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items(), service
    assert environment["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}", environment
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # no DNS knows the service
    end(list(pods_of(job, data, SMALL, here)))
    sidecar = json.loads((data / "clips/ring.mp4.json").read_text())
    assert sidecar["engine"]["layout"] == "ulysses=2", sidecar["engine"]


def check_batch_job(data):
    job = documents("batch_job.yaml")["Job"]
    shards = job["spec"]["completions"]
    with open(data / "jobs.jsonl", "w") as jobs:
        for index in range(shards + 1):
            jobs.write(json.dumps({"id": f"job-{index}", "prompt": "a red ball", "seed": index}) + "\n")
    end(list(pods_of(job, data, SMALL, {})))
    drawn = sorted(clip.name for clip in (data / "clips").glob("job-*.mp4"))
    assert drawn == [f"job-{index}.mp4" for index in range(shards + 1)], drawn
    assert len(list((data / "clips").glob(f"results-*-of-{shards}.jsonl"))) == shards


def check_mpi_job(data):
    spec = documents("ranks_mpijob.yaml")["MPIJob"]["spec"]
    container_of(spec["mpiReplicaSpecs"]["Worker"]["template"])
    launcher = container_of(spec["mpiReplicaSpecs"]["Launcher"]["template"])
    ranks = spec["mpiReplicaSpecs"]["Worker"]["replicas"] * spec["slotsPerWorker"]
    assert launcher["command"][:3] == ["mpirun", "-n", str(ranks)], launcher
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    end([start(command_of(launcher, data, {}) + SMALL, root)])
    assert json.loads((data / "clips/ring.mp4.json").read_text())["engine"]["layout"] == "ulysses=2"


def free_folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


KEY = "key-of-this-test-" * 2


def check_deployment(data):
    found = documents("serve_deployment.yaml")
    spec, pod_of = found["Deployment"]["spec"], found["Deployment"]["spec"]["template"]
    container = container_of(pod_of)
    # The store of the jobs is of one server.
    assert spec["replicas"] == 1 and spec["strategy"]["type"] == "Recreate", spec
    for selector in (spec["selector"]["matchLabels"], found["Service"]["spec"]["selector"]):
        assert selector.items() <= pod_of["metadata"]["labels"].items(), selector
    (port,) = container["ports"]
    assert [one["targetPort"] for one in found["Service"]["spec"]["ports"]] == [port["name"]], found["Service"]
    words = container["command"] + container["args"]
    assert after(words, "--listen") == f"0.0.0.0:{port['containerPort']}", words
    assert pod_of["spec"]["terminationGracePeriodSeconds"] > int(after(words, "--drain-seconds")), pod_of["spec"]

    volumes = {volume["name"]: volume for volume in pod_of["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    store = mounts[after(words, "-o").rstrip("/")]
    claim = volumes[store["name"]]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"] and not store.get("readOnly"), store
    assert "secret" in volumes[mounts[os.path.dirname(after(words, "--api-key-file"))]["name"]], volumes

    folders = {path: data if path == "/data" else free_folder(data / mount["name"]) for path, mount in mounts.items()}
    (folders["/run/secrets/weft"] / "api-key").write_text(KEY)
    here = free_port()

    def placed(word):
        word = re.sub("|".join(f"{path}(?=/)" for path in folders), lambda path: str(folders[path[0]]), word)
        return word.replace(f"127.0.0.1:{port['containerPort']}", f"127.0.0.1:{here}")

    command = [WEFT, *(placed(word) for word in words[1:])]

    def asks(probe):
        if "exec" in probe:
            return lambda server: subprocess.run([placed(word) for word in probe["exec"]["command"]],
                                                 capture_output=True).returncode == 0
        assert probe["httpGet"]["port"] == port["name"], probe
        return lambda server: server.ask(probe["httpGet"]["path"], key=False)[0] == 200

    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"], container
    check_server(lambda: Served(command, here, KEY), asks(container["livenessProbe"]), asks(container["readinessProbe"]))


def settings_of(unit):
    """The values of each setting of a unit, in their order."""
    found = {}
    for line in unit.splitlines():
        if re.match(r"\w+=", line):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def verify_unit(unit, folder):
    """systemd's own check, where it is installed."""
    if not shutil.which("systemd-analyze"):
        return " without systemd-analyze"
    path = folder / "weft.service"
    path.write_text(unit.replace("ExecStart=weft ", f"ExecStart={WEFT} "))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
    faults = [line for line in done.stderr.splitlines() if "weft.service" in line]
    assert done.returncode == 0 and not faults, done.stderr
    return ""


def check_unit(data):
    unit = (DEPLOY / "weft.service").read_text()
    settings = settings_of(unit)
    note = verify_unit(unit, data)
    environment = dict(pair.split("=", 1) for pair in settings["Environment"][0].split())
    environment["MODEL"] = str(data / "model")
    words = settings["ExecStart"][0].split()
    (name, _), = [credential.split(":") for credential in settings["LoadCredential"]]
    assert after(words, "--api-key-file") == f"%d/{name}", words
    assert after(words, "-o") == f"%S/{settings['StateDirectory'][0]}/", words
    assert int(settings["TimeoutStopSec"][0]) > int(after(words, "--drain-seconds")), settings

    (free_folder(data / "credentials") / name).write_text(KEY)
    places = {"%d": data / "credentials", "%S": data / "state"}

    def command(**changed):
        given = {**environment, **changed}
        for word in words[1:]:
            if re.fullmatch(r"\$\w+", word):
                yield from given[word[1:]].split()
            else:
                word = re.sub(r"\$\{(\w+)\}", lambda variable: given[variable[1]], word)
                yield re.sub("%[a-zA-Z]", lambda place: str(places[place[0]]), word)

    here = free_port()
    check_server(lambda: Served([WEFT, *command()], here, KEY), lambda server: server.ask("/health/live", key=False)[0] == 200,
                 lambda server: server.ask("/health/ready")[0] == 200)
    final = settings["RestartPreventExitStatus"][0].split()
    for wrong in ({"LISTEN": "nowhere"}, {"MODEL": str(data)}, {"FLAGS": "--memory-limit 1M"}):
        ended = subprocess.run([WEFT, *command(**wrong)], capture_output=True, text=True, timeout=120)
        assert str(ended.returncode) in final, (wrong, ended.returncode, ended.stderr)
    return note


def check_image(data):
    *_, stage = containerfile.stages((DEPLOY / "Containerfile").read_text())
    folder = containerfile.last(stage, "VOLUME")
    words = containerfile.start(stage)
    assert after(words, "-o") == folder + "/" and containerfile.last(stage, "STOPSIGNAL") == "SIGTERM", words
    assert containerfile.last(stage, "USER").split(":")[0] not in ("0", "root"), stage
    port = after(words, "--listen").split(":")[1]
    assert port == containerfile.last(stage, "EXPOSE"), words
    (data / "key").write_text(KEY)
    free_folder(data / "jobs")
    changed = {"-o": f"{data / 'jobs'}/", "--api-key-file": str(data / "key"), "--model": str(data / "model")}
    command = [changed.get(before, word) for before, word in zip(["", *words], words)]
    here = free_port()
    health = containerfile.health(stage).replace(f":{port}/", f":{here}/")
    check_server(lambda: Served([WEFT, *command[1:], "--drain-seconds", "1"], here, KEY),
                 lambda server: subprocess.run(health, shell=True, capture_output=True).returncode == 0,
                 lambda server: server.ask("/health/ready")[0] == 200)


def main():
    doctor = subprocess.run([WEFT, "doctor"], capture_output=True, text=True).stdout
    checks = {"batch_job.yaml": (check_batch_job, None), "ranks_job.yaml": (check_ranks_job, "ucx"),
              "ranks_mpijob.yaml": (check_mpi_job, "mpi"), "serve_deployment.yaml": (check_deployment, None),
              "weft.service": (check_unit, None), "Containerfile": (check_image, None)}
    assert set(checks) == {path.name for path in DEPLOY.iterdir() if path.suffix != ".sbatch"}
    for name, (check, needed) in checks.items():
        if needed and any(line.split()[1:2] == [needed] and "not built" in line for line in doctor.splitlines()):
            documents(name)
            print(f"{name}: fields alone, {needed} is not built")
            continue
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder)
            (data / "model").symlink_to(pathlib.Path("models/pocket").resolve())
            note = check(data)
        print(f"{name}: ok{note or ''}")


if __name__ == "__main__":
    main()
