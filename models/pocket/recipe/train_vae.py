"""Train the VAE for a given number of minutes; run again with the same folder to resume."""
import argparse, math, os, subprocess, sys, time
import numpy as np
import torch
import torch.distributed as dist
import clips, vae as V
from muon import Muon

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--minutes", type=float, default=25)
ap.add_argument("--pictures", type=float, default=0.4, help="fraction of the time spent on single pictures")
ap.add_argument("--long", type=float, default=0.5, help="fraction of the time after which longer clips join in")
ap.add_argument("--kl", type=float, default=3e-4, help="weight of the KL divergence summed over channels")
ap.add_argument("--decoder-only", action="store_true", help="leave the encoder, and so the latents, as they are")
ap.add_argument("--threads", type=int, default=1, help="of each process")
ap.add_argument("--ranks", type=int, default=2, help="processes that share a step (on a CPU)")
ap.add_argument("--port", type=int, default=29518)
args = ap.parse_args()
rank = int(os.environ.get("POCKET_RANK", 0))
if rank == 0:
    for r in range(1, args.ranks):
        subprocess.Popen([sys.executable] + sys.argv, start_new_session=True, env={**os.environ, "POCKET_RANK": str(r)})
torch.set_num_threads(args.threads)
dev = "cuda" if torch.cuda.is_available() else "cpu"
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "vae.pt")
if args.ranks > 1:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % args.port, rank=rank, world_size=args.ranks)
torch.manual_seed(0)
model = V.make().to(dev)
for p in model.parameters():
    if p.ndim == 5:
        p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
opt = Muon([p for p in model.parameters() if p.ndim >= 2 and p.numel() > max(p.shape)],
           [p for p in model.parameters() if not (p.ndim >= 2 and p.numel() > max(p.shape))])
step, spent = 0, 0.0
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    model.load_state_dict(s["model"])
    if "opt" in s:  # not where from_export.py made the checkpoint
        opt.load_state_dict(s["opt"])
        step, spent = s["step"], s["spent"]
if args.decoder_only:
    for m in (model.encoder, model.quant_conv):
        m.requires_grad_(False)
rng, both = np.random.default_rng(1000 + step + 100000 * rank), np.random.default_rng(step)
torch.manual_seed(step * 10 + rank)
params = [p for p in model.parameters() if p.requires_grad]
ALL = clips.combos()


def save():
    torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), step=step, spent=spent), path + ".tmp")
    os.replace(path + ".tmp", path)


def sample(frames, whole):
    combo, size = ALL[rng.integers(len(ALL))], rng.choice(["small", "big"])
    w, h = 128, 128
    if whole:
        w, h = [(128, 128), (128, 128), (96, 128), (128, 96), (160, 160)][WH]
    total = 25 if frames == 1 else max(frames, int(rng.choice([13, 25, 25, 61])))
    skip = int(rng.integers(0, max(total - frames, 0) + 1))
    return clips.draw(combo, size, rng, frames, w, h, total, crop=0 if whole else 64, skip=skip)


@torch.no_grad()
def psnr(n=3):
    r, vals = np.random.default_rng(7), []
    for _ in range(n):
        c = ALL[r.integers(len(ALL))]
        x = clips.draw(c, r.choice(["small", "big"]), r)[None].to(dev)
        y = V.decode(model, V.encode(model, x)[0]).clamp(-1, 1)
        vals.append(10 * math.log10(4 / (x - y).square().mean().item()))
    return sum(vals) / n, min(vals)


MIX = ((0.33, 0.67, 0, 0, 0), (0.1, 0.45, 0.3, 0.13, 0.02))  # how often clips of 5, 9, 17, 25, 41 frames
last, t_save = time.time(), time.time()
log = []
while spent < args.minutes * 60:
    f = spent / (args.minutes * 60)
    whole = step % 10 == 9
    WH = int(both.integers(5)) if whole else 0
    frames = 1 if f < args.pictures else int(both.choice((5, 9, 17, 25, 41), p=MIX[f > args.long]))
    n = {1: 16, 5: 6, 9: 4, 17: 2, 25: 2, 41: 2}[frames]
    if whole:
        frames = min(frames, 17)
        n = {1: 4, 5: 2, 9: 2, 17: 2}[frames]
    n = max(1, n // args.ranks)
    x = torch.stack([sample(frames, whole) for _ in range(n)]).to(dev).contiguous(memory_format=torch.channels_last_3d)
    mean, logvar = V.encode(model, x)
    logvar = logvar.clamp(-20, 10)
    y = V.decode(model, mean + torch.randn_like(mean) * (0.5 * logvar).exp())
    d = y - x
    grad = d.diff(dim=-1).abs().mean() + d.diff(dim=-2).abs().mean()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
    loss = d.abs().mean() + 0.5 * d.square().mean() + 0.5 * grad + args.kl * min(1, 0.05 + f / 0.2) * kl
    opt.zero_grad()
    loss.backward()
    now = time.time()
    spent, last = spent + min(now - last, 30), now
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
    lr = min(1, (step + 1) / 50) * (1 if f < 0.45 else 0.5 * (1 + math.cos(math.pi * (f - 0.45) / 0.55)))
    opt.step(max(lr, 0.005))
    step += 1
    log.append((loss.item(), d.square().mean().item(), kl.item()))
    if step % 50 == 0 and rank == 0:
        a, b, c = np.mean(log, 0); log = []
        print(f"step {step} min {spent/60:.2f} lr {lr:.3f} frames {frames} loss {a:.4f} psnr~ {10*math.log10(4/b):.2f} kl {c:.1f}", flush=True)
    if rank == 0 and now - t_save > 150:
        save(); t_save = time.time()
        a, b = psnr(); last = time.time()
        print(f"  clips: psnr mean {a:.2f} min {b:.2f}", flush=True)
if rank == 0:
    save()
    print("  done: psnr mean %.2f min %.2f over 12 clips" % psnr(12))
