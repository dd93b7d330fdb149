"""Makes the first inputs of every fuzz target: small files that are well-formed or nearly so. Findings are
added by hand. Run it from the repository's root. It needs ffmpeg for the clips."""
import json
import pathlib
import struct
import subprocess
import tempfile
import zlib

GOLDEN = pathlib.Path("tests/golden")
CORPUS = pathlib.Path("tests/fuzz/corpus")


def put(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors(tensors, metadata=None, data=None, pad=0):
    header = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + (bytes(range(at)) if data is None else data)


def weights():
    put("safetensors", "two", safetensors([("a", "F32", [2], 8), ("b", "U8", [1, 3], 3)]))
    put("safetensors", "metadata", safetensors([("a", "BF16", [2, 2], 8)], {"format": "pt"}, pad=3))
    put("safetensors", "scalar_empty", safetensors([("s", "F64", [], 8), ("e", "I64", [3, 0], 0)]))
    put("safetensors", "every_dtype", safetensors(
        [(d, d, [1], n) for d, n in [("F16", 2), ("I8", 1), ("I16", 2), ("I32", 4), ("BOOL", 1),
                                     ("F8_E4M3", 1), ("F8_E5M2", 1)]]))
    put("safetensors", "none", safetensors([]))
    put("safetensors", "nan", safetensors([("a", "F32", [2], 8)], data=struct.pack("<ff", float("nan"), float("inf"))))
    put("safetensors", "hole", safetensors([("a", "F32", [2], 8)], data=b"").replace(b"[0,8]", b"[4,12]"))
    put("safetensors", "huge_shape", safetensors([("a", "F32", [2 ** 40, 2 ** 40], 0)]))
    put("safetensors", "lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    good = {"a": "a.safetensors", "b": "a.safetensors", "c": "b.safetensors"}
    for name, weight_map in [("good", good), ("absent", good | {"d": "c.safetensors"}),
                             ("escape", good | {"c": "../b.safetensors"}), ("wrong", good | {"a": "b.safetensors"})]:
        put("safetensors_index", name, json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))


def configs():
    model = GOLDEN / "pipeline_t2v/model"
    copies = {
        "transformer": model / "transformer/config.json", "vae": model / "vae/config.json",
        "vae_patch": GOLDEN / "vae_patch2_decode3/model/vae/config.json",
        "text_encoder": model / "text_encoder/config.json",
        "qwen2": GOLDEN / "llm_qwen2_bias/model/config.json",
        "qwen3": GOLDEN / "llm_qwen3_tied/model/config.json",
        "unipc": GOLDEN / "scheduler_unipc_n4_s3_0/model/scheduler/scheduler_config.json",
        "dpmpp": GOLDEN / "scheduler_dpmpp_n4_s3_0/model/scheduler/scheduler_config.json",
        "euler": GOLDEN / "scheduler_euler_n4_s3_0/model/scheduler/scheduler_config.json"}
    for name, path in copies.items():
        put("config", name, path.read_bytes())
    put("config", "original", json.dumps({
        "model_type": "t2v", "dim": 1536, "num_heads": 12, "num_layers": 30, "ffn_dim": 8960, "in_dim": 16,
        "out_dim": 16, "freq_dim": 256, "text_len": 512, "eps": 1e-6, "patch_size": [1, 2, 2], "qk_norm": True}))
    put("model_index", "pocket", pathlib.Path("models/pocket/model_index.json").read_bytes())
    put("model_index", "two_experts", (GOLDEN / "pipeline_two_experts/model/model_index.json").read_bytes())
    put("model_index", "weft", pathlib.Path("models/pocket/weft.json").read_bytes())
    for case in ["scheduler_unipc_wan_n4_s5_0", "scheduler_euler_n4_s3_0", "noise_torch_cpu", "pipeline_t2v",
                 "pipeline_two_experts", "dit_wan_original_names", "vae21_tiny_decode1"]:
        put("verify_case", case, (GOLDEN / case / "case.json").read_bytes())
    put("verify_case", "tokenizer", json.dumps(
        {"stage": "tokenizer", "tolerance": 0, "max_length": 8, "texts": ["a b", ""], "ids": [[5, 1], [1]]}))
    put("verify_case", "text_clean", json.dumps(
        {"stage": "text_clean", "tolerance": 0, "texts": ["a &amp; b"], "cleaned": ["a & b"]}))


def field(number, value):
    """One protobuf field: bytes, a float or a small integer."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def tokenizers():
    unknown, control, ordinary, byte = 2, 3, 1, 6

    def model(kind, charsmap=b"", bytes_too=False):
        pieces = [("<pad>", 0.0, control), ("</s>", 0.0, control), ("<unk>", 0.0, unknown), ("\u2581", -2.0, ordinary)]
        pieces += [(c, -3.0 - i, ordinary) for i, c in enumerate("abdelr")] + [("\u2581red", -4.5, ordinary)]
        if bytes_too:
            pieces += [(f"<0x{b:02X}>", -9.0, byte) for b in range(256)]
        out = b"".join(field(1, field(1, p.encode()) + field(2, s) + field(3, t)) for p, s, t in pieces)
        trainer = field(3, kind) + field(40, 2) + field(41, 0) + field(42, 1) + field(43, 0)
        trainer += field(35, 1) if bytes_too else b""
        return out + field(2, trainer) + field(3, field(1, b"identity") + (field(2, charsmap) if charsmap else b""))

    put("tokenizer_model", "unigram", model(1))
    put("tokenizer_model", "bpe", model(2))
    put("tokenizer_model", "word", model(3))
    put("tokenizer_model", "char", model(4))
    put("tokenizer_model", "bytes", model(1, bytes_too=True))
    put("tokenizer_model", "charsmap", model(1, struct.pack("<I", 1024) + bytes(1024) + b"a\0b\0"))
    texts = json.loads((GOLDEN / "text_clean/case.json").read_text())["texts"]
    for i, text in enumerate(texts):
        put("tokenizer_input", f"text_{i:02}", text)
    put("tokenizer_input", "ill_formed", b"a\xff\xc3\x28\xed\xa0\x80\xf4\x90\x80\x80 &#xD800; &#x110000; &NotEqualTilde; &ampx")


def tokenizer_files():
    def change(name, patch, text):
        put("tokenizer_json", name, json.dumps(patch).encode() + b"\0" + (text if isinstance(text, bytes) else text.encode()))

    def split(pattern, behavior="Isolated", invert=False, prefix=False, kind="Regex"):
        return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": prefix}]}}

    token = {"id": 700, "content": "<a>", "special": False, "normalized": True}
    change("unchanged", {}, "hello <|im_start|> world\r\n  \u732b e\u0301 \U0001F680<|im_end|>")
    change("ill_formed", {"normalizer": None}, b"a\xff\xc3\x28\xed\xa0\x80\xf4\x90\x80\x80\0b")
    change("byte_level", {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "it's  12 a")
    change("normalized_token", {"added_tokens": [token]}, "x<a>y")
    change("removed", split(r"\w+|[^\S\n]+", "Removed", True, True), "a_b 1\u00b2\n -")
    change("literal", split("a.", kind="String"), "aa.b")
    change("classes", split(r"(?i:'s)|\p{Han}+|[\u4e00-\u9fff\s]{1,3}|(?<=a)b*?|^x$|\v"), "ab'S\u6f22 x\n")
    change("empty_matches", split("a*"), "bab\u00e9")
    change("explodes", split("(a|a)*b|(a+)+c"), "a" * 200 + "\nbc")
    change("merges", {"model": {"ignore_merges": True, "merges": ["t h", ["h", "e"], ["t", "he"]]}}, "the the")
    change("no_bytes", {"model": {"vocab": None}}, "x")


def png(width, height, depth, colour, rows, texts=()):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    for kind, text in texts:
        out += chunk(kind, text)
    return out + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def pictures_and_clips():
    put("media", "rgb.png", png(2, 2, 8, 2, (b"\0" + bytes(range(6))) * 2, [(b"tEXt", b"parameters\0red ball\nSteps: 2")]))
    put("media", "gray16.png", png(3, 1, 16, 0, b"\0" + bytes(6), [(b"zTXt", b"weft\0\0" + zlib.compress(b"{}"))]))
    put("media", "large.png", png(60000, 60000, 1, 0, b"\0"))
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [("a.mp4", ["-c:v", "libx264", "-preset", "ultrafast"]), ("b.webm", ["-c:v", "libvpx-vp9"]),
                              ("c.gif", []), ("d.mkv", ["-c:v", "libvpx"])]:
            path = pathlib.Path(folder, name)
            subprocess.run(["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "color=red:s=16x16:d=0.2:r=10",
                            "-metadata", "comment={}", "-fflags", "+bitexact", "-flags:v", "+bitexact", *options, path],
                           check=True)
            put("media", name, path.read_bytes())


def sounds():
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [("a.wav", ["-ac", "2"]), ("b.wav", ["-c:a", "pcm_f32le", "-ar", "44100"]), ("c.flac", []),
                              ("d.mp3", []), ("e.ogg", ["-c:a", "libvorbis"]), ("f.webm", ["-c:a", "libopus"]),
                              ("g.m4a", ["-c:a", "aac"])]:
            path = pathlib.Path(folder, name)
            subprocess.run(["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "sine=440:r=16000:d=0.05",
                            "-fflags", "+bitexact", "-flags:a", "+bitexact", *options, path], check=True)
            put("sound", name, path.read_bytes())


def stream_messages():
    init = {"type": "session_init", "mood": "happy", "size": "96x96", "fps": 25, "seed": 7, "container": "annexb",
            "audio": {"codec": "pcm_s16le", "rate": 48000, "channels": 1}, "client_ts": 1.5}
    for name, message in [("init", init), ("resume", {"type": "session_resume", "token": "abc", "time_us": 40000}),
                          ("text", {"type": "text", "text": "Hello"}), ("prompt", {"type": "prompt", "caption": "a face"}),
                          ("listen", {"type": "listen", "on": True}), ("flush", {"type": "flush"}),
                          ("unknown", {"type": "flush", "now": [[[{}]]]})]:
        put("stream_message", name, json.dumps(message))
    for name, flags, samples in [("sound", 0, [1, -1, 32767]), ("last", 4, [])]:
        payload = struct.pack(f"<{len(samples)}h", *samples)
        put("stream_message", name, b"WEFT" + struct.pack("<HHIIq", 1, flags, 9, len(samples), 40000) + payload)
    put("stream_message", "short", b"WEFT" + struct.pack("<HHIIqh", 1, 0, 9, 4, 40000, 1))


def requests():
    def request(name, first, *fields, body=""):
        put("http_request", name, "\r\n".join([first, "Host: localhost", *fields, "", body]))

    chunked = "Transfer-Encoding: chunked"
    request("get", "GET /work?a=b HTTP/1.1", "Accept: */*")
    request("old", "GET / HTTP/1.0", "Connection: keep-alive")
    request("post", "POST /work HTTP/1.1", "Content-Length: 5", body="hello")
    request("chunks", "POST /work HTTP/1.1", chunked, body="3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n")
    request("many_chunks", "POST /work HTTP/1.1", chunked, body="1\r\na\r\n" * 6 + "0\r\n\r\n")
    request("both", "POST /work HTTP/1.1", "Content-Length: 5", chunked, body="0\r\n\r\n")
    request("large", "POST /work HTTP/1.1", "Content-Length: 257", body="a")
    request("folded", "GET /work HTTP/1.1", "A: b\r\n c")
    request("fields", "GET /work HTTP/1.1", *[f"A{i}: b" for i in range(9)])
    request("long_uri", "GET /" + "a" * 64 + " HTTP/1.1")
    request("upgrade", "GET /stream HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")


if __name__ == "__main__":
    requests()
    weights()
    configs()
    tokenizers()
    tokenizer_files()
    pictures_and_clips()
    sounds()
    stream_messages()
