"""Makes the first inputs of every fuzz target: small files that are well-formed or nearly so. Findings are
added by hand. Run it from the repository's root. It needs ffmpeg for the clips."""
import json
import math
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
    return struct.pack("<Q", len(text)) + text + (bytes(i % 256 for i in range(at)) if data is None else data)


def weights():
    put("safetensors", "two", safetensors([("a", "F32", [2], 8), ("b", "U8", [1, 3], 3)]))
    put("safetensors", "metadata", safetensors([("a", "BF16", [2, 2], 8)], {"format": "pt"}, pad=3))
    put("safetensors", "scalar_empty", safetensors([("s", "F64", [], 8), ("e", "I64", [3, 0], 0)]))
    put("safetensors", "every_dtype", safetensors(
        [(d, d, [1], n) for d, n in [("F16", 2), ("I8", 1), ("I16", 2), ("I32", 4), ("BOOL", 1),
                                     ("F8_E4M3", 1), ("F8_E5M2", 1)]]))
    put("safetensors", "none", safetensors([]))
    put("safetensors", "rare", safetensors(
        [("a", "F32", [2], 8), ("b", "C64", [1], 8), ("c", "F4", [2, 3], 3), ("d", "U16", [], 2), ("e", "F8_E8M0", [1], 1)]))
    put("safetensors", "null", safetensors([("a", "F32", [2], 8)]).replace(b'{"a"', b'{"__metadata__":null,"a"'))
    for name, text in [("page", "<!DOCTYPE html><html>"), ("json", '{"error":"Unauthorized"}'), ("licence", "A licence\n1. You may")]:
        put("safetensors", name, text)
    put("safetensors", "nan", safetensors([("a", "F32", [2], 8)], data=struct.pack("<ff", float("nan"), float("inf"))))
    put("safetensors", "hole", safetensors([("a", "F32", [2], 8)], data=b"").replace(b"[0,8]", b"[4,12]"))
    put("safetensors", "huge_shape", safetensors([("a", "F32", [2 ** 40, 2 ** 40], 0)]))
    put("safetensors", "lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    good = {"a": "a.safetensors", "b": "a.safetensors", "c": "b.safetensors"}
    for name, weight_map in [("good", good), ("absent", good | {"d": "c.safetensors"}),
                             ("escape", good | {"c": "../b.safetensors"}), ("wrong", good | {"a": "b.safetensors"})]:
        put("safetensors_index", name, json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))


