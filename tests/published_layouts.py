#!/usr/bin/env python3
"""Makes folders in the published layouts of the models that people run, with sparse weights of the true
sizes, and tries `weft inspect` and `weft generate --dry-run` on each as a new user would: it plans, or says
in one line what is missing.
usage: published_layouts.py WEFT [NAME...] [--keep FOLDER]"""
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import wave

ARGUMENTS = sys.argv[1:]
KEEP = ARGUMENTS.pop(ARGUMENTS.index("--keep") + 1) if "--keep" in ARGUMENTS else None
ARGUMENTS = [word for word in ARGUMENTS if word != "--keep"]
WEFT = os.path.abspath(ARGUMENTS[0])
GOLDEN = pathlib.Path("tests/golden")
BYTES = {"F32": 4, "BF16": 2}
SHARD = 10 << 30  # bytes of a shard at most
PICTURE = "models/pocket/samples.png"
faults = 0


def fault(words):
    global faults
    faults += 1
    print("FAULT:", words)


def run(*words):
    return subprocess.run([WEFT, *map(str, words)], capture_output=True, text=True)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


# --- weights ---

def write_sparse(path, tensors, dtype):
    """A safetensors file with a header and a hole."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        size = BYTES[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def write_weights(folder, stem, tensors, dtype):
    """One file, or shards with an index, as the published ones have."""
    shards, held = [[]], 0
    for name, shape in tensors:
        size = BYTES[dtype]
        for extent in shape:
            size *= extent
        if held + size > SHARD and shards[-1]:
            shards.append([])
            held = 0
        shards[-1].append((name, shape))
        held += size
    if len(shards) == 1:
        write_sparse(folder / f"{stem}.safetensors", tensors, dtype)
        return
    names = [f"{stem}-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        write_sparse(folder / name, shard, dtype)
    write_json(folder / f"{stem}.safetensors.index.json",
               {"metadata": {}, "weight_map": {t[0]: name for name, shard in zip(names, shards) for t in shard}})


def tensors_of(config):
    """The tensors of a component, which weft tells from its configuration alone."""
    done = run("inspect", config, "--verbose-tensors", "--json")
    if done.returncode:
        fault(f"inspect {config}: {done.stderr.strip()}")
        return []
    return [(tensor["name"], tensor["shape"]) for tensor in json.loads(done.stdout)["list"]]


def component(folder, config, dtype, rename=lambda name: name, extra=()):
    write_json(folder / "config.json", config)
    stem = "diffusion_pytorch_model" if "_class_name" in config else "model"
    tensors = [(rename(name), shape) for name, shape in tensors_of(folder / "config.json")]
    write_weights(folder, stem, [*tensors, *extra], dtype)


# --- configurations, as they are published ---

def wan(heads, layers, ffn, channels=(16, 16), **image):
    return {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.35.0.dev0", "added_kv_proj_dim": None,
            "attention_head_dim": 128, "cross_attn_norm": True, "eps": 1e-06, "ffn_dim": ffn, "freq_dim": 256,
            "image_dim": None, "in_channels": channels[0], "num_attention_heads": heads, "num_layers": layers,
            "out_channels": channels[1], "patch_size": [1, 2, 2], "pos_embed_seq_len": None,
            "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096} | image


IMAGE_BRANCH = {"image_dim": 1280, "added_kv_proj_dim": 5120}
WAN_1B, WAN_14B = wan(12, 30, 8960), wan(40, 40, 13824)
WAN_VAE = {"_class_name": "AutoencoderKLWan", "attn_scales": [], "base_dim": 96, "dim_mult": [1, 2, 4, 4],
           "dropout": 0.0, "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16, "num_res_blocks": 2,
           "temperal_downsample": [False, True, True], "z_dim": 16}
WAN_VAE_22 = WAN_VAE | {
    "base_dim": 160, "decoder_base_dim": 256, "in_channels": 12, "out_channels": 12, "is_residual": True,
    "patch_size": 2, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48, "scale_factor_spatial": 16,
    "scale_factor_temporal": 4, "clip_output": False, "z_dim": 48}
T5_XXL = {"classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64, "d_model": 4096, "decoder_start_token_id": 0,
          "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
          "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True, "layer_norm_epsilon": 1e-06,
          "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24, "output_past": True, "pad_token_id": 0,
          "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
          "tokenizer_class": "T5Tokenizer", "torch_dtype": "bfloat16", "use_cache": True}
UMT5 = T5_XXL | {"architectures": ["UMT5EncoderModel"], "model_type": "umt5", "scalable_attention": True,
                 "vocab_size": 256384}
T5 = T5_XXL | {"architectures": ["T5EncoderModel"], "model_type": "t5", "vocab_size": 32128}
CLIP_L = {"architectures": ["CLIPTextModel"], "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0,
          "eos_token_id": 2, "hidden_act": "quick_gelu", "hidden_size": 768, "initializer_factor": 1.0,
          "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
          "max_position_embeddings": 77, "model_type": "clip_text_model", "num_attention_heads": 12,
          "num_hidden_layers": 12, "pad_token_id": 1, "projection_dim": 768, "torch_dtype": "bfloat16",
          "vocab_size": 49408}
CLIP_H = {"architectures": ["CLIPVisionModel"], "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 1280,
          "image_size": 224, "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 5120,
          "layer_norm_eps": 1e-05, "model_type": "clip_vision_model", "num_attention_heads": 16, "num_channels": 3,
          "num_hidden_layers": 32, "patch_size": 14, "projection_dim": 1024, "torch_dtype": "float32"}
WAV2VEC2 = json.loads((GOLDEN / "wav2vec2_tiny/model/audio_encoder/config.json").read_text()) | {
    "conv_dim": [512] * 7, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 24}
QWEN3_4B = {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
            "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
            "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936}
QWEN_VL = {"attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
           "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
           "max_position_embeddings": 128000, "max_window_layers": 28, "num_attention_heads": 28,
           "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
           "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
           "sliding_window": None, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
           "vocab_size": 152064}
QWEN_VL = QWEN_VL | {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "image_token_id": 151655,
    "tie_word_embeddings": False, "video_token_id": 151656, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "text_config": QWEN_VL | {"model_type": "qwen2_5_vl_text"},
    "vision_config": {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "in_channels": 3,
                      "intermediate_size": 3420, "model_type": "qwen2_5_vl", "num_heads": 16,
                      "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
                      "spatial_patch_size": 14, "temporal_patch_size": 2, "window_size": 112}}
Z_IMAGE = {"_class_name": "ZImageTransformer2DModel", "_diffusers_version": "0.36.0.dev0", "all_f_patch_size": [1],
           "all_patch_size": [2], "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512], "cap_feat_dim": 2560,
           "dim": 3840, "in_channels": 16, "n_heads": 30, "n_kv_heads": 30, "n_layers": 30, "n_refiner_layers": 2,
           "norm_eps": 1e-05, "qk_norm": True, "rope_theta": 256.0, "t_scale": 1000.0}
QWEN_IMAGE = {"_class_name": "QwenImageTransformer2DModel", "_diffusers_version": "0.34.0.dev0",
              "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": False, "in_channels": 64,
              "joint_attention_dim": 3584, "num_attention_heads": 24, "num_layers": 60, "out_channels": 16,
              "patch_size": 2, "pooled_projection_dim": 768}
FLUX = {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0.dev0", "attention_head_dim": 128,
        "guidance_embeds": False, "in_channels": 64, "joint_attention_dim": 4096, "num_attention_heads": 24,
        "num_layers": 19, "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768}
FLUX_VAE = {"_class_name": "AutoencoderKL", "act_fn": "silu", "block_out_channels": [128, 256, 512, 512],
            "down_block_types": ["DownEncoderBlock2D"] * 4, "force_upcast": True, "in_channels": 3,
            "latent_channels": 16, "latents_mean": None, "latents_std": None, "layers_per_block": 2,
            "mid_block_add_attention": True, "norm_num_groups": 32, "out_channels": 3, "sample_size": 1024,
            "scaling_factor": 0.3611, "shift_factor": 0.1159, "up_block_types": ["UpDecoderBlock2D"] * 4,
            "use_post_quant_conv": False, "use_quant_conv": False}
QWEN3_8B = QWEN3_4B | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}


def flux2(heads, layers, singles, text, guided=False):
    return {"_class_name": "Flux2Transformer2DModel", "_diffusers_version": "0.37.0.dev0", "attention_head_dim": 128,
            "axes_dims_rope": [32, 32, 32, 32], "eps": 1e-06, "guidance_embeds": guided, "in_channels": 128,
            "joint_attention_dim": text, "mlp_ratio": 3.0, "num_attention_heads": heads, "num_layers": layers,
            "num_single_layers": singles, "out_channels": None, "patch_size": 1, "rope_theta": 2000,
            "timestep_guidance_channels": 256}


FLUX2_VAE = {"_class_name": "AutoencoderKLFlux2", "_diffusers_version": "0.37.0.dev0", "act_fn": "silu",
             "batch_norm_eps": 0.0001, "batch_norm_momentum": 0.1, "block_out_channels": [128, 256, 512, 512],
             "down_block_types": ["DownEncoderBlock2D"] * 4, "force_upcast": True, "in_channels": 3,
             "latent_channels": 32, "layers_per_block": 2, "mid_block_add_attention": True, "norm_num_groups": 32,
             "out_channels": 3, "patch_size": [2, 2], "sample_size": 1024, "up_block_types": ["UpDecoderBlock2D"] * 4,
             "use_post_quant_conv": True, "use_quant_conv": True}


QWEN3_VL_4B = {
    "architectures": ["Qwen3VLModel"], "model_type": "qwen3_vl", "image_token_id": 151655, "tie_word_embeddings": True,
    "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "text_config": {"attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
                    "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
                    "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
                    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
                    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20],
                                     "rope_type": "default"},
                    "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936},
    "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh",
                      "hidden_size": 1024, "in_channels": 3, "intermediate_size": 4096, "model_type": "qwen3_vl",
                      "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
                      "spatial_merge_size": 2, "temporal_patch_size": 2}}
KREA2 = {"_class_name": "Krea2Transformer2DModel", "_diffusers_version": "0.42.0.dev0", "attention_head_dim": 128,
         "axes_dims_rope": [32, 48, 48], "in_channels": 64, "intermediate_size": 16384, "norm_eps": 1e-05,
         "num_attention_heads": 48, "num_key_value_heads": 12, "num_layers": 28, "num_layerwise_text_blocks": 2,
         "num_refiner_text_blocks": 2, "num_text_layers": 12, "rope_theta": 1000.0, "text_hidden_dim": 2560,
         "text_intermediate_size": 6912, "text_num_attention_heads": 20, "text_num_key_value_heads": 20,
         "timestep_embed_dim": 256}


def unipc(shift):
    path = GOLDEN / "pipeline_t2v/model/scheduler/scheduler_config.json"
    return json.loads(path.read_text()) | {"flow_shift": shift}


def euler(**changes):
    return {"_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.30.0.dev0",
            "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 4096, "max_shift": 1.15,
            "num_train_timesteps": 1000, "shift": 1.0, "use_dynamic_shifting": False} | changes


# --- tokenizers, small but valid ---

def spiece(folder):
    shutil.copytree(GOLDEN / "pipeline_t2v/model/tokenizer", folder)


def qwen(folder):
    shutil.copytree(GOLDEN / "pipeline_zimage_turbo/model/tokenizer", folder)


def qwen_in_parts(folder):
    """vocab.json and merges.txt in place of a tokenizer.json."""
    made = json.loads((GOLDEN / "pipeline_qwen_image/model/tokenizer/tokenizer.json").read_text())
    added = {token["content"] for token in made["added_tokens"]}
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in made["model"]["merges"]]
    write_json(folder / "vocab.json", {t: i for t, i in made["model"]["vocab"].items() if t not in added})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 131072,
        "added_tokens_decoder": {token["id"]: {k: v for k, v in token.items() if k != "id"}
                                 for token in made["added_tokens"]}})


def clip(folder):
    shutil.copytree(GOLDEN / "pipeline_flux_schnell/model/tokenizer", folder)


def t5(folder):
    shutil.copytree(GOLDEN / "pipeline_flux_schnell/model/tokenizer_2", folder)


# --- folders ---

DIFFUSERS, TRANSFORMERS = "diffusers", "transformers"


def pipeline(name, parts, scheduler, **facts):
    """parts: name to (library, class, how to make it in its folder)."""
    def make(folder):
        index = {"_class_name": name, "_diffusers_version": "0.35.0.dev0"} | facts
        for part, (library, kind, fill) in parts.items():
            index[part] = [library, kind]
            if fill:
                fill(folder / part)
        index["scheduler"] = [DIFFUSERS, scheduler["_class_name"]]
        write_json(folder / "scheduler/scheduler_config.json", scheduler)
        write_json(folder / "model_index.json", index)
    return make


def weights(config, dtype="BF16", **how):
    return lambda folder: component(folder, config, dtype, **how)


def wan_pipeline(name, transformer, shift, dtype="BF16", second=None, image=False, vae=WAN_VAE, **facts):
    parts = {
        "text_encoder": (TRANSFORMERS, "UMT5EncoderModel", weights(UMT5, dtype)),
        "tokenizer": (TRANSFORMERS, "T5TokenizerFast", spiece),
        "transformer": (DIFFUSERS, "WanTransformer3DModel", weights(transformer, dtype)),
        "transformer_2": (DIFFUSERS, "WanTransformer3DModel", weights(second, dtype)) if second else (None, None, None),
        "vae": (DIFFUSERS, "AutoencoderKLWan", weights(vae, "F32"))}
    if image:
        parts["image_encoder"] = (TRANSFORMERS, "CLIPVisionModel", weights(CLIP_H, "F32"))
        parts["image_processor"] = (TRANSFORMERS, "CLIPImageProcessor", lambda folder: write_json(
            folder / "preprocessor_config.json", {"crop_size": {"height": 224, "width": 224},
                                                  "size": {"shortest_edge": 224}, "resample": 3}))
    return pipeline(name, parts, unipc(shift), **facts)


def visual_tower():
    """The tensors of Qwen2.5-VL's vision tower, which its file holds and a picture model does not read."""
    block = {"attn.proj": (1280, 1280), "attn.qkv": (3840, 1280), "mlp.down_proj": (1280, 3420),
             "mlp.gate_proj": (3420, 1280), "mlp.up_proj": (3420, 1280)}
    for i in range(32):
        for name, shape in block.items():
            yield f"visual.blocks.{i}.{name}.weight", list(shape)
            yield f"visual.blocks.{i}.{name}.bias", [shape[0]]
        for name in ("norm1", "norm2"):
            yield f"visual.blocks.{i}.{name}.weight", [1280]
    yield "visual.patch_embed.proj.weight", [1280, 3, 2, 14, 14]


