"""Makes conformance cases for `weft verify` with the reference implementations, on a CPU in float32.

usage: make_cases.py OUT_FOLDER [--seed N] [--only STAGE[,STAGE]] [--count N]
       make_cases.py OUT_FOLDER --language-model FOLDER [--prompt TEXT]  of a folder's own weights and vocabulary
needs: pip install -r requirements.txt (the versions are recorded in each case)

Weights are random but well-conditioned: every tensor matters, zero-initialised ones included. Sizes,
heads, lengths and seeds are drawn from --seed, so that each seed gives other cases of the same kinds.
"""
import argparse
import collections
import json
import os
import pathlib
import random

import sentencepiece
import torch
from diffusers.utils import logging
from diffusers import (AutoencoderKL, AutoencoderKLWan, DPMSolverMultistepScheduler,
                       FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel,
                       UniPCMultistepScheduler, WanTransformer3DModel)
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import __version__ as tokenizers_version
from transformers import (AutoModelForCausalLM, CLIPTextConfig, CLIPTextModel, CLIPTokenizer,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, T5Config,
                          T5EncoderModel, T5TokenizerFast, UMT5Config, UMT5EncoderModel)
from transformers.utils.logging import disable_progress_bar

BF16_FLOOR = 2e-2


def draw_weights(module, generator):
    """Every parameter gets values that matter: matrices ~ 1/sqrt(fan in), norms near 1."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name and name.endswith(("weight", "gamma")) and p.squeeze().ndim < 2:
                p.copy_(1 + 0.1 * noise)
            elif "scale_shift_table" in name:
                p.copy_(0.3 * noise)
            elif name.endswith("bias") or p.ndim < 2:
                p.copy_(0.1 * noise)
            elif "relative_attention_bias" in name or "shared" in name or "embed_tokens" in name:
                p.copy_(noise)
            else:
                p.copy_(noise / p[0].numel() ** 0.5)


def rel_l2(a, b):
    return ((a - b).double().norm() / b.double().norm().clamp_min(1e-30)).item()


class Case:
    def __init__(self, root, name, stage, tolerance):
        self.folder = root / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.spec = {"stage": stage, "tolerance": tolerance,
                     "made_with": {"torch": torch.__version__}}
        self.inputs, self.expected = {}, {}

    def borrow(self, part, path):
        """Names the folder or file of a part elsewhere, of which the case needs no copy."""
        self.spec.setdefault("model", {})[part] = os.path.relpath(path, self.folder)

    def save(self):
        if self.inputs:
            save_file({k: v.contiguous() for k, v in self.inputs.items()},
                      self.folder / "inputs.safetensors")
        if self.expected:
            save_file({k: (v.float() if v.is_floating_point() else v).contiguous()
                       for k, v in self.expected.items()},
                      self.folder / "expected.safetensors")
        (self.folder / "case.json").write_text(json.dumps(self.spec, indent=1))
        print(self.folder)


def bf16_tolerance(reference, lowered):
    """Twice the reference's own bfloat16 error, at least the floor."""
    worst = max(rel_l2(lowered[k].float(), reference[k].float()) for k in reference)
    return max(BF16_FLOOR, 2 * worst)