def gguf(entries, tensors, data, version=3):
    """Metadata (key, type, bytes) and tensors (name, extents, type, offset) as a GGUF file."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    for key, kind, value in entries:
        head += text(key) + struct.pack("<I", kind) + value
    for name, extents, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
    return head + bytes(-len(head) % 32) + data


def quantised_weights():
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    arch = ("general.architecture", 8, text("wan"))
    sizes = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_0": (2, 32, 18),
             "q5_0": (6, 32, 22), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210),
             "q4_1": (3, 32, 20), "q5_1": (7, 32, 24), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "f64": (28, 1, 8)}
    for name, (kind, values, size) in sizes.items():
        put("gguf", name, gguf([arch], [("w", [values, 2], kind, 0)], bytes(range(size)) * 2))
    shape = ("comfy.gguf.orig_shape.p", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3))
    lists = ("l", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b"))
    aligned = ("general.alignment", 4, struct.pack("<I", 64))
    put("gguf", "metadata", gguf([arch, shape, lists, ("b", 7, b"\1"), ("d", 12, bytes(8))],
                                 [("p", [6], 0, 0), ("q", [2], 0, 32)], bytes(40)))
    put("gguf", "alignment", gguf([aligned], [("p", [6], 0, 0), ("q", [2], 0, 64)], bytes(72)))
    put("gguf", "overlap", gguf([arch], [("p", [6], 0, 0), ("q", [2], 0, 0)], bytes(40)))
    put("gguf", "list_of_2_to_61", gguf([("l", 9, struct.pack("<IQ", 10, 2 ** 61))], [], b""))
    put("gguf", "empty", gguf([], [], b"", 2))
    split = lambda no, count: [("split.no", 2, struct.pack("<H", no)), ("split.count", 2, struct.pack("<H", count))]
    put("gguf", "split_of_one", gguf(split(0, 1), [("p", [2], 0, 0)], bytes(8)))
    put("gguf", "split_of_three", gguf(split(1, 3), [("p", [2], 0, 0)], bytes(8)))
    put("gguf", "iq4_nl", gguf([arch], [("w", [32], 20, 0)], bytes(18)))
    put("gguf", "page", "<!DOCTYPE html><html><body>Sign in</body></html>")
    put("scaled_weights", "plain", safetensors([("a.weight", "F8_E4M3", [2, 2], 4), ("b.weight", "F8_E5M2", [2], 2)]))
    put("scaled_weights", "scaled", safetensors(
        [("m.a.weight", "F8_E4M3", [2, 2], 4), ("m.a.scale_weight", "F32", [1], 4), ("m.scaled_fp8", "F8_E4M3", [0], 0)]))
    quant = b'{"format":"float8_e4m3fn"}'
    put("scaled_weights", "mixed", safetensors(
        [("a.weight", "F8_E4M3", [2, 2], 4), ("a.weight_scale", "F32", [], 4), ("a.comfy_quant", "U8", [len(quant)], len(quant))],
        {"_quantization_metadata": '{"layers":{"a":{"format":"float8_e4m3fn"}}}'}, bytes(8) + quant))
    put("scaled_weights", "rows", safetensors([("a.weight", "I8", [2, 2], 4), ("a.weight_scale", "F32", [2, 1], 8)]))
    put("scaled_weights", "blocks", safetensors(
        [("a.weight", "F8_E4M3", [1, 130], 130), ("a.weight_scale_inv", "BF16", [1, 2], 4), ("a.input_scale", "F32", [], 4)]))
    put("scaled_weights", "mxfp8", safetensors([("a.weight", "F8_E4M3", [2, 2], 4), ("a.weight_scale", "F8_E8M0", [2, 1], 2)]))
    put("scaled_weights", "nvfp4", safetensors([("a.weight", "U8", [2, 2], 4), ("a.weight_scale", "F8_E4M3", [2], 2)]))


def part_files():
    def part(name, shapes, metadata=None):
        put("part_file", name, safetensors(
            [(tensor, "F8_E4M3", shape, math.prod(shape)) for tensor, shape in shapes.items()], metadata))

    blocks = {f"blocks.0.{a}.{p}.weight": [1, 1] for a in ["self_attn", "cross_attn"] for p in "qkvo"}
    wan = {"patch_embedding.weight": [128, 1, 1, 1, 1], "head.modulation": [1, 2, 2], "head.head.weight": [1, 1],
           "time_embedding.0.weight": [1, 2], "text_embedding.0.weight": [1, 1], "blocks.0.ffn.0.weight": [2, 1]}
    part("wan", wan | blocks)
    part("wan_prefix", {"model.diffusion_model." + name: shape for name, shape in (wan | blocks).items()})
    part("wan_wrapped", {"module.net._orig_mod." + name: shape for name, shape in (wan | blocks).items()})
    part("wan_merged", {name: [128, 1] if name[0] == "p" else [e for e in shape if e > 1] or [1]
                        for name, shape in (wan | blocks | {"patch_embedding.bias": [128]}).items()})
    vae = {"encoder.conv1.weight": [1, 3, 1, 1, 1], "decoder.conv1.weight": [1, 1, 1, 1, 1], "conv2.weight": [16, 1, 1, 1, 1],
           "decoder.head.2.weight": [3, 1, 1, 1, 1], "decoder.middle.0.residual.0.gamma": [1]}
    part("wan_vae", vae | {"encoder.downsamples.0.residual.2.weight": [1, 1, 1, 1, 1]})
    part("wan_vae_residual", vae | {"encoder.downsamples.0.downsamples.0.residual.2.weight": [1, 1, 1, 1, 1]})
    part("kl_vae", {"decoder.mid.block_1.conv1.weight": [1], "encoder.conv_in.weight": [1, 3], "decoder.conv_out.weight": [3],
                    "decoder.conv_in.weight": [1, 16], "encoder.down.0.block.0.conv1.weight": [32]})
    part("umt5", {"token_embedding.weight": [9, 4], "blocks.0.attn.q.weight": [4, 4], "blocks.0.ffn.gate.0.weight": [8, 4],
                  "blocks.0.pos_embedding.embedding.weight": [32, 2], "blocks.1.pos_embedding.embedding.weight": [32, 2]})
    part("t5", {"shared.weight": [9, 4], "encoder.block.0.layer.0.SelfAttention.q.weight": [4, 4],
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": [32, 2],
                "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": [8, 4]})
    decoder = {"model.embed_tokens.weight": [9, 4], "model.layers.0.self_attn.q_proj.weight": [8, 4],
               "model.layers.0.self_attn.k_proj.weight": [4, 4], "model.layers.0.mlp.gate_proj.weight": [8, 4]}
    part("qwen3", decoder | {"model.layers.0.self_attn.q_norm.weight": [4]})
    part("qwen2", decoder | {"model.layers.0.self_attn.q_proj.bias": [8]})
    part("all", {"model.diffusion_model." + name: shape for name, shape in (wan | blocks).items()} |
         {"first_stage_model." + name: shape for name, shape in vae.items()} |
         {"text_encoders.a.transformer." + name: shape for name, shape in decoder.items()} |
         {"text_encoders.a.transformer.model.layers.0.self_attn.q_norm.weight": [4]})
    part("lora", {"lora_unet_a.lora_down.weight": [1, 1], "a.diff": [1]})
    part("wan_image", wan | blocks | {"img_emb.proj.0.weight": [2], "img_emb.emb_pos": [1, 3, 2],
                                      "blocks.0.cross_attn.k_img.weight": [1, 1]})
    injectors = {f"audio_injector.injector.{i}.q.weight": [1] for i in range(12)}
    part("wan_s2v", wan | {"patch_embedding.weight": [128, 1, 1, 2, 2], "head.head.weight": [4, 1], "blocks.39.a": [1],
                           "casual_audio_encoder.weights": [1],
                           "casual_audio_encoder.encoder.conv1_local.conv.weight": [32, 1, 1]} | injectors)
    stream = {"transformer_blocks.0.attn.norm_q.weight": [128]}
    part("flux", stream | {"x_embedder.weight": [128, 4], "context_embedder.weight": [1, 1],
                           "time_text_embed.text_embedder.linear_1.weight": [1, 2],
                           "transformer_blocks.0.attn.add_q_proj.weight": [1], "transformer_blocks.0.attn.to_q.weight": [1],
                           "single_transformer_blocks.0.proj_mlp.weight": [1]})
    part("flux_original", {"img_in.weight": [128, 4], "txt_in.weight": [1, 1], "vector_in.in_layer.weight": [1, 2],
                           "double_blocks.0.img_attn.qkv.weight": [1], "single_blocks.0.linear1.weight": [1],
                           "double_blocks.0.img_attn.norm.query_norm.scale": [128], "guidance_in.in_layer.weight": [1]})
    part("qwen_image", stream | {"img_in.weight": [128, 4], "txt_in.weight": [1, 2], "txt_norm.weight": [1],
                                 "transformer_blocks.0.img_mod.1.weight": [1]})
    caption = {"cap_embedder.1.weight": [1, 2], "layers.0.ffn_norm1.weight": [1], "noise_refiner.0.ffn_norm1.weight": [1]}
    part("z_image", caption | {"all_x_embedder.2-1.weight": [128, 4], "layers.0.attention.norm_q.weight": [128]})
    part("z_image_single", caption | {"x_embedder.weight": [128, 4], "layers.0.attention.q_norm.weight": [128]})
    part("clip_vision", {"vision_model.embeddings.position_embedding.weight": [5, 80],
                         "vision_model.embeddings.patch_embedding.weight": [1, 1, 1, 14],
                         "vision_model.encoder.layers.0.mlp.fc1.weight": [2]})
    part("empty_extents", caption | {"all_x_embedder.2-1.weight": [2 ** 47, 0], "layers.0.attention.norm_q.weight": [128]})
    part("many_blocks", wan | blocks | {"blocks.65535.a": [1]})
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()

    def gguf_part(name, architecture, metadata, shapes):
        entries = [("general.architecture", 8, text(architecture))] + metadata
        tensors, data = [], b""
        for tensor, shape in shapes.items():  # the innermost extent is the first
            data += bytes(-len(data) % 32)
            tensors.append((tensor, shape[::-1], 0, len(data)))
            data += bytes(4 * math.prod(shape))
        put("part_file", name, gguf(entries, tensors, data))

    layer = {"token_embd.weight": [9, 4], "blk.0.attn_q.weight": [8, 4], "blk.0.attn_k.weight": [4, 4],
             "blk.0.ffn_gate.weight": [8, 4]}
    numbers = [("attention.head_count", 4, struct.pack("<I", 2)), ("rope.freq_base", 6, struct.pack("<f", 1e6)),
               ("attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6))]
    gguf_part("qwen2.gguf", "qwen2vl", [("qwen2vl." + key, *value) for key, *value in numbers], layer | {"blk.0.attn_q.bias": [8]})
    gguf_part("qwen3.gguf", "qwen3", [], layer | {"blk.0.attn_q_norm.weight": [4]})
    gguf_part("t5.gguf", "t5encoder", [], {"token_embd.weight": [9, 4], "enc.blk.0.attn_q.weight": [4, 4],
                                           "enc.blk.0.attn_rel_b.weight": [32, 2], "enc.blk.0.ffn_gate.weight": [8, 4]})


def gguf_tokenizers():
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    texts = lambda key, values: ("tokenizer.ggml." + key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))
    numbers = lambda key, kind, form, values: ("tokenizer.ggml." + key, 9, struct.pack(f"<IQ{len(values)}{form}", kind, len(values), *values))
    kind = lambda model, pre=None: [("tokenizer.ggml.model", 8, text(model))] + ([("tokenizer.ggml.pre", 8, text(pre))] if pre else [])
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "\u2581red", "<extra_id_0>"]
    t5 = kind("t5") + [texts("tokens", pieces), numbers("token_type", 5, "i", [3, 3, 2, 1, 1, 1, 1, 4]),
                       numbers("scores", 6, "f", [0, 0, 0, -2, -3, -4, -5, -9])]
    charsmap = struct.pack("<I", 1024) + bytes(1024) + b"a\0b\0"
    flags = [("tokenizer.ggml.add_space_prefix", 7, b"\1"), ("tokenizer.ggml.remove_extra_whitespaces", 7, b"\0")]
    put("gguf_tokenizer", "t5", gguf(t5 + flags, [], b""))
    put("gguf_tokenizer", "t5_charsmap", gguf(t5 + [numbers("precompiled_charsmap", 0, "B", charsmap)], [], b""))
    put("gguf_tokenizer", "t5_short", gguf(t5[:2] + [numbers("scores", 6, "f", [0])], [], b""))
    put("gguf_tokenizer", "t5_many", gguf([("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2 ** 40))], [], b""))
    letters = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
    spare = iter(range(256, 512))
    letters = [letter or chr(next(spare)) for letter in letters]
    bpe = kind("gpt2", "qwen2") + [texts("tokens", letters + ["re", "red", "<|im_start|>", "<think>", "[PAD260]"]),
                                   numbers("token_type", 5, "i", [1] * 258 + [3, 4, 5]), texts("merges", ["r e", "re d"])]
    put("gguf_tokenizer", "bpe", gguf(bpe, [], b""))
    put("gguf_tokenizer", "bpe_other_words", gguf(kind("gpt2", "llama-bpe") + bpe[2:], [], b""))


def loras():
    def lora(name, tensors, metadata=None):
        tensors = [(tensor, "F32", shape, 4 * math.prod(shape)) for tensor, shape in tensors]
        halves = struct.pack("<f", 0.5) * (sum(size for *_, size in tensors) // 4)
        put("lora", name, safetensors(tensors, metadata, halves))

    def pair(module, down, up):
        return [(f"{module}.{down}.weight", [1, 32]), (f"{module}.{up}.weight", [32, 1])]

    query = "diffusion_model.blocks.0.self_attn.q"
    lora("comfy", pair(query, "lora_down", "lora_up") + [(query + ".alpha", [])])
    lora("kohya", pair("lora_unet_blocks_1_cross_attn_v", "lora_down", "lora_up"))
    lora("peft", pair("transformer.blocks.0.attn1.to_out.0", "lora_A", "lora_B"),
         {"lora_adapter_metadata": '{"transformer.lora_alpha":2,"transformer.alpha_pattern":{"a":1}}'})
    lora("difference", [("blocks.0.norm3.diff", [32]), ("blocks.0.norm3.diff_b", [32]),
                        ("blocks.1.modulation.set_weight", [1, 6, 32])])
    lora("lokr", [("lycoris_blocks_0_attn1_to_q.lokr_w1", [4, 2]),
                  ("lycoris_blocks_0_attn1_to_q.lokr_t2", [2, 3]),
                  ("lycoris_blocks_0_attn1_to_q.lokr_w2_a", [2, 8]),
                  ("lycoris_blocks_0_attn1_to_q.lokr_w2_b", [3, 16]),
                  ("lycoris_blocks_0_attn1_to_q.alpha", [])])
    lora("loha", [(query + ".hada_w1_a", [32, 1]), (query + ".hada_w1_b", [1, 32]),
                  (query + ".hada_w2_a", [32, 1]), (query + ".hada_w2_b", [1, 32])])
    lora("relative", pair("diffusion_model.blocks.0.cross_attn.k_img", "lora_A", "lora_B"))
    lora("unknown", [("diffusion_model.blocks.9.self_attn.q.diff", [1])])
    lora("modulation", [("diffusion_model.blocks.1.diff_m", [1, 6, 32]), ("diffusion_model.head.diff_m", [1, 2, 32])])
    lora("named", pair("lora_unet__blocks_1.cross_attn.v", "lora_A.style", "lora_B.style"))
    lora("processor", pair("double_blocks.0.processor.qkv_lora1", "down", "up"))
    lora("text", pair("lora_te1_encoder_block_0_layer_0_SelfAttention_q", "lora_down", "lora_up"))
    lora("other_text", pair("text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1", "lora_A", "lora_B"))
    lora("patterns", pair("transformer.blocks.0.attn1.to_q", "lora_A", "lora_B"),
         {"lora_adapter_metadata": '{"transformer.lora_alpha":2,"transformer.alpha_pattern":'
          '{"(?<!x)to_[^k-m]{1,3}(?=$)|(a+)*b":1},"transformer.rank_pattern":{"^.*\\\\.to_(?:q|k)$":1}}'})
    put("lora", "numbers", safetensors(
        [(query + ".lora_down.weight", "F8_E4M3", [1, 32], 32), (query + ".lora_up.weight", "F8_E5M2", [32, 1], 32),
         (query + ".lora_up.scale_weight", "F32", [], 4), (query + ".alpha", "I64", [], 8)], None,
        bytes(range(64)) + struct.pack("<fq", 0.5, 2)))


def configs():
    model = GOLDEN / "pipeline_t2v/model"
    copies = {
        "transformer": model / "transformer/config.json", "vae": model / "vae/config.json",
        "vae_patch": GOLDEN / "vae_patch2_decode3/model/vae/config.json",
        "text_encoder": model / "text_encoder/config.json",
        "wav2vec2": GOLDEN / "wav2vec2_tiny/model/audio_encoder/config.json",
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
                 "pipeline_two_experts", "dit_wan_original_names", "vae21_tiny_decode1", "wav2vec2_tiny"]:
        put("verify_case", case, (GOLDEN / case / "case.json").read_bytes())
    put("verify_case", "tokenizer", json.dumps(
        {"stage": "tokenizer", "tolerance": 0, "max_length": 8, "texts": ["a b", ""], "ids": [[5, 1], [1]]}))
    put("verify_case", "text_clean", json.dumps(
        {"stage": "text_clean", "tolerance": 0, "texts": ["a &amp; b"], "cleaned": ["a & b"]}))


def components():
    """Configs of every class that the registry knows, and of pictures' preprocessing."""
    for name, path in [
            ("flux", "dit_flux/model/transformer"), ("qwen_image", "dit_qwen_image/model/transformer"),
            ("z_image", "dit_zimage/model/transformer"), ("wan", "dit_wan_i2v21/model/transformer"),
            ("wan_s2v", "s2v_motion/model/transformer"), ("kl_vae", "vae_kl_decode/model/vae"),
            ("qwen_image_vae", "pipeline_qwen_image/model/vae"), ("wan_vae_residual", "vae22_decode3/model/vae"),
            ("clip_text", "clip_text/model/text_encoder"), ("clip_vision", "clip_vision/model/image_encoder"),
            ("t5", "t5/model/text_encoder"), ("umt5", "umt5/model/text_encoder"),
            ("qwen2_5_vl", "pipeline_qwen_image/model/text_encoder"), ("qwen3", "pipeline_zimage_turbo/model/text_encoder"),
            ("krea2", "dit_krea2/model/transformer"), ("qwen3_vl", "text_taps_qwen3vl/model/text_encoder"),
            ("wav2vec2", "wav2vec2_tiny/model/audio_encoder")]:
        put("component", name, (GOLDEN / path / "config.json").read_bytes())
    z_image = json.loads((CORPUS / "component/z_image").read_text())
    put("component", "infinite", json.dumps(z_image | {"t_scale": math.inf, "norm_eps": math.nan, "rope_theta": -1}))
    clip = {"do_resize": True, "size": {"shortest_edge": 28}, "do_center_crop": True, "crop_size": {"height": 28, "width": 28},
            "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
            "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    for name, change in [("clip", {}), ("numbers", {"size": 28, "crop_size": 28, "resample": 1}),
                         ("squash", {"size": {"height": 28, "width": 28}, "do_center_crop": False}),
                         ("plain", {"do_resize": False, "do_rescale": False, "do_normalize": False}),
                         ("no_deviation", {"image_std": [0, 1, 1]}), ("short", {"image_mean": [0]}),
                         ("large", {"rescale_factor": 1e300, "image_mean": [1e200, 0, 0]})]:
        put("preprocessor", name, json.dumps(clip | change))


