"""Train the DiT and the text encoder together for a given number of minutes; run again with the same folder to resume."""
import argparse, glob, json, os, subprocess, sys, time
import numpy as np
import sentencepiece as spm
import torch
import torch.distributed as dist
import clips, dit as D
from muon import Muon
from sample import token_rows, pad_bias

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--minutes", type=float, default=90)
ap.add_argument("--until", type=float, default=0, help="seconds since the epoch: end by then instead")
ap.add_argument("--pictures", type=float, default=20, help="minutes on single pictures first")
ap.add_argument("--decay", type=float, default=0.35, help="last fraction of the time, in which the rate falls to zero")
ap.add_argument("--tokens", type=int, default=5376, help="tokens of a step")
ap.add_argument("--crops", type=float, default=0.55, help="fraction of the steps on crops around the shape")
ap.add_argument("--early", type=float, default=0.2, help="fraction of the clips seen in almost pure noise")
ap.add_argument("--average", type=float, default=0.998)
ap.add_argument("--lr", type=float, default=0.02, help="of Muon; a twentieth of it is Adam's")
ap.add_argument("--init", default="", help="a checkpoint whose weights to start from")
ap.add_argument("--layers", type=int, default=0, help="blocks of the DiT; those that --init lacks begin as nothing")
ap.add_argument("--heads", type=int, default=4, help="attention heads of 32 channels, without --init")
ap.add_argument("--thin", type=float, default=0, help="share of the clips of other shapes than --favour passed over")
ap.add_argument("--favour", default="star,ring", help="shapes that are hard to draw")
ap.add_argument("--whole", type=float, default=0.75, help="share of batches that begin with their clips; others may begin in mid-clip")
ap.add_argument("--compile", action="store_true")
ap.add_argument("--threads", type=int, default=1, help="of each process")
ap.add_argument("--port", type=int, default=29517)
ap.add_argument("--ranks", type=int, default=2, help="processes that share a step (on a CPU)")
args = ap.parse_args()
rank = int(os.environ.get("POCKET_RANK", 0))
if rank == 0:
    for r in range(1, args.ranks):
        subprocess.Popen([sys.executable] + sys.argv, start_new_session=True, env={**os.environ, "POCKET_RANK": str(r)})
torch.set_num_threads(args.threads)
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")  # TF32 where there is a GPU
if args.ranks > 1:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % args.port, rank=rank, world_size=args.ranks)
path = os.path.join(args.out, "dit.pt")
sp = spm.SentencePieceProcessor(model_file=os.path.join(args.out, "tokenizer", "spiece.model"))
stats = json.load(open(os.path.join(args.out, "stats.json")))
MEAN = torch.tensor(stats["mean"], device=dev).view(1, 16, 1, 1, 1)
STD = torch.tensor([max(x, D.STD_FLOOR) for x in stats["std"]], device=dev).view(1, 16, 1, 1, 1)
start_from = path if os.path.exists(path) else args.init
first = torch.load(start_from, weights_only=False, map_location=dev) if start_from else {}
if first:
    if start_from == args.init and args.layers > D.size(first["model"])["num_layers"]:
        first["model"] = D.deepen(first["model"], args.layers)
    model = D.make_dit(**D.size(first["model"])).to(dev)
else:
    model = D.make_dit(num_layers=args.layers or 6, num_attention_heads=args.heads, ffn_dim=128 * args.heads).to(dev)
text = D.make_text().to(dev)
params = list(model.parameters()) + list(text.parameters())
matrices = [p for n, p in list(model.named_parameters()) + list(text.named_parameters())
            if p.ndim == 2 and not any(k in n for k in ("shared", "embed_tokens", "relative", "proj_out", "patch",
                                                           "text_embedder", "SelfAttention", "DenseReluDense"))]
ids = {id(p) for p in matrices}
opt = Muon(matrices, [p for p in params if id(p) not in ids], lr=args.lr, other_lr=args.lr / 20)
step, spent = 0, 0.0
if first:
    model.load_state_dict(first["model"]); text.load_state_dict(first["text"])