def transformer(root, rng, generator):
    heads, head_dim = rng.choice([(1, 32), (3, 16), (5, 12), (2, 128), (4, 20)])
    config = dict(num_attention_heads=heads, attention_head_dim=head_dim,
                  num_layers=rng.randint(1, 4), ffn_dim=rng.choice([40, 96, 161]),
                  in_channels=rng.choice([4, 16]), out_channels=rng.choice([4, 16]),
                  text_dim=rng.choice([24, 48]), freq_dim=256, rope_max_seq_len=64)
    model = WanTransformer3DModel(**config).eval()
    draw_weights(model, generator)
    frames, height, width = rng.randint(1, 5), 2 * rng.randint(1, 6), 2 * rng.randint(1, 6)
    latent = torch.randn(1, config["in_channels"], frames, height, width, generator=generator)
    text = torch.randn(1, rng.choice([1, 7, 33]), config["text_dim"], generator=generator)
    timestep = torch.tensor([float(rng.randint(1, 999))])

    def run(dtype):
        net, seen = model.to(dtype), {}
        hooks = [net.patch_embedding.register_forward_hook(
            lambda m, i, o: seen.__setitem__("patch_embedding", o[0].flatten(1).T))]
        hooks.append(net.condition_embedder.register_forward_hook(
            lambda m, i, o: seen.update(temb=o[0][0], timestep_proj=o[1][0].view(6, -1),
                                        context=o[2][0])))
        for n, block in enumerate(net.blocks):
            hooks.append(block.register_forward_hook(
                lambda m, i, o, n=n: seen.__setitem__(f"blocks.{n}", o[0])))
        with torch.no_grad():
            seen["output"] = net(latent.to(dtype), timestep, text.to(dtype), return_dict=False)[0][0]
        for hook in hooks:
            hook.remove()
        return seen

    case = Case(root, f"transformer_{heads}x{head_dim}", "transformer", 1e-4)
    model.save_pretrained(case.folder / "model/transformer")
    case.inputs = {"hidden_states": latent[0], "timestep": timestep, "encoder_hidden_states": text[0]}
    case.expected = run(torch.float32)
    case.spec["tolerance_bf16"] = bf16_tolerance(case.expected, run(torch.bfloat16))
    case.save()


def make_vae(rng, generator):
    patched = rng.random() < 0.4
    mult = rng.choice([[1, 2, 3], [1, 1, 2]]) if patched else rng.choice([[1, 1, 1, 1], [1, 2, 2, 3]])
    down = [True, True] if patched else [False, True, True]
    extra = dict(patch_size=2, in_channels=12, out_channels=12) if patched else {}
    vae = AutoencoderKLWan(base_dim=rng.choice([8, 12]), z_dim=16, dim_mult=mult,
                           num_res_blocks=rng.randint(1, 2), temperal_downsample=down, **extra).eval()
    draw_weights(vae, generator)
    return vae, patched


def vae_decode(root, rng, generator):
    vae, patched = make_vae(rng, generator)
    latents = torch.randn(1, 16, rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 4),
                          generator=generator)

    def run(dtype):
        with torch.no_grad():
            return {"video": vae.to(dtype).decode(latents.to(dtype), return_dict=False)[0][0]
                    .clamp(-1, 1)}

    case = Case(root, "vae_decode_patch" if patched else "vae_decode", "vae_decode", 1e-4)
    vae.save_pretrained(case.folder / "model/vae")
    case.inputs, case.expected = {"latents": latents[0]}, run(torch.float32)
    case.spec["tolerance_bf16"] = bf16_tolerance(case.expected, run(torch.bfloat16))
    case.save()


def vae_encode(root, rng, generator):
    vae, patched = make_vae(rng, generator)
    video = torch.rand(1, 3, 4 * rng.randint(0, 4) + 1, 8 * rng.randint(1, 4), 8 * rng.randint(1, 4),
                       generator=generator) * 2 - 1

    def run(dtype):
        with torch.no_grad():
            return {"mean": vae.to(dtype).encode(video.to(dtype)).latent_dist.mean[0]}

    case = Case(root, "vae_encode_patch" if patched else "vae_encode", "vae_encode", 1e-4)
    vae.save_pretrained(case.folder / "model/vae")
    case.inputs, case.expected = {"video": video[0]}, run(torch.float32)
    case.spec["tolerance_bf16"] = bf16_tolerance(case.expected, run(torch.bfloat16))
    case.save()


def text_encoder(root, rng, generator):
    heads, d_kv = rng.choice([(3, 8), (4, 16), (5, 4)])
    kind, make_config, make = rng.choice([("umt5", UMT5Config, UMT5EncoderModel), ("t5", T5Config, T5EncoderModel)])
    config = make_config(vocab_size=rng.choice([97, 300]), d_model=rng.choice([24, 40]), d_kv=d_kv,
                         d_ff=rng.choice([48, 80]), num_layers=rng.randint(1, 3), num_heads=heads,
                         feed_forward_proj="gated-gelu", dropout_rate=0.0)
    model = make(config).eval()
    draw_weights(model, generator)
    case = Case(root, f"text_encoder_{kind}_{heads}x{d_kv}", "text_encoder", 1e-4)
    for i, length in enumerate([1, rng.randint(2, 30), rng.randint(130, 300)]):
        ids = torch.randint(0, config.vocab_size, (1, length), generator=generator)
        with torch.no_grad():
            case.expected[f"last_hidden_state.{i}"] = model(ids).last_hidden_state[0]
        case.inputs[f"input_ids.{i}"] = ids[0].int()
    model.save_pretrained(case.folder / "model/text_encoder")
    case.save()


