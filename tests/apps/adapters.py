#!/usr/bin/env python3
"""Jobs of a server that name LoRAs: threads and worker processes draw what a batch with that LoRA alone draws, clients
see names and never paths, and what a client may not name is refused.
usage: adapters.py WEFT   (from the top of the tree)"""
import json
import os
import struct
import subprocess
import sys
import tempfile

from served import Served

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from servers import free_port  # noqa: E402

MODEL = "models/pocket"
FIELDS = {"prompt": "a red ball", "num_frames": 1, "steps": 2, "seed": 7, "size": "64x64"}
KEY = "the-key-of-the-adapters"
TENSOR = "blocks.0.attn1.to_q.weight"


def write_lora(path, module, shape, value):
    count = shape[0] * shape[1]
    header = json.dumps({module + ".diff": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{count}f", *([-value] + [value] * (count - 1))))


def shape_of(path, tensor):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))[tensor]["shape"]


def hashes_of_batch(weft, folder, loras, more=()):
    """The frame hashes that commands with one LoRA alone draw."""
    out = []
    for i, lora in enumerate(loras):
        jobs, results = f"{folder}/{i}.jsonl", f"{folder}/alone{i}-{len(more)}"
        with open(jobs, "w") as file:
            file.write(json.dumps({"id": "a", **FIELDS}))
        flags = ["--lora", lora] if lora else []
        subprocess.run([weft, "batch", jobs, "-q", "--model", MODEL, "--threads", "1", "-o", results, *flags, *more], check=True,
                       stdout=subprocess.DEVNULL)
        out.append(json.load(open(results + "/results.jsonl"))["response"]["body"]["framehash"])
    return out


def check_batch(weft, folder, caption):
    """Lines have captions where the command has a language model and the line does not refuse one."""
    jobs, results = folder + "/captions.jsonl", folder + "/captions"
    with open(jobs, "w") as file:
        for i, more in enumerate([{}, {"expand_prompt": True}, {"expand_prompt": False}]):
            file.write(json.dumps({"id": str(i), **FIELDS, "prompt": "orange ring", **more}) + "\n")
    command = [weft, "batch", jobs, "-q", "--model", MODEL, "--threads", "1", "-o", results]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2 and "line 2: expand_prompt is true, but --expand-prompt" in refused.stderr, refused
    for _ in range(2):  # the second time nothing is drawn
        subprocess.run([*command, "--expand-prompt", "auto"], check=True, stdout=subprocess.DEVNULL)
    records = [json.load(open(f"{results}/{i}.png.json"))["request"] for i in range(3)]
    assert [record["prompt"] for record in records] == [caption, caption, "orange ring"], records
    assert [record.get("expanded_from") for record in records] == ["orange ring", "orange ring", None], records


def check_jobs(server, folder, names, expected):
    for _ in range(2):
        for lora, framehash in zip(names, expected):
            done = server.completed(server.submit({**FIELDS, **({} if lora is None else {"lora": lora})}))
            assert done["outputs"][0]["framehash"] == framehash, (lora, done)
            assert done["resolved"].get("lora") == (lora or "none"), done
            assert folder not in json.dumps(done), done
            picture = server.ask(done["outputs"][0]["url"])[1]
            assert b"weft.params/v1" in picture and folder.encode() not in picture, "the picture names a folder"
    assert folder not in server.ask("/v1/jobs")[1].decode()


def check_refusals(server, folder):
    for lora, part in [("nothing", "legal: NAME, NAME:SCALE or NAME:SCALE:EXPERT with a name of none, fast, soft"),
                       ("soft,nothing", "'nothing'"), ("soft:1000", "a scale from -100 to 100"),
                       ("soft:1:high", "this model has one expert"), (folder + "/loras/soft.safetensors", "legal: NAME"),
                       ("/etc/passwd", "legal: NAME"), (5, "lora")]:
        status, body = server.ask("/v1/jobs", {**FIELDS, "lora": lora})
        message = json.loads(body)["error"]["message"]
        assert status == 400 and part in message, (lora, status, body)
        assert not isinstance(lora, str) or lora.startswith("/") or folder not in message, body
    for preset, part in [("nothing", "legal: distill-4, "), ("qwen-image-lightning-4", "belongs to qwen-image, but")]:
        status, body = server.ask("/v1/jobs", {**FIELDS, "steps": 4, "preset": preset})
        assert status == 400 and part in json.loads(body)["error"]["message"], (preset, status, body)
    status, body = server.ask("/v1/jobs", {**FIELDS, "expand_prompt": True})
    assert status == 400 and "expand_prompt is true, legal: false, as this server was started" in body.decode(), body
    status, body = server.ask("/v1/jobs", {**FIELDS, "preset": "distill-4"})
    assert status == 400 and "steps is 2, but the job: preset is distill-4" in body.decode(), body