def original_s2v(folder):
    """Wan2.2-S2V-14B in its authors' layout. The tensors are those of a 14B text-to-video transformer under
    their original names, and what speech adds."""
    width, ffn, audio = 5120, 13824, 1280
    shapes = {"patch_embedding": (width, 16, 1, 2, 2), "time_embedding.0": (width, 256),
              "time_embedding.2": (width, width), "time_projection.1": (6 * width, width),
              "text_embedding.0": (width, 4096), "text_embedding.2": (width, width), "head.head": (64, width),
              "cond_encoder": (width, 16, 1, 2, 2), "frame_packer.proj": (width, 16, 1, 2, 2),
              "frame_packer.proj_2x": (width, 16, 2, 4, 4), "frame_packer.proj_4x": (width, 16, 4, 8, 8)}
    vectors = {"head.modulation": (1, 2, width), "trainable_cond_mask.weight": (3, width)}
    attention = ("q", "k", "v", "o")
    for i in range(40):
        for part in ("self_attn", "cross_attn"):
            shapes |= {f"blocks.{i}.{part}.{name}": (width, width) for name in attention}
            vectors |= {f"blocks.{i}.{part}.norm_{name}.weight": (width,) for name in "qk"}
        shapes |= {f"blocks.{i}.ffn.0": (ffn, width), f"blocks.{i}.ffn.2": (width, ffn)}
        vectors |= {f"blocks.{i}.norm3.{kind}": (width,) for kind in ("weight", "bias")}
        vectors[f"blocks.{i}.modulation"] = (1, 6, width)
    for i in range(12):
        shapes |= {f"audio_injector.injector.{i}.{name}": (width, width) for name in attention}
        vectors |= {f"audio_injector.injector.{i}.norm_{name}.weight": (width,) for name in "qk"}
        shapes[f"audio_injector.injector_adain_layers.{i}.linear"] = (2 * width, width)
    encoder = "casual_audio_encoder.encoder."
    vectors |= {"casual_audio_encoder.weights": (1, 25, 1, 1), encoder + "padding_tokens": (1, 1, 1, width)}
    shapes |= {encoder + "conv1_local.conv": (4 * audio, 1024, 3), encoder + "conv1_global.conv": (audio, 1024, 3),
               encoder + "conv2.conv": (2 * audio, audio, 3), encoder + "conv3.conv": (width, 2 * audio, 3),
               encoder + "final_linear": (width, width)}
    tensors = [(name, list(shape)) for name, shape in vectors.items()]
    for name, shape in shapes.items():
        tensors += [(f"{name}.weight", list(shape)), (f"{name}.bias", [shape[0]])]
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {
        "_class_name": "WanModel_S2V", "_diffusers_version": "0.35.0.dev0", "add_last_motion": True, "adain_mode": "attn_norm",
        "audio_dim": 1024, "audio_inject_layers": [0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39], "cond_dim": 16,
        "dim": width, "enable_adain": True, "enable_framepack": True, "enable_motioner": False, "eps": 1e-06, "ffn_dim": ffn, "freq_dim": 256,
        "framepack_drop_mode": "padd", "in_dim": 16, "model_type": "s2v", "num_audio_token": 4, "num_heads": 40,
        "num_layers": 40, "out_dim": 16, "text_len": 512, "trainable_token_pos_emb": False, "zero_init": True,
        "zero_timestep": True})
    write_weights(folder, "diffusion_pytorch_model", tensors, "BF16")
    for name in ("Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth"):
        (folder / name).write_bytes(b"PK\x03\x04")
    spiece(folder / "google/umt5-xxl")
    speech = folder / "wav2vec2-large-xlsr-53-english"
    write_json(speech / "config.json", WAV2VEC2)
    write_weights(speech, "model", tensors_of(speech / "config.json"), "F32")
    line = run("generate", "--model", folder, "--prompt", "x", "--dry-run").stderr
    if "Wan2.1_VAE.pth is not read" not in line:
        fault(f"S2V as it is published: {line.strip()}")
    # The parts that are pickles, as they are repacked.
    for config, name, dtype in ((WAN_VAE, "wan_2.1_vae", "F32"), (UMT5, "umt5_xxl_fp16", "BF16")):
        with tempfile.TemporaryDirectory() as scratch:
            write_json(pathlib.Path(scratch) / "config.json", config)
            write_sparse(folder / f"{name}.safetensors", tensors_of(pathlib.Path(scratch) / "config.json"), dtype)
    return tensors