def previews():
    sound = {"schema": "weft.preview/v1", "rgb": [[0.5, -0.25, 1e4], [0, 1, -2]], "constant": [0.125, 0, -1],
             "relative_error": 0.25}
    for name, change in [("sound", {}), ("schema", {"schema": "weft.preview/v2"}), ("short_row", {"rgb": [[1, 2], [3]]}),
                         ("one_channel", {"rgb": [[1, 2, 3]]}), ("large", {"constant": [1e5, 0, 0]}),
                         ("nested", {"rgb": [[[1], 2, 3], {}]}), ("no_constant", {"constant": None})]:
        put("preview", name, json.dumps(sound | change))


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


def clip_tokenizers():
    def change(name, patch, text):
        put("clip_tokenizer", name, json.dumps(patch).encode() + b"\0" + (text if isinstance(text, bytes) else text.encode()))

    change("unchanged", {}, "Thin THIN's <|endoftext|>\u0130\u732b e\u0301 12")
    change("ill_formed", {}, b"a\xff\xc3\x28\xed\xa0\x80\xf4\x90\x80\x80\0b")
    change("no_merges", {"merges": []}, "thin")
    change("pairs", {"merges": [["t", "h"], ["th", "in"], "i n"]}, "thin " * 30)
    change("ids", {"vocab": {"th": 7, "in": 2 ** 21}}, "thin")
    change("no_vocab", {"vocab": None}, "x")
    change("no_end", {"vocab": {"<|endoftext|>": None}}, "x")


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


