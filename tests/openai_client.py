#!/usr/bin/env python3
"""OpenAI's own client, as PyPI has it, against a server: every route, and every refusal at once, with its typed exception.
usage: openai_client.py WEFT   (from the top of the tree, by a Python that has openai; apps/setup.sh tests makes one)"""
import base64
import io
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import urllib.request
import warnings

import openai

from servers import free_port

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "apps"))
from served import Served  # noqa: E402

warnings.filterwarnings("ignore", category=DeprecationWarning)  # the vendor's own service of videos has ended
KEY = "0123456789abcdef-openai"
TINY = {"num_frames": 5, "num_inference_steps": 2, "seed": 7}
LONG = {"num_frames": 5, "num_inference_steps": 200, "seed": 7}
QUEUED = {**LONG, "num_frames": 65}  # longer than the model was trained for, so the queue draws it
PNG, JPEG = b"\x89PNG", b"\xff\xd8\xff"
faults = 0


def expect(what, found, wanted=True):
    global faults
    print(f"{'ok' if found == wanted else 'FAULT'}: {what}" + ("" if found == wanted else f": {found!r}, wanted {wanted!r}"))
    faults += found != wanted


class Server:
    def __init__(self, weft, folder, model, *flags):
        key = folder / "key"
        key.write_text(KEY)
        self.command = [weft, "serve", "--model", model, "--listen", "", "--drain-seconds", "1",
                        "--served-model-name", "sora-2,gpt-image-2.5-flare", "--api-key-file", str(key), "-o", f"{folder}/results", *flags]
        self.results = folder / "results"
        self.port = free_port()
        self.start()
        # The second one refuses answers that its types do not allow. Of videos they allow the vendor's four sizes alone.
        self.client, self.strict = (
            openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=KEY, _strict_response_validation=strict) for strict in (False, True))

    def start(self):
        self.served = Served(self.command, self.port, KEY)
        self.served.wait(lambda: self.served.ask("/health/ready")[0] == 200)

    def kill(self):
        self.served.process.send_signal(signal.SIGKILL)
        self.served.process.communicate()

    def requests(self):
        """The requests that were answered, but for those that ask for this number and were refused."""
        metrics = self.served.ask("/metrics")[1].decode()
        return sum(float(count) for count in re.findall(r"^weft_requests_total\{.*\} (\S+)$", metrics, re.M))

    def refused(self, what, kind, call, code=None, param=None):
        """`call` raises `kind` after one request."""
        before = self.requests()
        try:
            call()
            expect(f"{what} is refused", False)
            return
        except openai.APIStatusError as error:
            expect(f"{what}: its exception", type(error).__name__, kind.__name__)
            expect(f"{what}: a message", bool(error.message) and error.type in ("invalid_request_error", "server_error"))
            if code:
                expect(f"{what}: its code", error.code, code)
            if param:
                expect(f"{what}: its parameter", error.param, param)
        # One more is the request for the number before.
        expect(f"{what}: one request, without retries", self.requests() - before, 2)


def check_models(server):
    models = server.strict.models.list().data
    expect("models have ids", [model.id for model in models][1:], ["sora-2", "gpt-image-2.5-flare"])
    expect("a model", server.strict.models.retrieve(models[0].id).object, "model")
    server.refused("an unknown model's name", openai.NotFoundError, lambda: server.client.models.retrieve("none"))
    return models[0].id


