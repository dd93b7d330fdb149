"""Draw prompts with the model in training (or an exported folder), read them back, keep a grid of frames."""
import argparse, json, os, time
import numpy as np
import torch
from diffusers import UniPCMultistepScheduler
import clips, dit as D, vae as V
from read import read


def token_rows(sp, texts, width=16):
    """ids (b, width + 1): the last column stands for all the padding."""
    ids = torch.zeros(len(texts), width + 1, dtype=torch.long)
    for i, t in enumerate(texts):
        row = (sp.encode(t)[:width - 1] if t else []) + [1]
        ids[i, :len(row)] = torch.tensor(row)
    return ids


def pad_bias(ids, total):
    """total (b,): length to which the text would be padded."""
    n = ids.ne(0).sum(1)
    bias = torch.zeros(ids.shape, device=ids.device).masked_fill(ids.eq(0), float("-inf"))
    bias[:, -1] = (total.to(ids.device) - n).float().log()
    return bias[:, None, None]


@torch.no_grad()
def generate(model, text, sp, prompts, seeds, frames=7, h=16, w=16, steps=20, guidance=4.0, length=24, shift=3.0,
             before=None):
    """Latents of clips. before (b, 16, k, h, w): latents that a window in mid-clip begins with, as long video has them:
    each step sees them one step cleaner than the rest; they come first in the result."""
    dev = next(model.parameters()).device
    sched = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    sched.set_timesteps(steps)
    z = torch.stack([torch.randn((16, frames, h, w), generator=torch.Generator().manual_seed(int(s))) for s in seeds]).to(dev)
    ids = token_rows(sp, list(prompts) + [""] * len(prompts)).to(dev)
    rows, _ = D.text_rows(text, ids)
    bias = pad_bias(ids, torch.full((len(ids),), length))
    k = 0 if before is None else before.shape[2]
    own = torch.Generator().manual_seed(int(seeds[0]) + 1)
    blur = torch.randn((len(z), 16, k, h, w), generator=own).to(dev)
    for i, t in enumerate(sched.timesteps):
        x = z if before is None else torch.cat(((1 - sched.sigmas[i + 1]) * before + sched.sigmas[i + 1] * blur, z), 2)
        v = D.forward(model, torch.cat((x, x)), t.expand(len(ids)).float().to(dev), rows, bias)
        c, u = v[:, :, k:].chunk(2)
        z = sched.step(u + guidance * (c - u), t, z, return_dict=False)[0]
    return z if before is None else torch.cat((before, z), 2)


@torch.no_grad()
def middles(vae, stats, combos, sizes, seed, given=3):
    """The normalised latents of drawn clips of 37 frames up to the fifth, of which the last `given` (none of them a
    clip's first) begin a window in mid-clip, and the two before those, which only the decoder is shown."""
    rng = np.random.default_rng(seed)
    s = lambda k: torch.tensor(stats[k]).view(1, 16, 1, 1, 1)
    z = torch.cat([V.encode(vae, clips.draw(c, q, rng, 37)[None])[0][:, :, :2 + given] for c, q in zip(combos, sizes)])
    return ((z - s("mean")) / s("std")).split((2, given), 2)


@torch.no_grad()
def decode(vae, z, stats):
    s = lambda k: torch.tensor(stats[k], device=z.device).view(1, 16, 1, 1, 1)
    out = [V.decode(vae, a[None] * s("std") + s("mean")).clamp(-1, 1)[0] for a in z]
    return [((v.permute(1, 2, 3, 0) + 1) * 127.5).round().byte().cpu().numpy() for v in out]