def pictures():
    """Pictures of the io tests, each kind of coding once."""
    for name in ["palette_alpha.png", "gray16.png", "interlaced.png", "gray.jpg", "progressive.jpg", "cmyk.jpg",
                 "turned6.jpg", "lossless.webp", "lossy_alpha.webp", "turned.webp"]:
        put("picture", name, pathlib.Path("tests/io/pictures", name).read_bytes())


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
    request("coding", "POST /work HTTP/1.1", "Transfer-Encoding: gzip", "Content-Length: 5", body="hello")
    request("large", "POST /work HTTP/1.1", "Content-Length: 257", body="a")
    request("folded", "GET /work HTTP/1.1", "A: b\r\n c")
    request("fields", "GET /work HTTP/1.1", *[f"A{i}: b" for i in range(9)])
    request("long_uri", "GET /" + "a" * 64 + " HTTP/1.1")
    request("upgrade", "GET /stream HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")


def forms():
    def form(name, *parts, boundary="B", start="", end="--\r\n"):
        put("multipart", name, start + "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}" + end)

    def part(parameters, content, *headers):
        return "\r\n".join(["Content-Disposition: form-data; " + parameters, *headers, "", content])

    form("texts", part('name="prompt"', "a red ball"), part("name=seconds", "4"))
    form("files", part('name="image[]"; filename="a.png"', "one", "Content-Type: image/png"),
         part("name=b", "two", "Content-Type: application/octet-stream"), part('name=c; filename=""', ""))
    form("names", part(r'name="a%22\"\\%0A"; filename="C:\x.png"; filename*=UTF-8' + "''%e2%82%ac", "x"))
    form("type", part("name=a", "\r\n--B--"), boundary="=_: B",
         start='multipart/form-data; boundary="=_: B"\0preamble\r\n', end=" \t\r\n" + part("name=b", "") + "\r\n--=_: B--epilogue")
    form("empty")
    form("no_content", part("name=a", "").removesuffix("\r\n"))
    form("no_name", "Content-Type: text/plain\r\n\r\nx")
    form("not_ended", part("name=a", "x"), end="")
    form("line_feeds", part("name=a", "x").replace("\r\n", "\n"))
    form("many", *[part(f"name={i}", "x") for i in range(6)])
    form("long", part("name=a; filename=a", "x" * 1600))
    form("header", "X: y\r\n--B: z\r\n" + part("name=a", "x"))


