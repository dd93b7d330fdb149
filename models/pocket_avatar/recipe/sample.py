"""Draw streams with sound that was never trained on, and read them back: does the mouth follow the sound?"""
import argparse, os
import numpy as np
import torch
import common as C
import avatar as A, dit as D, face as F, read_face as R, sound as S, vae as V

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--streams", type=int, default=6)
ap.add_argument("--blocks", type=int, default=8)
ap.add_argument("--seed", type=int, default=5, help="training has seeds above 1000")
ap.add_argument("--png", default="")
ap.add_argument("--threads", type=int, default=1)
args = ap.parse_args()
torch.set_num_threads(args.threads)
s = torch.load(os.path.join(args.out, "avatar.pt"), weights_only=False)
model = A.Avatar(**D.size({k[4:]: v for k, v in s["model"].items() if k.startswith("dit.")}))
for p, value in zip(model.parameters(), s["average"]):
    p.data.copy_(value)
stats = torch.load(os.path.join(args.out, "stats.pt"))
vae = V.make()
vae.load_state_dict(torch.load(os.path.join(args.out, "vae.pt"), weights_only=False)["model"])


def stream(look, seed):
    """The sound, the state of each picture and the pictures of a stream."""
    rng = np.random.default_rng(seed)
    sound, state = S.drawn(rng, args.blocks)
    signal = torch.from_numpy(S.latent_rows(S.rows(sound, state)))[None]
    with torch.no_grad():
        text = model.rows(A.captions([F.caption(look)]))
        z = A.sample(model, signal, text, torch.Generator().manual_seed(seed))[0]
        return sound, state, C.to_bytes(V.decode(vae, C.vae_rows(z, stats)[None])[0])


def correlation(a, b):
    return np.corrcoef(a, b)[0, 1] if np.std(a) > 1e-6 and np.std(b) > 1e-6 else float("nan")


def lagged(opening, loud):
    """The correlation with the sound, and by how many pictures the mouth is late where that is largest."""
    by_lag = {k: correlation(opening[5 + k:len(opening) - 5 + k], loud[5:-5]) for k in range(-5, 6)}
    return by_lag[0], max(by_lag, key=lambda k: np.nan_to_num(by_lag[k], nan=-1))


rng, looks = np.random.default_rng(args.seed), F.looks()
right, opened, heard, rest, rows = 0, [], [], [], []
for i in range(args.streams):
    look = looks[rng.integers(len(looks))]
    sound, state, pictures = stream(look, args.seed * 100 + i)
    opening = np.array([R.opening(p) for p in pictures])
    loud, speaks = S.loudness(sound)[:len(pictures)], np.asarray(state) == 2
    opened.append(opening[speaks])
    heard.append(loud[speaks])
    rest.append(opening[~speaks])
    skin, hair, ground, mood = look
    right += np.array([a == b for a, b in zip(R.colours(pictures[-1]) + (R.mood(pictures),), (ground, hair, skin, mood))])
    rows.append([pictures[k] for k in range(0, len(pictures), max(1, len(pictures) // 12))][:12])
at_once, lag = lagged(np.concatenate(opened), np.concatenate(heard))
print(f"step {s['step']}: mouth and loudness {at_once:.3f}, lag {lag} pictures; open at rest {np.concatenate(rest).mean():.3f}, "
      f"speaking {np.concatenate(opened).mean():.3f}; of {args.streams}: ground %d, hair %d, skin %d, mood %d" % tuple(right))
if args.png:
    C.grid(rows, args.png)
