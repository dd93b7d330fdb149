"""Train the transformer and the text encoder for a given number of minutes; run again with the same folder to go on."""
import argparse, glob, os, time
import numpy as np
import torch
import common as C
import avatar as A, face as F, sound as S
from muon import Muon

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--minutes", type=float, default=120)
ap.add_argument("--decay", type=float, default=0.35, help="last share of the time, in which the rate falls to zero")
ap.add_argument("--batch", type=int, default=3, help="streams of a step")
ap.add_argument("--blocks", type=int, default=6, help="blocks of a stream")
ap.add_argument("--lr", type=float, default=0.02, help="of Muon; a twentieth of it is Adam's")
ap.add_argument("--average", type=float, default=0.995)
ap.add_argument("--weights", default=C.POCKET, help="the exported model to begin with")
ap.add_argument("--threads", type=int, default=1, help="several only help where no one else computes")
args = ap.parse_args()
torch.set_num_threads(args.threads)
path = os.path.join(args.out, "avatar.pt")
model = A.exported(args.weights)
named = list(model.named_parameters())
adam = ("shared", "embed_tokens", "relative", "proj_out", "patch", "text_embedder", "SelfAttention", "DenseReluDense")
matrices = [p for n, p in named if p.ndim == 2 and not any(k in n for k in adam)]
known = {id(p) for p in matrices}
params = [p for _, p in named]
opt = Muon(matrices, [p for p in params if id(p) not in known], lr=args.lr, other_lr=args.lr / 20)
step, clock = 0, C.Clock()
average = [p.detach().clone() for p in params]
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    model.load_state_dict(s["model"]); opt.load_state_dict(s["opt"])
    average, step, clock = s["average"], s["step"], C.Clock(s["spent"])
rng = np.random.default_rng(9000 + step)
torch.manual_seed(step)
stats = torch.load(os.path.join(args.out, "stats.pt"))
ALL = F.looks()
shards = {}


def rescan():
    for f in sorted(glob.glob(os.path.join(args.out, "latents", "*.pt"))):
        if f not in shards:
            shards[f] = torch.load(f)
            print("  loaded", os.path.basename(f), flush=True)


def batch():
    """The first blocks of streams: one that began later would lack what its first block saw."""
    z, signal, looks = [], [], []
    for _ in range(args.batch):
        d = shards[list(shards)[rng.integers(len(shards))]]
        i = int(rng.integers(len(d["z"])))
        z.append(C.clip_rows(d["z"][i, :, :C.BLOCK * args.blocks].float(), stats))
        heard = d["signal"][i, :C.BLOCK * args.blocks]
        signal.append(torch.from_numpy(S.varied(heard.reshape(-1, S.COLUMNS).numpy(), rng)).reshape(heard.shape))
        looks.append(F.caption(ALL[int(d["look"][i])]))
    return torch.stack(z), torch.stack(signal), A.captions(looks)


def save():
    C.write(path, dict(model=model.state_dict(), opt=opt.state_dict(), average=average, step=step, spent=clock.spent))


def moving():
    """[12, 12], 1 in the mean: how much each place of the latents moves. The mouth and the eyes, which take few places,
    so count for more than the ground and the hair."""
    d = next(iter(shards.values()))["z"].float()
    m = d.std(2).mean((0, 1))
    m = 1 + 3 * m / m.max()
    return m / m.mean()


rescan()
weight = moving()
saved, log, total = time.time(), {t: [] for t in C.TIMES}, args.minutes * 60
while clock.tick() < total:
    f = clock.spent / total
    z, signal, ids = batch()
    noise = torch.randn_like(z)
    # The last step hardly changes the picture, so it is seen least.
    t = rng.choice(C.TIMES, p=(0.25, 0.35, 0.35, 0.05))
    x = (1 - t / 1000) * z + t / 1000 * noise
    with torch.autocast("cpu", dtype=torch.bfloat16):
        v = model(x, torch.full((len(z),), float(t)), signal, model.rows(ids))
    loss = ((v.float() - (noise - z)).square() * weight).mean()
    for p in params:
        p.grad = None
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 2.0)
    opt.step(min(1, (step + 1) / 60) * min(1, (1 - f) / args.decay))
    step += 1
    k = min(args.average, (step + 1) / (step + 20))
    with torch.no_grad():
        torch._foreach_lerp_(average, [p.detach() for p in params], 1 - k)
    log[t].append(loss.item())
    if step % 20 == 0:
        print(f"step {step} min {clock.spent / 60:.1f} " +
              " ".join(f"{t:.0f}:{np.mean(v):.4f}" for t, v in log.items() if v), flush=True)
        log = {t: [] for t in C.TIMES}
        rescan()
    if time.time() - saved > 60:
        save()
        saved = time.time()
save()
print("done", step)
