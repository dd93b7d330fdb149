"""Read a face's mouth, gaze, lids, mood and colours from its pixels, by plain measurements at known places.
Run it to see how well it reads drawn faces, blurred ones, and those of a VAE."""
import numpy as np
import face as F

LIPS, INSIDE = (170, 62, 66), (46, 12, 18)
EYES = (slice(38, 58), (slice(28, 45), slice(51, 68)))  # of both heads' heights


def colour_of(pixels, names):
    middle = np.median(pixels.reshape(-1, 3), 0)
    return min(names, key=lambda n: np.abs(middle - names[n]).sum())


def colours(picture):
    """Ground, hair, skin."""
    return (colour_of(picture[4:40, 2:10], F.GROUNDS), colour_of(picture[8:18, 40:56], F.HAIRS),
            colour_of(picture[56:64, 28:36], F.SKINS))


def share(pixels, ground, paint):
    """How much of a paint covers each pixel of a ground, 0 to 1, [h, w]."""
    way = np.subtract(paint, ground).astype(float)
    return np.clip((pixels.astype(float) - ground) @ way / (way @ way), 0, 1)


def opening(picture):
    """0 to about 1, from the height of the mouth's dark inside in the middle columns."""
    light = picture[62:86, 45:51].astype(float).sum(-1)
    rows = np.clip((200 - light) / 84, 0, 1).sum(0).mean()
    return rows / 15


def shape(picture):
    """-1 round to 1 wide, from the width of the mouth; it means something where the mouth is open."""
    skin = F.SKINS[colours(picture)[2]]
    part = picture[66:79, 33:63].astype(float)
    far = lambda c: np.square(part - c).sum(-1)
    half = (np.minimum(far(LIPS), far(INSIDE)) < far(skin)).any(0).sum() / 2 - 1.5
    return float(np.clip((half - 9.5) / (3.5 if half > 9.5 else 4.0), -1, 1))


def whites(picture, side):
    return share(picture[EYES[0], EYES[1][side]], F.SKINS[colours(picture)[2]], (248, 248, 248)) > 0.5


def lids(picture):
    """0 open to 1 shut, from the area of the whites; a VAE that smears a blink over its neighbours makes less of it."""
    return float(np.clip(1 - (whites(picture, 0).sum() + whites(picture, 1).sum()) / 130, 0, 1))


def shut(picture):
    return whites(picture, 0).sum() + whites(picture, 1).sum() < 18


def gaze(picture):
    """Where the pupils are between the ends of the whites: -1 left ... 1 right; None with the lids shut."""
    if shut(picture):
        return None
    out = []
    for side in (0, 1):
        white = whites(picture, side)
        dark = (picture[EYES[0], EYES[1][side]].max(-1) < 90) & (np.arange(20)[:, None] > 6)
        if white.sum() > 4 and dark.sum() > 2:
            out.append(np.nonzero(dark)[1].mean() - np.nonzero(white)[1].mean())
    return float(np.clip(np.mean(out) / 5, -1, 1)) if out else None


def height(part):
    return (part * np.arange(len(part))[:, None]).sum() / (part.sum() + 1e-6)


def unlike_skin(picture, rows, columns):
    """How unlike the skin a region is, 0 to 1, [h, w]. A VAE may lose the red of lips, but not that they are there."""
    far = np.abs(picture[rows, columns].astype(float) - F.SKINS[colours(picture)[2]]).sum(-1)
    return np.clip((far - 36) / 54, 0, 1)


def bend(picture):
    """How much higher the corners of the mouth are than its middle, in pixels; from a picture with the mouth shut."""
    lips = unlike_skin(picture, slice(65, 80), slice(34, 62))
    return height(lips[:, 11:17]) - (height(lips[:, 5:8]) + height(lips[:, 20:23])) / 2


def frown(picture):
    """How much lower the inner ends of the brows are than the outer ones, in pixels; the fringe takes some off."""
    left, right = (unlike_skin(picture, slice(34, 45), columns) for columns in (slice(29, 44), slice(52, 67)))
    return (height(left[:, 10:14]) + height(right[:, 1:5]) - height(left[:, 2:6]) - height(right[:, 9:13])) / 2


def mood(pictures):
    """Of a stream: from those of its pictures whose mouth is least open."""
    order = sorted(pictures, key=opening)[:max(1, len(pictures) // 5)]
    b, f = (np.median([measure(p) for p in order]) for measure in (bend, frown))
    return "happy" if b > 0.4 else "stern" if b < -0.6 or f > 0.4 else "calm"


def blurred(pictures, width=0.8):
    """The pictures through a small Gaussian."""
    k = np.exp(-0.5 * (np.arange(-3, 4) / width) ** 2)
    out = pictures.astype(float)
    for axis in (1, 2):
        n = out.shape[axis]
        padded = np.pad(out, [(3, 3) if a == axis else (0, 0) for a in range(4)], mode="edge")
        out = sum(w * padded.take(range(j, j + n), axis) for j, w in enumerate(k / k.sum()))
    return np.round(out).astype(np.uint8)


def report(name, clips):
    """clips: (pictures, look, moves) each."""
    read = [(opening(p), o, shape(p), w, gaze(p), g, lids(p), shut(p), s) for ps, _, m in clips
            for p, o, w, g, s in zip(ps, m["open"], m["shape"], m["gaze"], m["shut"])]

    def agree(pairs):
        a, b = np.array(list(pairs)).T
        return np.corrcoef(a, b)[0, 1] if a.std() > 0 and b.std() > 0 else float("nan")

    right = sum(np.array([a == b for a, b in zip(colours(ps[0]) + (mood(ps),), (l[2], l[1], l[0], l[3]))]) for ps, l, _ in clips)
    print(f"{name}: opening {agree((r[0], r[1]) for r in read):.3f} "
          f"(mean error {np.mean([abs(r[0] - r[1]) for r in read]):.3f}), "
          f"shape {agree((r[2], r[3]) for r in read if r[1] > 0.2):.3f}, "
          f"gaze {agree((r[4], r[5]) for r in read if r[4] is not None):.3f}, lids {agree((r[6], r[8]) for r in read):.3f}, "
          f"of {sum(r[8] > 0.7 for r in read)} shut pictures {sum(r[7] and r[8] > 0.7 for r in read)} read as shut, "
          f"of {sum(r[8] <= 0.7 for r in read)} others {sum(r[7] and r[8] <= 0.7 for r in read)}; "
          "of %d: ground %d, hair %d, skin %d, mood %d" % (len(clips), *right), flush=True)


if __name__ == "__main__":
    import argparse, os
    import torch
    import common as C
    import sound as S, vae as V
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="work")
    ap.add_argument("--clips", type=int, default=24)
    args = ap.parse_args()
    torch.set_num_threads(1)
    rng, looks, drawn = np.random.default_rng(700078), F.looks(), []
    for _ in range(args.clips):
        look = looks[rng.integers(len(looks))]
        sound, state, gesture = S.drawn(rng, 4)
        moves = F.motion(sound, state, gesture)
        drawn.append((F.draw(look, moves), look, moves))
    clips = [(C.to_bytes(x), look, moves) for x, look, moves in drawn]
    report("drawn", clips)
    report("blurred", [(blurred(p), look, moves) for p, look, moves in clips])
    path = os.path.join(args.out, "vae.pt")
    if os.path.exists(path):
        vae = V.make()
        vae.load_state_dict(torch.load(path, weights_only=False)["model"])
        with torch.inference_mode():
            report("VAE", [(C.to_bytes(V.decode(vae, V.encode(vae, x[None])[0])[0]), look, moves)
                           for x, look, moves in drawn])