def check_model(server, folder, adapters):
    status, body = server.ask("/v1/model")
    model = json.loads(body)
    assert status == 200 and model["adapters"] == adapters and model["presets"] == ["distill-4"], body
    assert "lora" not in model["defaults"] and folder not in body.decode(), body


def main(weft):
    with tempfile.TemporaryDirectory(prefix="weft_adapters_") as folder:
        os.mkdir(folder + "/loras")
        weights = next(f"{MODEL}/transformer/{name}" for name in os.listdir(MODEL + "/transformer")
                       if name.endswith(".safetensors"))
        shape = shape_of(weights, TENSOR)
        soft, fast = folder + "/loras/soft.safetensors", folder + "/loras/fast.safetensors"
        write_lora(soft, "diffusion_model.blocks.0.self_attn.q", shape, 0.5)
        write_lora(fast, "diffusion_model.blocks.0.self_attn.q", shape, -0.25)
        with open(folder + "/loras/notes.txt", "w") as file:
            file.write("no adapter")
        files = [None, soft, fast + ":0.5", soft + "," + fast]
        names = [None, "soft", "fast:0.5", "soft,fast"]
        expected = hashes_of_batch(weft, folder, files)
        assert len(set(expected)) == len(files), expected

        with open(folder + "/key", "w") as file:
            file.write(KEY)
        port = free_port()
        command = [weft, "serve", "--model", MODEL, "--listen", "", "--drain-seconds", "9", "--json", "--api-key-file",
                   folder + "/key", "-o", folder + "/out"]
        with_adapters = [*command, "--adapters", folder + "/loras"]
        ranks = ["--ranks", "2", "--layout", "tensor=2"]
        for more in [], ["--workers", "processes"], ranks:
            server = Served([*with_adapters, *more], port, KEY)
            server.wait(lambda: server.ask("/health/ready")[0] == 200)
            check_model(server, folder, ["fast", "soft"])
            check_jobs(server, folder, names, expected if more != ranks else hashes_of_batch(weft, folder, files, ranks))
            if not more:
                check_refusals(server, folder)
                done = server.completed(server.submit({**{k: v for k, v in FIELDS.items() if k != "steps"},
                                                       "preset": "distill-4"}))
                assert done["resolved"]["steps"] == 4 and "preset" not in done["resolved"], done
                assert done["request"]["preset"] == "distill-4", done
            server.end()

        # Captions are written where the server has a language model, by threads and by worker processes.
        captions = set()
        for more in [], ["--workers", "processes"]:
            server = Served([*command, "--expand-prompt", "auto", *more], port, KEY)
            server.wait(lambda: server.ask("/health/ready")[0] == 200)
            assert json.loads(server.ask("/v1/model")[1])["expand_prompt"] is True
            done = server.completed(server.submit({**FIELDS, "prompt": "orange ring", "expand_prompt": True}))
            caption = done["outputs"][0]["prompt"]
            captions.add(caption)
            assert "orange ring" in caption and caption != "orange ring", done
            assert done["resolved"]["prompt"] == "orange ring" and done["resolved"]["expand_prompt"] is True, done
            record = json.load(open(f"{folder}/out/{done['id']}.png.json"))["request"]
            assert record["prompt"] == caption and record["expanded_from"] == "orange ring", record
            same = server.completed(server.submit({**FIELDS, "prompt": caption}))
            assert same["outputs"][0]["framehash"] == done["outputs"][0]["framehash"], same
            assert "prompt" not in same["outputs"][0], same
            server.end()
        assert len(captions) == 1, captions
        check_batch(weft, folder, captions.pop())

        # A server whose own LoRA is not that of every job, and which has no adapters.
        server = Served([*command, "--lora", soft], port, KEY)
        server.wait(lambda: server.ask("/health/ready")[0] == 200)
        for lora, framehash, shown in [(None, expected[1], "soft"), ("none", expected[0], "none")]:
            done = server.completed(server.submit({**FIELDS, **({"lora": lora} if lora else {})}))
            assert done["outputs"][0]["framehash"] == framehash and done["resolved"]["lora"] == shown, done
        status, body = server.ask("/v1/jobs", {**FIELDS, "lora": "soft"})
        assert status == 400 and "of which this server has none" in body.decode(), body
        server.end()

        # A file that fits no module refuses the start, and so does a folder that is none.
        write_lora(folder + "/loras/other.safetensors", "unet.down", [4, 4], 1.0)
        for adapters, code, part in [(folder + "/loras", 3, 'lacks 1 modules: "unet.down"'),
                                     (folder + "/nowhere", 2, "legal: a folder")]:
            refused = subprocess.run([*command[:4], "-o", folder + "/out", "--listen", "127.0.0.1:0", "--adapters", adapters],
                                     capture_output=True, text=True)
            assert refused.returncode == code and part in refused.stderr, refused


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