ema = [p.detach().clone() for p in params]
if start_from == path:
    opt.load_state_dict(first["opt"])
    ema, step, spent = first["ema"], first["step"], first["spent"]
del first
rng, both = np.random.default_rng(9000 + step + 100000 * rank), np.random.default_rng(step)
torch.manual_seed(step * 10 + rank)
ALL, SIZE = clips.combos(), list(clips.SIZES)
if args.compile:
    import torch._dynamo
    torch._dynamo.config.recompile_limit = 32
    compiled = torch.compile(D.block, dynamic=True)
shards, groups = set(), {}


def rescan():
    fresh = []
    found = [sorted(glob.glob(os.path.join(args.out, "latents", "*.pt")))]
    if args.ranks > 1:
        dist.broadcast_object_list(found)
    for f in found[0]:
        if f not in shards:
            shards.add(f)
            d = torch.load(f)
            groups.setdefault(tuple(d["z"].shape[2:]), []).append(d)
            fresh.append(f"{os.path.basename(f)} {tuple(d['z'].shape)}")
    if fresh and rank == 0:
        print("  loaded", "; ".join(fresh), flush=True)


def pick(frames, h, w, crop=0):
    """A batch of windows of so many latent frames (mostly whole clips, else windows of longer ones), at which latent
    frame each begins, and the captions. crop: only so many latents each way, somewhere on the shape."""
    n = max(1, round(args.tokens / args.ranks / (frames * (crop * crop or h * w) / 4)))
    longer = [g for g in groups if g[1:] == (h, w) and g[0] > frames > 1]
    whole = (frames, h, w) in groups and (rng.random() < args.whole or not longer)
    src = groups[(frames, h, w) if whole else longer[rng.integers(len(longer))]]
    sizes = np.array([len(d["z"]) for d in src])
    where = rng.choice(len(src), n, p=sizes / sizes.sum())
    z, begin, caps = [], [], []
    for k in where:
        d = src[k]
        i = int(rng.integers(len(d["z"])))
        while ALL[int(d["combo"][i])][1] not in args.favour.split(",") and rng.random() < args.thin:
            i = int(rng.integers(len(d["z"])))
        at = int(rng.integers(0, d["z"].shape[2] - frames + 1))
        one = d["z"][i, :, at:at + frames]
        if crop:
            f = one[:, int(rng.integers(frames))].float()
            e = (f - f.flatten(1).median(1).values[:, None, None]).square().sum(0).flatten().numpy() + 1e-6
            y, x = divmod(int(rng.choice(h * w, p=e / e.sum())), w)
            y = min(max(y - int(rng.integers(0, crop)), 0), h - crop)
            x = min(max(x - int(rng.integers(0, crop)), 0), w - crop)
            one = one[:, :, y:y + crop, x:x + crop]
        z.append(one)
        begin.append(at)
        caps.append("" if rng.random() < 0.1 else clips.caption(ALL[int(d["combo"][i])], SIZE[int(d["size"][i])], rng))
    return torch.stack(z).to(dev).float(), torch.tensor(begin, device=dev), caps


def save():
    torch.save(dict(model=model.state_dict(), text=text.state_dict(), opt=opt.state_dict(), ema=ema, step=step,
                    spent=spent), path + ".tmp")
    os.replace(path + ".tmp", path)