def scheduler(root, rng, generator):
    kind = rng.choice(["unipc", "dpmpp", "euler"])
    shift, steps = rng.choice([1.0, 3.0, 5.0, 12.0]), rng.choice([1, 2, 3, 7, 25])
    if kind == "unipc":
        s = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                    flow_shift=shift, num_train_timesteps=1000)
    elif kind == "dpmpp":
        s = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                        flow_shift=shift, num_train_timesteps=1000)
    else:
        s = FlowMatchEulerDiscreteScheduler(shift=shift, num_train_timesteps=1000)
    s.set_timesteps(steps)
    case = Case(root, f"scheduler_{kind}_n{steps}_s{shift:g}".replace(".", "_"), "scheduler", 1e-5)
    x = torch.randn(16, generator=generator)
    case.inputs = {"x": x.clone()}
    rows = []
    for i, t in enumerate(s.timesteps):
        velocity = 0.3 * x + s.sigmas[i] + 0.1 * torch.sin(3 * x)
        x = s.step(velocity[None], t, x[None], return_dict=False)[0][0]
        rows.append(x.clone())
    case.expected = {"sigmas": s.sigmas, "timesteps": s.timesteps, "x": torch.stack(rows)}
    case.spec["steps"] = steps
    s.save_pretrained(case.folder / "model/scheduler")
    case.save()


def noise(root, rng, generator):
    case = Case(root, "noise", "noise", 1e-5)
    case.spec["generator"] = "torch-cpu"
    case.spec["draws"] = []
    for count in (1, 5, 15, 16, 17, 31, rng.randint(100, 5000)):
        seed = rng.randint(0, 2**40)
        values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        case.spec["draws"].append({"seed": seed, "count": count})
        case.expected[f"{seed}.{count}"] = values
    case.save()


def fill_llm(case, folder, ids, greedy):
    """Logits and hidden states on a list of ids, and how they go on: the likeliest, up to the end id."""
    def load(dtype):  # never model.to(bfloat16): it would round the rotary table too
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def run(model):
        with torch.no_grad():
            out = model(torch.tensor([ids]), output_hidden_states=True)
        seen = {f"hidden_states.{k}": v[0] for k, v in enumerate(out.hidden_states)}
        return seen | {"logits": out.logits[0]}

    model = load(torch.float32)
    case.inputs = {"input_ids": torch.tensor(ids, dtype=torch.int32)}
    case.expected = run(model)
    case.spec["tolerance_bf16"] = bf16_tolerance(case.expected, run(load(torch.bfloat16)))
    row, margin = list(ids), float("inf")
    for _ in range(greedy):
        with torch.no_grad():
            best = model(torch.tensor([row])).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        row.append(best.indices[0].item())
        if row[-1] == model.config.eos_token_id:
            break
    case.expected["greedy_ids"] = torch.tensor(row[len(ids):], dtype=torch.int32)
    case.spec["greedy"] = len(row) - len(ids)
    case.spec["least_margin"] = margin  # between a chosen id's logit and the next best
    case.save()