def klein(transformer, text, distilled):
    """FLUX.2 klein, or its base."""
    return pipeline("Flux2KleinPipeline", {
        "text_encoder": (TRANSFORMERS, "Qwen3ForCausalLM", weights(text)),
        "tokenizer": (TRANSFORMERS, "Qwen2TokenizerFast", qwen),
        "transformer": (DIFFUSERS, "Flux2Transformer2DModel", weights(transformer)),
        "vae": (DIFFUSERS, "AutoencoderKLFlux2", weights(FLUX2_VAE, "F32"))},
        euler(shift=3.0, use_dynamic_shifting=True), is_distilled=distilled)


def z_image(shift):
    """Z-Image-Turbo, or Z-Image."""
    return pipeline("ZImagePipeline", {
        "text_encoder": (TRANSFORMERS, "Qwen3Model", weights(QWEN3_4B)),
        "tokenizer": (TRANSFORMERS, "Qwen2Tokenizer", qwen),
        "transformer": (DIFFUSERS, "ZImageTransformer2DModel", weights(Z_IMAGE)),
        "vae": (DIFFUSERS, "AutoencoderKL", weights(FLUX_VAE))}, euler(shift=shift))


def krea2(distilled):
    """Krea-2, raw or turbo. The file of its text encoder also holds a vision tower, of which this has a part."""
    return pipeline("Krea2Pipeline", {
        "text_encoder": (TRANSFORMERS, "Qwen3VLModel", weights(
            QWEN3_VL_4B, rename=lambda name: "language_model." + name,
            extra=[("visual.pos_embed.weight", [2304, 1024])])),
        "tokenizer": (TRANSFORMERS, "Qwen2TokenizerFast", qwen),
        "transformer": (DIFFUSERS, "Krea2Transformer2DModel", weights(KREA2)),
        "vae": (DIFFUSERS, "AutoencoderKLQwenImage", weights(WAN_VAE | {"_class_name": "AutoencoderKLQwenImage"}))},
        euler(max_image_seq_len=6400, use_dynamic_shifting=True), is_distilled=distilled, patch_size=2,
        text_encoder_select_layers=[2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35])


