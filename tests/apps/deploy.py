#!/usr/bin/env python3
"""Checks the manifests of apps/deploy against the parts of Kubernetes' API that they use, and runs their pods as processes.

usage: deploy.py WEFT (from the root of the tree)
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import jsonschema
import yaml

WEFT = os.path.abspath(sys.argv[1])
DEPLOY = pathlib.Path("apps/deploy")
SMALL = ["--size", "64x64", "--num-frames", "5", "--steps", "2", "--threads", "1", "--progress", "none"]


def closed(required="", **properties):
    """An object that has no other fields; those named in `required` must be there."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "array", "items": TEXT}
NAMED = closed("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})
LABELS = {"type": "object", "additionalProperties": TEXT}
AMOUNTS = closed(cpu=TEXT, memory=TEXT)
CONTAINER = closed(
    "name image", name=TEXT, image=TEXT, command=TEXTS, args=TEXTS,
    env={"type": "array", "items": closed("name value", name=TEXT, value=TEXT)},
    resources=closed(requests=AMOUNTS, limits=AMOUNTS),
    volumeMounts={"type": "array", "items": closed("name mountPath", name=TEXT, mountPath=TEXT)})


def pod(restart):
    spec = closed(
        "containers", subdomain=TEXT, restartPolicy={"enum": restart}, containers={"type": "array", "items": CONTAINER},
        volumes={"type": "array", "items": closed(
            "name persistentVolumeClaim", name=TEXT, persistentVolumeClaim=closed("claimName", claimName=TEXT))})
    return closed("spec", metadata=closed(labels=LABELS), spec=spec)


def replicas():
    return closed("replicas template", replicas=COUNT, template=pod([]))


SCHEMAS = {
    ("v1", "Service"): closed("selector", clusterIP={"const": "None"}, publishNotReadyAddresses={"type": "boolean"},
                              selector=LABELS),
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


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
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}  # no DNS knows the service
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


def main():
    doctor = subprocess.run([WEFT, "doctor"], capture_output=True, text=True).stdout
    checks = {"batch_job.yaml": (check_batch_job, None), "ranks_job.yaml": (check_ranks_job, "ucx"),
              "ranks_mpijob.yaml": (check_mpi_job, "mpi")}
    assert set(checks) == {path.name for path in DEPLOY.glob("*.yaml")}
    for name, (check, needed) in checks.items():
        if needed and any(line.split()[1:2] == [needed] and "not built" in line for line in doctor.splitlines()):
            documents(name)
            print(f"{name}: fields alone, {needed} is not built")
            continue
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder)
            (data / "model").symlink_to(pathlib.Path("models/pocket").resolve())
            check(data)
        print(f"{name}: ok")


if __name__ == "__main__":
    main()