def llm(root, rng, generator):
    kind = rng.choice(["qwen3", "qwen2"])
    kv_heads = rng.choice([1, 2, 3])
    heads, head_dim = kv_heads * rng.choice([1, 2, 4]), rng.choice([8, 16, 20])
    sizes = dict(vocab_size=rng.choice([97, 300, 512]), intermediate_size=rng.choice([40, 96]),
                 num_hidden_layers=rng.randint(1, 3), num_attention_heads=heads, num_key_value_heads=kv_heads,
                 tie_word_embeddings=rng.random() < 0.5, bos_token_id=None, eos_token_id=None,
                 rope_parameters={"rope_type": "default", "rope_theta": rng.choice([1e4, 1e6])})
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(hidden_size=rng.choice([32, 48]), head_dim=head_dim, **sizes))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(hidden_size=heads * head_dim, **sizes))
    draw_weights(model.eval(), generator)
    case = Case(root, f"llm_{kind}_{heads}x{kv_heads}x{head_dim}", "llm", 1e-4)
    model.save_pretrained(case.folder / "model")
    ids = torch.randint(0, sizes["vocab_size"], (rng.randint(5, 60),), generator=generator)
    fill_llm(case, case.folder / "model", ids.tolist(), rng.choice([8, 12]))


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {  # how models in use split a text into words; GPT-2's is ByteLevel's own
    "qwen": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt2": None,
}
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im|>", "<think>", "</think>"]  # the last two not special
SNIPPETS = [  # none younger than Unicode 14: the tables of two libraries must know them all
    "it's ", "WE'LL", "'\u017f", "e\u0301", "\u00e9", "o\u0338", " ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e", "\u200b",
    "\u200d", "\u2028", "\u0085", "\u732b", "\u4f60\u597d\u3002", "\ud55c", "\u1112\u1161\u11ab", "\U0001f680", "\U0001f469\u200d\U0001f467",
    "\u0967\u0968", "\u00bd", "\u2163", "12345", "3.14", "snake_case", "...!?", "//", "<|im", "|>", "\ufeff", "\ufffd", "\uff26\uff35",
    "\ufb01", "\u0130", "\u0e44\u0e17\u0e22", "\u0642\u0637\u0629", "\u0915\u094d\u0937", "\0", "\x1c", *ADDED]


def tokenizer(root, rng, generator):
    kind = rng.choice(list(PATTERNS))
    syllables = ["".join(rng.choice("bcdfgklmnprst") + rng.choice("aeiou\u00e9\u0436\u732b")) for _ in range(24)]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) + rng.choice(["", "", "ing", "'s", "\u3002"]) for _ in range(150)]
    made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    made.normalizer = normalizers.NFC() if kind == "qwen" else None
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    made.pre_tokenizer = own if kind == "gpt2" else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated"), own])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([" ".join(rng.choices(words, k=400))] + SNIPPETS, trainers.BpeTrainer(
        vocab_size=rng.randint(300, 700), show_progress=False, initial_alphabet=sorted(own.alphabet())))
    made.add_special_tokens([AddedToken(token, normalized=False) for token in ADDED[:-2]])
    made.add_tokens([AddedToken(token, normalized=False) for token in ADDED[-2:]])
    texts = [rng.choice(["", " "]).join(rng.choices(words[:20] + SNIPPETS, k=rng.randint(1, 12))) for _ in range(60)]
    case = Case(root, f"tokenizer_bpe_{kind}", "tokenizer", 0)
    (case.folder / "model/tokenizer").mkdir(parents=True, exist_ok=True)
    made.save(str(case.folder / "model/tokenizer/tokenizer.json"))
    fill_tokenizer(case, made, texts)


def fill_tokenizer(case, made, texts):
    ids = [made.encode(text).ids for text in texts]
    decoded = [made.decode(row, skip_special_tokens=False) for row in ids]
    case.spec |= {"made_with": {"tokenizers": tokenizers_version}, "texts": texts, "ids": ids, "decoded": decoded}
    case.save()


PROMPTS = ["a small red ball on gray", "two blue stars, circling", "the cat's green hat", "A big WHITE ring"]
CLIP_ENDS = ["<|startoftext|>", "<|endoftext|>"]