KLEIN_4B, KLEIN_9B = flux2(24, 5, 20, 7680), flux2(32, 8, 24, 12288)
WAN_I2V = "WanImageToVideoPipeline"
WAN_14B_I2V = wan(40, 40, 13824, (36, 16), **IMAGE_BRANCH)
FOLDERS = {  # name: how to make it, and the parameters and tensors of its transformer
    "Wan2.1-T2V-1.3B-Diffusers": (wan_pipeline("WanPipeline", WAN_1B, 3.0, "F32"), (1_418_996_800, 825)),
    "Wan2.1-T2V-14B-Diffusers": (wan_pipeline("WanPipeline", WAN_14B, 3.0), (14_288_491_584, 1095)),
    "Wan2.1-I2V-14B-480P-Diffusers": (wan_pipeline(WAN_I2V, WAN_14B_I2V, 3.0, image=True), (16_394_878_784, 1303)),
    "Wan2.1-FLF2V-14B-720P-diffusers": (wan_pipeline(
        WAN_I2V, WAN_14B_I2V | {"pos_embed_seq_len": 514}, 16.0, image=True), (16_395_536_704, 1304)),
    "Wan2.2-T2V-A14B-Diffusers": (wan_pipeline(
        "WanPipeline", WAN_14B, 3.0, second=WAN_14B, boundary_ratio=0.875), (14_288_491_584, 1095)),
    "Wan2.2-I2V-A14B-Diffusers": (wan_pipeline(
        WAN_I2V, wan(40, 40, 13824, (36, 16)), 3.0, second=wan(40, 40, 13824, (36, 16)), boundary_ratio=0.9),
        (14_288_901_184, 1095)),
    "Wan2.2-TI2V-5B-Diffusers": (wan_pipeline(
        "WanPipeline", wan(24, 30, 14336, (48, 48)), 5.0, vae=WAN_VAE_22, expand_timesteps=True),
        (4_999_787_712, 825)),
    "Wan2.2-S2V-14B": (original_s2v, (16_295_755_609, 1260)),
    "Z-Image-Turbo": (z_image(3.0), (6_154_908_736, None)),
    "Z-Image": (z_image(6.0), (6_154_908_736, None)),
    "Qwen-Image": (pipeline("QwenImagePipeline", {
        "text_encoder": (TRANSFORMERS, "Qwen2_5_VLForConditionalGeneration",
                         weights(QWEN_VL, extra=list(visual_tower()))),
        "tokenizer": (TRANSFORMERS, "Qwen2Tokenizer", qwen_in_parts),
        "transformer": (DIFFUSERS, "QwenImageTransformer2DModel", weights(QWEN_IMAGE)),
        "vae": (DIFFUSERS, "AutoencoderKLQwenImage", weights(WAN_VAE | {"_class_name": "AutoencoderKLQwenImage"}))},
        euler(max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02, use_dynamic_shifting=True)),
        (20_430_401_088, None)),
    "FLUX.1-schnell": (pipeline("FluxPipeline", {
        "text_encoder": (TRANSFORMERS, "CLIPTextModel", weights(CLIP_L, rename=lambda name: "text_model." + name)),
        "text_encoder_2": (TRANSFORMERS, "T5EncoderModel", weights(T5)),
        "tokenizer": (TRANSFORMERS, "CLIPTokenizer", clip),
        "tokenizer_2": (TRANSFORMERS, "T5TokenizerFast", t5),
        "transformer": (DIFFUSERS, "FluxTransformer2DModel", weights(FLUX)),
        "vae": (DIFFUSERS, "AutoencoderKL", weights(FLUX_VAE))}, euler()), (11_891_178_560, None)),
    "FLUX.2-klein-4B": (klein(KLEIN_4B, QWEN3_4B, True), (3_875_544_576, 169)),
    "FLUX.2-klein-base-4B": (klein(KLEIN_4B, QWEN3_4B, False), (3_875_544_576, 169)),
    "FLUX.2-klein-9B": (klein(KLEIN_9B, QWEN3_8B, True), (9_078_581_248, 233)),
    "FLUX.2-klein-base-9B": (klein(KLEIN_9B, QWEN3_8B, False), (9_078_581_248, 233)),
    "Krea-2": (krea2(False), (12_820_073_036, 430)),
    "Krea-2-Turbo": (krea2(True), (12_820_073_036, 430)),
}
RUNS = ("Wan2.1-T2V-1.3B-Diffusers", "Wan2.1-T2V-14B-Diffusers", "Wan2.1-I2V-14B-480P-Diffusers",
        "Wan2.1-FLF2V-14B-720P-diffusers", "Wan2.2-T2V-A14B-Diffusers", "Wan2.2-I2V-A14B-Diffusers",
        "Wan2.2-TI2V-5B-Diffusers", "Wan2.2-S2V-14B", "Z-Image-Turbo", "Z-Image", "Qwen-Image", "FLUX.1-schnell",
        "FLUX.2-klein-4B", "FLUX.2-klein-base-4B", "FLUX.2-klein-9B", "FLUX.2-klein-base-9B", "Krea-2",
        "Krea-2-Turbo")


