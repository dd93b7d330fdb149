"""Draw streams with sound that was never trained on, and read them back: does the mouth follow the sound?"""
import argparse, json, os
import numpy as np
import torch
from safetensors.torch import load_file
import common as C
import avatar as A, dit as D, face as F, read_face as R, sound as S, vae as V

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--weights", default="", help="an exported folder, instead of the averaged weights in --out")
ap.add_argument("--streams", type=int, default=6)
ap.add_argument("--blocks", type=int, default=6)
ap.add_argument("--seed", type=int, default=5, help="its sound is none of training's, whose seeds are below a million")
ap.add_argument("--png", default="", help="write a strip of one more stream, which speaks, listens and is idle")
ap.add_argument("--threads", type=int, default=1)
args = ap.parse_args()
torch.set_num_threads(args.threads)
N = 12 * S.HOP  # samples of a block
TEXTS = ("Hello, my name is Pocket, and I move my mouth as you hear me speak.", "One two three four five, once I caught a fish alive.")


def load():
    """The model, the VAE and the latents' statistics."""
    vae = V.make()
    if args.weights:
        vae.load_state_dict({k: v.float() for k, v in load_file(
            os.path.join(args.weights, "vae", "diffusion_pytorch_model.safetensors")).items()})
        config = json.load(open(os.path.join(args.weights, "vae", "config.json")))
        print(args.weights)
        return A.exported(args.weights), vae, {k: torch.tensor(config["latents_" + k]) for k in ("mean", "std")}
    read = lambda name: torch.load(os.path.join(args.out, name), weights_only=False)
    s = read("avatar.pt")
    model = A.Avatar(**D.size({k[4:]: v for k, v in s["model"].items() if k.startswith("dit.")}))
    for p, value in zip(model.parameters(), s["average"]):
        p.data.copy_(value)
    vae.load_state_dict(read("vae.pt")["model"])
    print("step", s["step"])
    return model, vae, read("stats.pt")


def acted(rng, kinds, real=None):
    """A stream of blocks of the given states, as S.drawn gives one: samples, the state of each picture, and its gestures.
    The voice is `real`, samples of speech, or made up."""
    s, kinds = np.zeros(len(kinds) * N), np.asarray(kinds)
    edges = [0, *np.flatnonzero(np.diff(kinds)) + 1, len(kinds)]
    for a, b in zip(edges, edges[1:]):
        if kinds[a] == 2:
            voice = S.speech(rng, (b - a) * N) if real is None else real[:(b - a) * N]
            s[a * N:a * N + len(voice)] = voice
    state = np.repeat(kinds, 12)[3:]
    return np.round(s.clip(-1, 1) * 32767)[3 * S.HOP:] / 32768, state, S.gestures(S.chance(rng), state)


def stream(look, sound, state, gesture, seed):
    """What the model draws, uint8 [pictures, 96, 96, 3]."""
    signal = torch.from_numpy(S.latent_rows(S.rows(sound, state, gesture)))[None]
    with torch.inference_mode():
        z = A.sample(model, signal, model.rows(A.captions([F.caption(look)])), torch.Generator().manual_seed(seed))
        return C.to_bytes(V.decode(vae, C.vae_rows(z, stats))[0])