def sent_files():
    for name, url in {
        "wav": "data:audio/wav;base64,UklGRg==",
        "parameters": 'DATA:Audio/X-Wav;codecs="a,b";BASE64,UklG\r\nRg',
        "octets": "data:application/octet-stream;base64,-_%2B%2f%3D",
        "untold": "data:;base64,",
        "picture": "data:image/png;base64,iVBORw0KGgo=",
        "path": "/etc/passwd",
    }.items():
        put("sent_file", name, url)


def openai_requests():
    url = "data:image/png;base64,AAAA"
    for name, body in [("plain", {"prompt": "a", "seconds": "4", "size": "1280x720", "seed": 42, "num_inference_steps": 40}),
                       ("inner", {"prompt": "a", "extra_body": {"seed": 1, "extra_params": {"solver": "euler"}}, "ignore_unknown": True}),
                       ("quality", {"prompt": "a", "quality": "balanced", "model": "pocket", "user": "b", "metadata": {"c": "d"}}),
                       ("pictures", {"prompt": "a", "input_reference": [{"image_url": url}, {"image_url": {"url": url}}], "audio_reference": url}),
                       ("guidance", {"prompt": "a", "true_cfg_scale": 4, "guidance_scale": "4.0", "boundary_ratio": 0.5, "enable_teacache": "false"}),
                       ("schedule", {"prompt": "a", "prompt_schedule": "[{\"at\": \"2s\", \"prompt\": \"b\"}]", "sigmas": [1, 0.5]}),
                       ("no_url", {"prompt": "a", "input_reference": {"image_url": "datA"}}),
                       ("unknown", {"prompt": "a", "mask": url, "sparkle": None}), ("list", [])]:
        put("openai_request", name, json.dumps(body))
    for name, parts in [("form", ["prompt=a", "sigmas[]=1", "sigmas[]=0.5", "metadata[a]=b", "input_reference<"]),
                        ("form_inner", ["prompt=a", "extra_body[extra_params][seed]=3", "extra_params={\"seed\": 3}"]),
                        ("form_twice", ["prompt=a", "prompt[b]=c", "a[][b]=1", "a[][b]=2"])]:
        put("openai_request", name, b"\0" + b"".join(part.encode() + b"\0" for part in parts))


if __name__ == "__main__":
    requests()
    openai_requests()
    forms()
    sent_files()
    weights()
    quantised_weights()
    part_files()
    gguf_tokenizers()
    loras()
    configs()
    components()
    previews()
    tokenizers()
    tokenizer_files()
    clip_tokenizers()
    pictures_and_clips()
    pictures()
    sounds()
    stream_messages()