def grid(videos, path, at=(0, 6, 12, 18, 24), cols=4):
    from PIL import Image
    rows = [np.concatenate([v[min(i, len(v) - 1)] for i in at if i < len(v) or i == 0], 1) for v in videos]
    per = -(-len(rows) // cols)
    blank = np.zeros_like(rows[0])
    rows += [blank] * (per * cols - len(rows))
    img = np.concatenate([np.concatenate(rows[c * per:(c + 1) * per], 0) for c in range(cols)], 1)
    Image.fromarray(img).save(path)


def plain_prompt(c, size):
    return f"a {size} {c[0]} {c[1]} {c[2]} on a {c[3]} background"


def score(videos, combos):
    hit, wrong = {k: 0 for k in ("colour", "shape", "motion", "ground")}, []
    confuse = []
    iou = []
    for v, c in zip(videos, combos):
        r = read(v)
        iou.append(r["iou"])
        for k, a in zip(hit, c):
            hit[k] += r[k] == a
            if r[k] != a:
                wrong.append(f"{a}->{r[k]}")
    parts = {k: round(100 * a / len(combos), 1) for k, a in hit.items()}
    parts["torn"] = round(100 * float(np.mean(np.array(iou) < 0.6)), 1)
    return parts, float(np.mean(iou)), wrong


def choose(n, held, seed):
    rng = np.random.default_rng(seed)
    c = clips.combos(held)
    return [c[i] for i in rng.permutation(len(c))[:n]], [str(s) for s in rng.choice(["small", "big"], n)]


if __name__ == "__main__":
    import sentencepiece as spm
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="work")
    ap.add_argument("--n", type=int, default=32)
    ap.add_argument("--held", action="store_true")
    ap.add_argument("--frames", type=int, default=7, help="latent frames")
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--h", type=int, default=16)
    ap.add_argument("--w", type=int, default=16)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--guidance", type=float, default=4.0)
    ap.add_argument("--shift", type=float, default=3.0)
    ap.add_argument("--middle", action="store_true", help="windows in mid-clip after three latents of a drawn clip")
    ap.add_argument("--raw", action="store_true", help="the weights themselves, not their average")
    ap.add_argument("--bf16", action="store_true", help="round the weights to bfloat16 first")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--png", default="")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    s = torch.load(os.path.join(a.out, "dit.pt"), weights_only=False, map_location="cpu")
    model, text, vae = D.make_dit(**D.size(s["model"])), D.make_text(), V.make()
    model.load_state_dict(s["model"]); text.load_state_dict(s["text"])
    if not a.raw:
        for p, e in zip(list(model.parameters()) + list(text.parameters()), s["ema"]):
            p.data.copy_(e)
    vae.load_state_dict(torch.load(os.path.join(a.out, "vae.pt"), weights_only=False)["model"])
    if a.bf16:
        for m in (model, text, vae):
            for p in m.parameters():
                p.data = p.data.bfloat16().float()
    stats = json.load(open(os.path.join(a.out, "stats.json")))
    stats["std"] = [max(x, D.STD_FLOOR) for x in stats["std"]]
    sp = spm.SentencePieceProcessor(model_file=os.path.join(a.out, "tokenizer", "spiece.model"))
    combos, sizes = choose(a.n, a.held, a.seed)
    t0 = time.time()
    how = dict(steps=a.steps, guidance=a.guidance, shift=a.shift)
    first, before = middles(vae, stats, combos, sizes, a.seed) if a.middle else (None, None)
    z = []
    for i in range(0, a.n, 16):
        n = slice(i, min(i + 16, a.n))
        z.append(generate(model, text, sp, [plain_prompt(c, q) for c, q in zip(combos[n], sizes[n])],
                          range(a.seed * 1000 + i, a.seed * 1000 + n.stop), a.frames - 3 * a.middle, a.h, a.w,
                          length=a.length, before=before[n] if a.middle else None, **how))
    z = torch.cat(z)
    videos = decode(vae, torch.cat((first, z), 2) if a.middle else z, stats)
    if a.middle:
        videos = [v[-4 * (a.frames - 3):] for v in videos]  # the frames that the model made
    acc, iou, wrong = score(videos, combos)
    print(f"step {s['step']} held {a.held} n {a.n} latent frames {a.frames}: {acc} worst view {iou:.3f} ({time.time()-t0:.0f} s)")
    print("  wrong:", " ".join(wrong))
    if a.png:
        grid(videos[:32], a.png)