def byte_letters():
    """GPT-2's printable character of every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in plain else next(rest)) for byte in range(256)]


def write_clip_tokenizer(folder, texts, merges):
    """vocab.json and merges.txt in CLIP's form: letters, letters that end a word, merges, two ends."""
    letters = byte_letters()
    spelled = [[letters[byte] for byte in word.encode()] for text in texts
               for word in text.lower().replace(",", " ,").split()]
    words = collections.Counter((*word[:-1], word[-1] + "</w>") for word in spelled)
    tokens, pairs = letters + [letter + "</w>" for letter in letters], []
    for _ in range(merges):
        seen = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                seen[pair] += count
        if not seen:
            break
        (left, right), _ = max(seen.items(), key=lambda item: (item[1], item[0]))
        pairs.append(f"{left} {right}")
        tokens.append(left + right)
        merged = collections.Counter()
        for word, count in words.items():
            out = []
            for symbol in word:
                if out and out[-1] == left and symbol == right:
                    out[-1] += symbol
                else:
                    out.append(symbol)
            merged[tuple(out)] += count
        words = merged
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens + CLIP_ENDS))}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "bos_token": CLIP_ENDS[0], "eos_token": CLIP_ENDS[1],
        "unk_token": CLIP_ENDS[1], "pad_token": CLIP_ENDS[1], "model_max_length": 77,
        "tokenizer_class": "CLIPTokenizer"}))
    return CLIPTokenizer.from_pretrained(folder)


def clip_tokenizer(root, rng, generator):
    case = Case(root, "tokenizer_clip", "tokenizer", 0)
    made = write_clip_tokenizer(case.folder / "model/tokenizer", PROMPTS + SNIPPETS, rng.randint(20, 200))
    texts = [rng.choice(["", " "]).join(rng.choices(PROMPTS + SNIPPETS + CLIP_ENDS, k=rng.randint(1, 12)))
             for _ in range(60)] + ["", " ".join(PROMPTS * 8)]
    ids = [made(text, truncation=True, max_length=77).input_ids for text in texts]
    case.spec |= {"made_with": {"tokenizers": tokenizers_version}, "texts": texts, "ids": ids, "max_length": 77}
    case.save()


def write_t5_tokenizer(folder, vocab_size):
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROMPTS * 20), model_prefix=str(folder / "spiece"), vocab_size=vocab_size,
        character_coverage=1.0, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    (folder / "spiece.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "extra_ids": 0, "model_max_length": 512, "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
        "tokenizer_class": "T5Tokenizer"}))
    return T5TokenizerFast.from_pretrained(folder)