def read(look, sound, state, gesture, pictures):
    skin, hair, ground, mood = look
    middle = pictures[len(pictures) // 2]
    return dict(state=state, gesture=gesture, loud=S.loudness(sound)[:len(state)] * (state == 2),
                open=np.array([R.opening(p) for p in pictures]), lids=np.array([R.lids(p) for p in pictures]),
                gaze=np.array([R.gaze(p) or 0 for p in pictures]),
                moved=np.abs(np.diff(pictures.astype(float), axis=0, prepend=pictures[:1])).mean((1, 2, 3)),
                right=np.array([a == b for a, b in zip(R.colours(middle) + (R.mood(pictures),), (ground, hair, skin, mood))]))


def follows(found, lag):
    """The correlation of the mouth with the sound `lag` pictures before, within streams, over speaking pictures."""
    a, b = [], []
    for f in found:
        k = np.arange(5, len(f["state"]) - 5)
        k = k[(f["state"][k] == 2) & (f["state"][k - lag] == 2)]
        a, b = a + list(f["open"][k]), b + list(f["loud"][k - lag])
    return np.corrcoef(a, b)[0, 1] if len(a) > 2 and np.std(a) > 0 and np.std(b) > 0 else float("nan")


def report(name, found):
    by_lag = {k: follows(found, k) for k in range(-5, 6)}
    best = max(by_lag, key=lambda k: np.nan_to_num(by_lag[k], nan=-2))
    print(f"{name}: mouth and loudness {by_lag[0]:.3f}, best {by_lag[best]:.3f} where the mouth is {best} pictures late; "
          "of %d: ground %d, hair %d, skin %d, mood %d" % (len(found), *sum(f["right"] for f in found)))
    join = lambda key: np.concatenate([f[key] for f in found])
    state, opened, moved = join("state"), join("open"), join("moved")
    told, lids, gaze = join("gesture"), join("lids"), join("gaze")
    shut = told[:, 0] > 0
    # The two middle pictures of a blink, which takes the four of a latent frame, are shut.
    begins = [np.flatnonzero(np.diff(f["gesture"][:, 0], prepend=0) > 0) for f in found]
    blinks = [f["lids"][k + 1:k + 3].min() for f, b in zip(found, begins) for k in b]
    aside = np.abs(told[:, 1]) > 0
    print(f"  blinks {np.sum(np.array(blinks) > 0.5)} of {len(blinks)} told, {np.mean(lids[~shut] > 0.5):.1%} of the other pictures shut")
    if aside.any():
        right = np.sign(gaze[aside]) * (np.abs(gaze[aside]) > 0.4) == told[aside, 1]
        print(f"  gaze right in {right.mean():.1%} of {aside.sum()} pictures that look aside")
    for i, kind in enumerate(S.STATES):
        at = state == i
        if at.any():
            print(f"  {kind}: {at.sum()} pictures, opening {opened[at].mean():.3f}, above 0.15 in {np.mean(opened[at] > 0.15):.1%}, "
                  f"motion {moved[at].mean():.2f} levels a picture")


def strip(path, pictures, f):
    """Every second picture, a row for each state; below each the sound (gray) and the mouth's opening (red)."""
    rows = []
    for i in (2, 1, 0):
        at = np.flatnonzero(f["state"] == i)[:24]
        top = np.concatenate(list(pictures[at[::2]]), 1)
        plot = np.full((48, top.shape[1], 3), 255, np.uint8)
        at = at[np.minimum(np.arange(plot.shape[1]) // (F.SIZE // 2), len(at) - 1)]
        up = 47 - np.arange(48)[:, None]
        plot[up < 44 * f["loud"][at]] = 180
        plot[np.abs(up - 44 * f["open"][at].clip(0, 1)) < 1.5] = (210, 30, 30)
        rows.append(np.pad(np.concatenate([top, plot]), ((0, 0), (0, 12 * F.SIZE - top.shape[1]), (0, 0)), constant_values=255))
    C.grid([[r] for r in rows], path)


model, vae, stats = load()
rng, looks = np.random.default_rng(10 ** 6 + args.seed), F.looks()
drawn, made = [], []
for i in range(args.streams):
    look = looks[rng.integers(len(looks))]
    # Half of the streams speak throughout; the others go through the three states.
    kinds = [2] * args.blocks if i % 2 == 0 else [(2, 1, 0)[(k * 3 // args.blocks + i // 2) % 3] for k in range(args.blocks)]
    sound, state, gesture = acted(rng, kinds)
    made.append(read(look, sound, state, gesture, stream(look, sound, state, gesture, args.seed + i)))
    drawn.append(read(look, sound, state, gesture, C.to_bytes(F.draw(look, F.motion(sound, state, gesture)))))
report("made-up voices", made)
report("the same, drawn without the model", drawn)
voices = [v for v in map(S.spoken, TEXTS) if v is not None]
if voices:
    found = []
    for i, voice in enumerate(voices):
        look = looks[rng.integers(len(looks))]
        sound, state, gesture = acted(rng, [2] * args.blocks, voice * 0.1 / voice.std())
        found.append(read(look, sound, state, gesture, stream(look, sound, state, gesture, args.seed + 100 + i)))
    report("espeak-ng", found)
if args.png:
    look = looks[rng.integers(len(looks))]
    sound, state, gesture = acted(rng, [2, 2, 1, 1, 0, 0])
    pictures = stream(look, sound, state, gesture, args.seed)
    strip(args.png, pictures, read(look, sound, state, gesture, pictures))