def check_videos(server, model):
    videos = server.client.videos
    body = b'{"prompt": "a red ball", "size": "64x64", "num_frames": 5, "num_inference_steps": 2}'
    by_hand = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/videos", body,
                                     {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    with urllib.request.urlopen(by_hand) as answer:
        expect("a video by JSON", answer.status, 200)
    video = videos.create_and_poll(prompt="a red ball", model="sora-2", size="64x64", extra_body=TINY, poll_interval_ms=50)
    expect("a polled video", (video.status, video.progress, video.size, video.model), ("completed", 100, "64x64", "sora-2"))
    expect("its id", bool(re.fullmatch(r"video_[0-9a-f]{24}", video.id)))
    expect("its times", 0 <= video.completed_at - video.created_at < 600 and video.expires_at > video.completed_at)
    type(video).model_validate({**video.to_dict(), "size": "720x1280"})
    expect("the same, retrieved", videos.retrieve(video.id), video)
    movie = videos.download_content(video.id).read()
    expect("its movie", movie[4:8], b"ftyp")
    thumbnail = videos.download_content(video.id, variant="thumbnail").read()
    expect("its thumbnail", thumbnail[:4] in (PNG, JPEG[:4]))
    remixed = videos.remix(video.id, prompt="a blue ball")
    expect("a remix", (remixed.remixed_from_video_id, remixed.prompt, remixed.size), (video.id, "a blue ball", "64x64"))
    expect("the remix is drawn", videos.poll(remixed.id, poll_interval_ms=50).status, "completed")
    check_early(server, model)
    check_list(videos)
    deleted = videos.delete(video.id)
    expect("a deleted video", (deleted.id, deleted.deleted, deleted.object), (video.id, True, "video.deleted"))
    server.refused("a deleted video", openai.NotFoundError, lambda: videos.retrieve(video.id), "not_found")


def check_early(server, model):
    videos = server.client.videos
    long = videos.create(prompt="a red ball", model=model, size="64x64", extra_body=QUEUED)
    expect("a new video", long.status in ("queued", "in_progress") and long.progress < 100)
    server.refused("a movie before its time", openai.NotFoundError, lambda: videos.download_content(long.id), "video_not_ready")
    expect("a running video is deleted", videos.delete(long.id).deleted)
    server.refused("and is gone", openai.NotFoundError, lambda: videos.retrieve(long.id))


def check_list(videos):
    """Both orders, by pages of one that the client asks for by itself."""
    newest = [video.id for video in videos.list(limit=1)]
    oldest = [video.id for video in videos.list(limit=1, order="asc")]
    expect("a list in both orders", newest, oldest[::-1])
    expect("of every video once", (len(newest), len(set(newest))), (3, 3))
    page = videos.list(limit=2)
    expect("a page has more", (len(page.data), page.has_more, page.has_next_page()), (2, True, True))
    expect("the next one ends", [video.id for video in videos.list(limit=2, after=page.data[-1].id).data], newest[2:])


def check_refusals(server):
    videos, images = server.client.videos, server.client.images
    refused, bad = server.refused, openai.BadRequestError
    refused("a wrong size", bad, lambda: videos.create(prompt="x", size="65x64"), "invalid_request", "size")
    refused("a wrong size of a picture", bad, lambda: images.generate(prompt="x", size="65x64"), "invalid_request", "size")
    refused("an unknown field", bad, lambda: videos.create(prompt="x", extra_body={"colour": "red"}), "unsupported_parameter", "colour")
    refused("an unknown field of a picture", bad, lambda: images.generate(prompt="x", extra_body={"colour": "red"}),
            "unsupported_parameter", "colour")
    refused("an unknown id", openai.NotFoundError, lambda: videos.retrieve("video_" + "0" * 24), "not_found")
    refused("a picture where none fits", bad,
            lambda: videos.create(prompt="x", input_reference=("a.png", io.BytesIO(PNG), "image/png")), "unsupported_parameter", "input_reference")
    refused("an edit by a model that edits nothing", bad,
            lambda: images.edit(prompt="x", image=("a.png", io.BytesIO(PNG), "image/png")), "unsupported_parameter", "image")
    refused("two pictures to edit", bad,
            lambda: images.edit(prompt="x", image=[("a.png", io.BytesIO(PNG)), ("b.png", io.BytesIO(PNG))]), "unsupported_parameter", "image")
    refused("a transparent picture", bad, lambda: images.generate(prompt="x", background="transparent"), "invalid_request", "background")
    refused("a format that no writer has", bad, lambda: images.generate(prompt="x", output_format="gif"), "invalid_request", "output_format")
    refused("eleven pictures", bad, lambda: images.generate(prompt="x", n=11), "invalid_request", "n")
    refused("an unknown model", openai.NotFoundError, lambda: images.generate(prompt="x", model="dall-e-9"), "model_not_found", "model")
    stranger = server.client.with_options(api_key="another-key-of-16-characters")
    refused("a wrong key", openai.AuthenticationError, lambda: stranger.models.list(), "invalid_api_key")


def check_images(server):
    images = server.strict.images
    few = {"num_inference_steps": 2, "seed": 7}
    one = images.generate(prompt="a red ball", model="gpt-image-2.5-flare", size="64x64", quality="auto", user="me", extra_body=few)
    picture = base64.b64decode(one.data[0].b64_json)
    expect("a picture in base64", picture[:4], PNG)
    expect("its facts", (one.output_format, one.size, one.background, one.usage.total_tokens), ("png", "64x64", "opaque", 0))
    expect("its time", abs(one.created - time.time()) < 600)
    three = images.generate(prompt="a red ball", size="64x64", n=3, response_format="url", extra_body=few)
    expect("three pictures by address", [image.b64_json for image in three.data], [None] * 3)
    fetched = []
    for image in three.data:
        with urllib.request.urlopen(urllib.request.Request(image.url, headers={"Authorization": f"Bearer {KEY}"})) as answer:
            fetched.append(answer.read())
    expect("which differ", len(set(fetched)), 3)
    small = images.generate(prompt="a red ball", size="64x64", output_format="jpeg", output_compression=60, extra_body=few)
    expect("a JPEG", base64.b64decode(small.data[0].b64_json)[:3], JPEG)
    follow = images.generate(prompt="a red ball", size="64x64", n=2, extra_body={"num_inference_steps": 2})
    expect("seeds that follow the server's", [image.seed for image in follow.data], [7, 8])
    default = images.generate(prompt="a red ball", size="auto", extra_body=few)
    expect("a size by the model", bool(re.fullmatch(r"\d+x\d+", default.size)))
    for steps in (3, 20):  # all of them, however soon the picture is drawn
        stream = images.generate(prompt="a red ball", size="64x64", stream=True, partial_images=3,
                                 extra_body={"num_inference_steps": steps, "seed": 7})
        events = list(stream)
        partial = events[:-1]
        expect("a stream ends with the picture", events[-1].type, "image_generation.completed")
        expect("before it are pictures on their way", [event.type for event in partial], ["image_generation.partial_image"] * 3)
        expect("which are counted", [event.partial_image_index for event in partial], [0, 1, 2])
    expect("events are pictures", [base64.b64decode(event.b64_json)[:4] for event in events], [PNG] * len(events))
    expect("the completed one has a usage", events[-1].usage.total_tokens, 0)
    images.generate(prompt="a red ball", size="64x64", n=3, stream=True, extra_body={"num_inference_steps": 200}).close()
    newest = server.served.wait(lambda: (job := json.loads(server.served.ask("/v1/jobs?limit=1")[1])["data"][0])["finished"] and job)
    expect("a stream that is closed ends its jobs", newest["state"], "cancelled")


def check_kill(server):
    """A job survives the end of its server under its id."""
    videos = server.client.videos
    video = videos.create(prompt="a red ball", size="64x64", extra_body={**LONG, "num_inference_steps": 100})
    server.kill()
    unknown = [server.results / f"video_{'0' * 24}.{name}" for name in ("image.png", "reference_2", "linked", "txt")]
    others = [server.results / name for name in ("holiday.image.png", "video_1.image.png")]
    for path in unknown + others:
        path.write_bytes(PNG)
    server.start()
    expect("what was sent with jobs that no store knows is gone", [path.name for path in unknown if path.exists()], [unknown[-1].name])
    expect("other files stay", [path.exists() for path in others], [True, True])
    again = videos.poll(video.id, poll_interval_ms=50)
    expect("a killed server's video is drawn by the next", (again.id, again.status), (video.id, "completed"))


def check_video_model(server):
    check_videos(server, check_models(server))
    check_images(server)
    check_refusals(server)
    check_kill(server)


def check_picture_model(server):
    images = server.strict.images
    two = images.generate(prompt="a red ball", size="32x48", n=2, output_format="webp", extra_body={"num_inference_steps": 2})
    expect("two pictures of a model of pictures", (two.size, two.output_format), ("32x48", "webp"))
    expect("of random seeds", len({image.b64_json for image in two.data}), 2)
    check_edits(server, images, two.data[0])
    events = list(images.generate(prompt="a red ball", size="32x32", stream=True, partial_images=2))
    expect("its stream without previews is the picture", [event.type for event in events], ["image_generation.completed"])


def check_edits(server, images, small):
    def file(image):
        return "a.webp", base64.b64decode(image.b64_json), "image/webp"

    few = {"num_inference_steps": 2}
    pictures = [file(image) for image in images.generate(prompt="a ball", size="64x64", n=2, output_format="webp", extra_body=few).data]
    server.refused("a small second picture", openai.BadRequestError,
                   lambda: images.edit(prompt="a hat", image=[pictures[0], file(small)], size="32x32"), "invalid_request", "image")
    one = images.edit(prompt="a hat", image=pictures[0], size="32x32", extra_body={**few, "seed": 3})
    expect("a picture is edited", (one.size, base64.b64decode(one.data[0].b64_json)[:4]), ("32x32", PNG))
    two = images.edit(prompt="a hat", image=pictures, size="32x32", n=2, extra_body=few)
    expect("two pictures are edited twice", len({image.b64_json for image in two.data}), 2)
    plain = images.generate(prompt="a hat", size="32x32", extra_body={**few, "seed": 3})
    expect("an edit heeds its picture", plain.data[0].b64_json != one.data[0].b64_json)


def main():
    for model, flags, check in (("models/pocket", ["--preview", "proj", "--seed", "7"], check_video_model),
                                ("tests/golden/pipeline_flux2_klein/model", ["--size", "32x32"], check_picture_model)):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(sys.argv[1], pathlib.Path(folder), model, *flags)
            try:
                check(server)
                server.served.end()
            except BaseException:
                server.kill()
                raise
    print(f"openai {openai.__version__}: {faults} faults")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
