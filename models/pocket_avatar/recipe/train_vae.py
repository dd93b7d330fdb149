"""Fine-tune the pocket model's VAE on drawn faces for a given number of minutes; run again with the same folder to go on."""
import argparse, math, os, time
import numpy as np
import torch
from safetensors.torch import load_file
import common as C
import face as F, sound as S, vae as V
from muon import Muon

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--minutes", type=float, default=25)
ap.add_argument("--pictures", type=float, default=0.4, help="share of the steps on single pictures")
ap.add_argument("--long", type=float, default=0.5, help="share of the time after which long clips join in")
ap.add_argument("--kl", type=float, default=3e-4, help="weight of the KL divergence summed over channels")
ap.add_argument("--lr", type=float, default=0.01, help="of Muon")
ap.add_argument("--weights", default=C.POCKET, help="the exported model to begin with")
ap.add_argument("--decoder", action="store_true", help="train the decoder alone: encoded streams stay valid")
ap.add_argument("--features", action="store_true", help="give mouth and eyes more weight")
ap.add_argument("--threads", type=int, default=1, help="several only help where no one else computes")
args = ap.parse_args()
torch.set_num_threads(args.threads)
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "vae.pt")
model = V.make()
model.load_state_dict({k: v.float() for k, v in load_file(
    os.path.join(args.weights, "vae", "diffusion_pytorch_model.safetensors")).items()})
for p in model.parameters():
    if p.ndim == 5:
        p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
if args.decoder:
    for part in (model.encoder, model.quant_conv):
        part.requires_grad_(False)
weight = torch.ones(1, 1, 1, F.SIZE, F.SIZE)
if args.features:
    for rows, columns in ((slice(36, 60), slice(27, 69)), (slice(62, 90), slice(32, 64))):  # the eyes, the mouth
        weight[..., rows, columns] = 5
weight /= weight.mean()
wide = [p for p in model.parameters() if p.ndim >= 2 and p.numel() > max(p.shape)]
opt = Muon(wide, [p for p in model.parameters() if not (p.ndim >= 2 and p.numel() > max(p.shape))], lr=args.lr,
           other_lr=args.lr / 20)
step, clock = 0, C.Clock()
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    model.load_state_dict(s["model"]); opt.load_state_dict(s["opt"])
    step, clock = s["step"], C.Clock(s["spent"])
rng = np.random.default_rng(1000 + step)
torch.manual_seed(step)
ALL = F.looks()


def sample(frames, r):
    sound, state, gesture = S.drawn(r, 4)
    moves = F.motion(sound, state, gesture)
    # Windows begin with a latent frame, and so do blinks; half of them show one if the stream has any.
    begins = np.arange(0, len(state) - frames + 1, 4)
    blinks = [k for k in begins if gesture[k + 1:k + frames, 0].any()]
    at = int(r.choice(blinks if blinks and r.random() < 0.5 else begins))
    return F.draw(ALL[r.integers(len(ALL))], {k: v[at:at + frames] for k, v in moves.items()})


def pictures(count):
    """Single pictures of different moments."""
    out = []
    while len(out) < count:
        sound, state, gesture = S.drawn(rng, 4)
        moves = F.motion(sound, state, gesture)
        at = rng.permutation(len(state))[:4]
        out += list(F.draw(ALL[rng.integers(len(ALL))], {k: v[at] for k, v in moves.items()}).split(1, 1))
    return torch.stack(out)


@torch.no_grad()
def psnr():
    r, out = np.random.default_rng(7), []
    for _ in range(4):
        x = sample(21, r)[None]
        y = V.decode(model, V.encode(model, x)[0]).clamp(-1, 1)
        out.append((x - y).square().mean().item())
    C.grid([C.to_bytes(v[0])[::3] for v in (x, y)], os.path.join(args.out, "vae.png"))
    return 10 * math.log10(4 / np.mean(out))


def save():
    C.write(path, dict(model=model.state_dict(), opt=opt.state_dict(), step=step, spent=clock.spent))


# The pictures of a stream's later frames depend on more frames than those of its first ones.
MIX = ((0.5, 0.3, 0.2, 0, 0), (0.2, 0.15, 0.15, 0.35, 0.15))  # how often clips of 5, 9, 13, 25, 37 pictures
saved, log, total = time.time(), [], args.minutes * 60
while clock.tick() < total:
    f = clock.spent / total
    frames = 1 if rng.random() < args.pictures else int(rng.choice((5, 9, 13, 25, 37), p=MIX[f > args.long]))
    x = pictures(8) if frames == 1 else torch.stack([sample(frames, rng) for _ in range(2 if frames == 5 else 1)])
    x = x.contiguous(memory_format=torch.channels_last_3d)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean, logvar = V.encode(model, x)
        mean, logvar = mean.float(), logvar.float().clamp(-20, 10)
        y = V.decode(model, mean + torch.randn_like(mean) * (0.5 * logvar).exp())
    d = y.float() - x
    grad = (d.diff(dim=-1).abs() * weight[..., 1:]).mean() + (d.diff(dim=-2).abs() * weight[..., 1:, :]).mean()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
    loss = (weight * (d.abs() + 0.5 * d.square())).mean() + 0.5 * grad + args.kl * kl
    opt.zero_grad()
    loss.backward()
    opt.step(min(1, (step + 1) / 30) * max(0.01, 1 if f < 0.4 else 0.5 * (1 + math.cos(math.pi * (f - 0.4) / 0.6))))
    step += 1
    log.append((loss.item(), d.square().mean().item(), kl.item()))
    if step % 20 == 0:
        a, b, c = np.mean(log, 0)
        log = []
        print(f"step {step} min {clock.spent / 60:.1f} loss {a:.4f} psnr {10 * math.log10(4 / b):.2f} kl {c:.1f}", flush=True)
    if time.time() - saved > 90:
        save()
        print(f"  clips: {psnr():.2f} dB", flush=True)
        saved = time.time()
        clock.last = saved
save()
print(f"done: {psnr():.2f} dB")