def once(z, begin, caps, fn, local=False):
    """The loss of one batch. local: less noise, since only the shape's near surroundings are in sight.
    A window that begins in mid-clip is trained as a long video uses it: its first one to three latents are the end of
    the block before, one step of the sampler cleaner, and nobody asks what the model makes of them. So nothing
    teaches it to begin a clip with a latent that only the middle of a clip has."""
    x0 = (z - MEAN) / STD
    b = len(x0)
    noise = torch.randn_like(x0)
    u = torch.sigmoid(torch.randn(b, device=dev))
    u = torch.where(torch.rand(b, device=dev) < 0.15, torch.rand(b, device=dev), u)
    t = 3 * u / (1 + 2 * u)
    if z.shape[2] > 1:  # what is in a clip shows through all but the strongest noise: that is where the text must decide
        t = torch.where(torch.rand(b, device=dev) < args.early, 1 - 0.08 * torch.rand(b, device=dev).square(), t)
    if local:
        t = torch.sigmoid(torch.randn(b, device=dev) - 0.3).clamp(max=0.85)
    given = torch.randint(1, 4, (b,), device=dev).clamp(max=max(1, z.shape[2] // 2)) * begin.gt(0)
    given = torch.arange(z.shape[2], device=dev) < given[:, None]  # (b, f)
    cleaner = (t / (3 - 2 * t) - 0.05).clamp(min=0)
    cleaner = 3 * cleaner / (1 + 2 * cleaner)
    tt = torch.where(given, cleaner[:, None], t[:, None]).view(b, 1, -1, 1, 1)
    asked = (~given).float().view(b, 1, -1, 1, 1)
    tok = token_rows(sp, caps).to(dev)
    rows, _ = D.text_rows(text, tok)
    length = torch.where(torch.rand(b, device=dev) < 0.2, 512, 24)
    v = D.forward(model, (1 - tt) * x0 + tt * noise, t * 1000, rows, pad_bias(tok, length), fn)
    return ((v - (noise - x0)).square() * asked).mean() / asked.mean()


rescan()
start = last = t_save = time.time()
total = spent + (args.until - start) if args.until else args.minutes * 60
if args.ranks > 1:
    agreed = torch.tensor(total, dtype=torch.float64)
    dist.broadcast(agreed, 0)
    total = agreed.item()
log = {}
while spent < total:
    f = spent / total
    squares = [g for g in groups if g[1:] == (16, 16)]
    if spent < args.pictures * 60 or not any(g[0] == 7 for g in squares):
        odd = [g for g in groups if g[0] == 1 and g[1:] != (16, 16)]
        shape = odd[both.integers(len(odd))] if odd and both.random() < 0.08 else (1, 16, 16)
    else:
        odd = [g for g in groups if g[0] == 7 and g[1:] != (16, 16)]
        u = both.random()
        shape = ((1, 16, 16) if u < 0.06 else (4, 16, 16) if u < 0.22 else (7, 16, 16) if u < 0.84 else
                 (10, 16, 16) if u < 0.90 else (16, 16, 16) if u < 0.95 else odd[both.integers(len(odd))] if odd else (7, 16, 16))
    crop = 8 if both.random() < args.crops * min(1, (1 - f) / 0.2) and shape[1:] == (16, 16) and 1 < shape[0] < 10 else 0
    try:
        window = pick(*shape, crop)
    except (KeyError, IndexError, ValueError):
        window = pick(7, 16, 16)
    loss = once(*window, compiled if args.compile else D.block, crop > 0)
    opt.zero_grad()
    loss.backward()
    now = time.time()
    spent, last = spent + min(now - last, 120), now
    if args.ranks > 1:
        flat = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in params] +
                         [torch.tensor([spent])])
        dist.all_reduce(flat)
        flat /= args.ranks
        at = 0
        for p in params:
            p.grad = flat[at:at + p.numel()].view_as(p)
            at += p.numel()
        spent = flat[-1].item()
    torch.nn.utils.clip_grad_norm_(params, 2.0)
    lr = min(1, (step + 1) / 60) * min(1, (1 - f) / args.decay)
    opt.step(lr)
    step += 1
    k = min(args.average, (step + 1) / (step + 20))
    with torch.no_grad():
        torch._foreach_lerp_(ema, [p.detach() for p in params], 1 - k)
    log.setdefault(f"{shape[0]}{'c' if crop else ''}", []).append(loss.item())
    if step % 50 == 0 and rank == 0:
        print(f"step {step} min {spent/60:.1f}/{total/60:.1f} lr {lr:.3f} " +
              " ".join(f"{k}:{np.mean(v):.4f}({len(v)})" for k, v in sorted(log.items())), flush=True)
        log = {}
    if step % 50 == 0:
        rescan()
    if rank == 0 and now - t_save > 150:
        save(); t_save = now
if rank == 0:
    save()
    print("done", step)