# --- checks ---

def silence(path, seconds=7, rate=16000):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(2 * rate * seconds))
    return path


def check_one_line(what, done):
    line = done.stderr.strip()
    if done.returncode not in (2, 3, 4) or not line or "\n" in line or len(line) > 600:
        fault(f"{what}: exit code {done.returncode}: {line[:600]}")


def check_counts(name, object_, counts):
    facts = object_.get("components", {}).get("transformer")
    if facts and (facts["parameters"] != counts[0] or counts[1] not in (None, facts["tensors"])):
        fault(f"{name}: {facts['parameters']} parameters and {facts['tensors']} tensors, not {counts}")


def licence_of(name):
    """Of the weights with which the model is published."""
    if "9B" in name or "dev" in name:
        return "FLUX Non-Commercial License"
    return "Krea 2 Community License" if "Krea" in name else "Apache-2.0"


def check_licence(name, object_):
    licence = object_.get("licence", {})
    if licence.get("name") != licence_of(name) or (
            (licence_of(name) == "Apache-2.0") != (licence["commercial_use"] == "free")):
        fault(f"{name}: its licence is {licence}")


def check_transformer(name, folder, config, counts):
    """A transformer whose pipeline is not known, from its config alone."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    shown = run("inspect", folder / "config.json", "--json")
    object_ = json.loads(shown.stdout) if shown.returncode == 0 else {}
    if (object_.get("parameters"), object_.get("tensors")) != counts:
        fault(f"{name}: {object_} {shown.stderr}")
    check_licence(name, object_)
    print(f"{name}: counts")


def check(name, folder, make, counts):
    tensors = make(folder)
    if tensors:
        parameters = sum(math.prod(shape) for _, shape in tensors)
        if (parameters, len(tensors)) != counts:
            fault(f"{name}: {parameters} parameters and {len(tensors)} tensors, not {counts}")
    shown = run("inspect", folder, "--json")
    if shown.returncode == 0:
        check_counts(name, json.loads(shown.stdout), counts)
        if "model" in json.loads(shown.stdout):
            check_licence(name, json.loads(shown.stdout))
    else:
        check_one_line(f"inspect {name}", shown)
    # The memory of this machine is not what is tried here.
    pictures = ["--image", PICTURE] if "I2V" in name else []
    if "klein" in name:
        pictures = ["--reference", PICTURE]
    if "FLF2V" in name:
        pictures = ["--image", PICTURE, "--last-image", PICTURE]
    if "S2V" in name:
        pictures = ["--image", PICTURE, "--audio", silence(folder / "silence.wav")]
    plan = run("generate", "--model", folder, "--prompt", "a red ball", "--dry-run", "--dtype", "bf16",
               *pictures, "-o", folder / ("a.mp4" if "Wan" in name else "a.png"))
    planned = plan.returncode in (0, 4) and re.search("^memory  weights ", plan.stdout, re.M)
    if not planned:
        check_one_line(f"generate {name}", plan)
    if planned and plan.stdout.startswith("licence ") == (licence_of(name) == "Apache-2.0"):
        fault(f"{name}: the run begins with {plan.stdout[:100]}")
    if name in RUNS and not (shown.returncode == 0 and planned):
        fault(f"{name} does not plan: {shown.stderr.strip()} {plan.stderr.strip()}")
    print(f"{name}: {'plans' if planned else plan.stderr.strip()}")


def main():
    root = pathlib.Path(KEEP or tempfile.mkdtemp(prefix="weft_layouts_"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        for name in ARGUMENTS[1:] or FOLDERS:
            shutil.rmtree(root / name, ignore_errors=True)
            check(name, root / name, *FOLDERS[name])
        if not ARGUMENTS[1:]:
            check_transformer("FLUX.2-dev", root / "FLUX.2-dev", flux2(48, 8, 48, 15360, guided=True),
                              (32_223_281_152, 331))
    finally:
        if not KEEP:
            shutil.rmtree(root)
    sys.exit(1 if faults else 0)


main()