def flux_parts(folder, rng, generator, dev):
    heads, axes = rng.choice([(4, (2, 2, 4)), (3, (4, 4, 4)), (2, (4, 6, 6))])
    t5_heads, clip_heads = rng.choice([(4, 3), (3, 2), (2, 4)])
    tokenizer, tokenizer_2 = (write_clip_tokenizer(folder / "tokenizer", PROMPTS, rng.randint(30, 90)),
                              write_t5_tokenizer(folder / "tokenizer_2", 80))
    text_encoder = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=8 * clip_heads, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=clip_heads, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id))
    text_encoder_2 = T5EncoderModel(T5Config(
        vocab_size=len(tokenizer_2) + 3, d_model=rng.choice([24, 32]), d_kv=8, d_ff=48, num_layers=2,
        num_heads=t5_heads, feed_forward_proj="gated-gelu", dropout_rate=0.0))
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=rng.randint(1, 2), num_single_layers=2,
        attention_head_dim=sum(axes), num_attention_heads=heads, joint_attention_dim=text_encoder_2.config.d_model,
        pooled_projection_dim=text_encoder.config.hidden_size, guidance_embeds=dev, axes_dims_rope=axes)
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=(8, 16, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159)
    for module in (text_encoder, text_encoder_2, transformer, vae):
        draw_weights(module.eval(), generator)
    scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0 if dev else 1.0, use_dynamic_shifting=dev, base_shift=0.5, max_shift=1.15,
        base_image_seq_len=256, max_image_seq_len=4096)
    pipe = FluxPipeline(scheduler=scheduler, vae=vae, text_encoder=text_encoder, tokenizer=tokenizer,
                        text_encoder_2=text_encoder_2, tokenizer_2=tokenizer_2, transformer=transformer)
    pipe.set_progress_bar_config(disable=True)
    for name in ("text_encoder", "text_encoder_2", "transformer", "vae", "scheduler"):
        getattr(pipe, name).save_pretrained(folder / name)
    index = {"_class_name": "FluxPipeline", "_diffusers_version": "0.42.1"}
    for name in ("scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "vae"):
        module = type(getattr(pipe, name))
        index[name] = [module.__module__.split(".")[0], module.__name__]
    (folder / "model_index.json").write_text(json.dumps(index, indent=1))
    return pipe


def flux_pipeline(root, rng, generator):
    dev = rng.random() < 0.5
    case = Case(root, "pipeline_flux_" + ("dev" if dev else "schnell"), "pipeline", 2e-4)
    guidance = rng.choice([2.0, 4.0])  # 1000 times these are bfloat16 numbers, so that its runs see the same scale
    pipe = flux_parts(case.folder / "model", rng, generator, dev)
    case.spec |= dict(prompt=rng.choice(PROMPTS), negative_prompt="", height=8 * rng.randint(3, 6),
                      width=8 * rng.randint(3, 6), frames=1, steps=rng.randint(3, 5),
                      guidance_scale=guidance if dev else 0.0, seed=rng.randint(0, 2**31), rng="torch-cpu")
    rows = 512 if dev else 256
    size = dict(height=case.spec["height"], width=case.spec["width"])
    h, w = case.spec["height"] // 4, case.spec["width"] // 4
    noise = torch.randn(1, 4, h, w, generator=torch.Generator().manual_seed(case.spec["seed"]))

    def unpacked(latents):
        return pipe._unpack_latents(latents.float(), *size.values(), pipe.vae_scale_factor)[0, :, None]

    def run(dtype):
        with torch.no_grad():
            for module in (pipe.text_encoder, pipe.text_encoder_2, pipe.transformer):
                module.to(dtype)
            embeds, pooled, _ = pipe.encode_prompt(case.spec["prompt"], None, max_sequence_length=rows)
            latents = pipe(prompt=case.spec["prompt"], **size, num_inference_steps=case.spec["steps"],
                           guidance_scale=case.spec["guidance_scale"], max_sequence_length=rows,
                           latents=pipe._pack_latents(noise, 1, 4, h, w).to(dtype), output_type="latent").images
            final = unpacked(latents)
            z = final[:, 0][None] / pipe.vae.config.scaling_factor + pipe.vae.config.shift_factor
            image = (pipe.vae.decode(z, return_dict=False)[0] / 2 + 0.5).clamp(0, 1)
        return {"prompt_embeds": embeds[0], "pooled_prompt_embeds": pooled[0], "latents_final": final,
                "video": image[0, :, None]}

    case.expected = run(torch.float32)
    lowered = run(torch.bfloat16)
    case.spec["tolerance_bf16"] = bf16_tolerance(
        {k: v - 0.5 if k == "video" else v for k, v in case.expected.items()},
        {k: v.float() - 0.5 if k == "video" else v for k, v in lowered.items()})
    case.expected["latents_initial"] = noise[0, :, None]
    case.save()


def language_model(root, folder, prompt):
    """Cases of a folder's own weights and vocabulary, which they name and do not copy."""
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chat = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    case = Case(root, f"llm_{folder.parent.name}", "llm", 1e-4)
    case.borrow("language", folder)
    fill_llm(case, folder, made.encode(chat).ids, 20)
    case = Case(root, f"tokenizer_{folder.parent.name}", "tokenizer", 0)
    case.borrow("tokenizer", folder)
    fill_tokenizer(case, made, [chat, prompt.upper(), *SNIPPETS])


STAGES = dict(transformer=transformer, vae_decode=vae_decode, vae_encode=vae_encode,
              text_encoder=text_encoder, scheduler=scheduler, noise=noise, llm=llm,
              tokenizer=tokenizer, clip_tokenizer=clip_tokenizer, flux_pipeline=flux_pipeline)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(STAGES))
    parser.add_argument("--count", type=int, default=1, help="cases per stage")
    parser.add_argument("--language-model", type=pathlib.Path, help="only its cases")
    parser.add_argument("--prompt", default="hoop, orange, going left, navy, big",
                        help="one that leaves nothing open has clear choices")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    disable_progress_bar()
    if args.language_model:
        language_model(args.out, args.language_model, args.prompt)
        return
    for n in range(args.count):
        rng = random.Random(args.seed * 1000 + n)
        generator = torch.Generator().manual_seed(args.seed * 1000 + n)
        root = args.out / f"seed{args.seed}_{n}"
        for stage in args.only.split(","):
            STAGES[stage](root, rng, generator)


if __name__ == "__main__":
    main()
