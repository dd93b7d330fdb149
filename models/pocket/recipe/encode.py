"""Draw clips and encode them once: shards of normalised-later latents in OUT/latents, statistics in OUT/stats.json."""
import argparse, json, os, time
import numpy as np
import torch
import clips, vae as V

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--scale", type=float, default=1.0, help="how many times the default number of clips")
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--fine", action="store_true",
                help="for training on from exported weights: few pictures, and the hard clips (stars, rings, circles) more often")
args = ap.parse_args()
torch.set_num_threads(args.threads)
dev = "cuda" if torch.cuda.is_available() else "cpu"
# (clips, frames, width, height), in the order in which training wants them
Q = (250, 25, 128, 128)
PLAN = [(80, 25, 128, 128), (2000, 1, 128, 128), (2000, 1, 128, 128), Q, Q, (150, 13, 128, 128), Q, (30, 61, 128, 128),
        (40, 37, 128, 128), (300, 1, 96, 128), (300, 1, 128, 96), (200, 1, 160, 160), Q, (40, 25, 96, 128),
        (40, 25, 128, 96), (30, 25, 160, 160), Q, (2000, 1, 128, 128), (150, 13, 128, 128), Q, (40, 61, 128, 128), Q, Q,
        (40, 37, 128, 128)] + [Q, Q, Q, (40, 25, 96, 128), (40, 25, 128, 96), (30, 25, 160, 160), (40, 61, 128, 128)] * 4
FINE = [Q, (40, 37, 128, 128), (100, 13, 128, 128), (400, 1, 128, 128), Q, (20, 61, 128, 128), (20, 25, 96, 128),
        (20, 25, 128, 96), (20, 25, 160, 160), Q, (40, 37, 128, 128)] + [Q, Q, (40, 37, 128, 128), Q] * 8

model = V.make().to(dev)
model.load_state_dict(torch.load(os.path.join(args.out, "vae.pt"), weights_only=False, map_location=dev)["model"])
for p in model.parameters():
    p.requires_grad_(False)
    if p.ndim == 5:
        p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
lat = os.path.join(args.out, "latents")
os.makedirs(lat, exist_ok=True)
ALL, SIZE = clips.combos(), list(clips.SIZES)
PLACE = {c: i for i, c in enumerate(ALL)}
if args.fine:
    ALL += [c for c in ALL if c[1] in ("star", "ring")] + [c for c in ALL if c[2] == "circling"]
for k, (n, frames, w, h) in enumerate(FINE if args.fine else PLAN):
    name = os.path.join(lat, f"{k:03d}.pt")
    if os.path.exists(name):
        continue
    n, start = max(1, int(n * args.scale)), time.time()
    rng = np.random.default_rng(50000 + k)
    which = np.concatenate([rng.permutation(len(ALL)) for _ in range(n // len(ALL) + 1)])[:n]
    sizes = rng.integers(0, 2, n)
    out = []
    batch = max(1, 64 // frames)
    for i in range(0, n, batch):
        x = [clips.draw(ALL[c], SIZE[s], rng, frames, w, h, 25 if frames == 1 else None,
                        skip=int(rng.integers(0, 25)) if frames == 1 and rng.random() < 0.6 else 0)
             for c, s in zip(which[i:i + batch], sizes[i:i + batch])]
        with torch.inference_mode():
            z = V.encode(model, torch.stack(x).to(dev).contiguous(memory_format=torch.channels_last_3d))[0]
        out.append(z.contiguous().half().cpu())
    z = torch.cat(out)
    torch.save(dict(z=z, combo=torch.tensor([PLACE[ALL[c]] for c in which]), size=torch.tensor(sizes)), name + ".tmp")
    os.replace(name + ".tmp", name)
    if not os.path.exists(os.path.join(args.out, "stats.json")):
        f = z.float().transpose(0, 1).flatten(1)
        stats = dict(mean=f.mean(1).tolist(), std=f.std(1).tolist())
        json.dump(stats, open(os.path.join(args.out, "stats.json"), "w"))
        print([round(a, 3) for a in stats["mean"]], [round(a, 3) for a in stats["std"]])
    print(f"{name} {tuple(z.shape)} {time.time() - start:.1f} s", flush=True)
