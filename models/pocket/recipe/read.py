"""A small reader: colour, ground, shape and motion of a decoded clip (frames, height, width, 3) in 0..255."""
import numpy as np
import torch
import clips


def nearest(table, rgb):
    return min(table, key=lambda k: np.abs(np.array(table[k]) - rgb).sum())


_templates = {}


def template(shape, size=48):
    if shape not in _templates:
        c = torch.arange(size) + 0.5 - size / 2
        for s in clips.SHAPES:
            _templates[s] = {}
        r = np.linspace(4, 22, 73)
        for s in clips.SHAPES:
            m = [clips.coverage(s, c[None, :].expand(size, size), c[:, None].expand(size, size), float(q)).numpy() for q in r]
            _templates[s] = [(a.sum(), a) for a in m]
    return _templates[shape]


def shape_of(cov):
    """cov: (h, w) in [0, 1], the shape anywhere (wrapped round): best overlap with the five shapes of equal area."""
    h, w = cov.shape
    cx, cy, area = centre(cov)
    cov = np.roll(cov, (int(h // 2 - round(cy)), int(w // 2 - round(cx))), (0, 1))
    f = max(1.0, np.sqrt(area / (np.pi * 14 ** 2)))  # shrink big ones
    t = torch.from_numpy(cov)[None, None].float()
    t = torch.nn.functional.interpolate(t, scale_factor=1 / f, mode="bilinear", antialias=True, align_corners=False)[0, 0].numpy()
    s = 48
    pad = max(0, s + 8 - t.shape[0]), max(0, s + 8 - t.shape[1])
    t = np.pad(t, ((pad[0] // 2 + 1, pad[0] // 2 + 1), (pad[1] // 2 + 1, pad[1] // 2 + 1)))
    y0, x0 = (t.shape[0] - s) // 2, (t.shape[1] - s) // 2
    best = {}
    for name in clips.SHAPES:
        area = t.sum()
        tm = min(template(name), key=lambda a: abs(a[0] - area))[1]
        best[name] = max(np.minimum(tm, v).sum() / np.maximum(tm, v).sum()
                         for dy in range(-3, 4) for dx in range(-3, 4)
                         for v in [t[y0 + dy:y0 + dy + s, x0 + dx:x0 + dx + s]])
    return best


def centre(cov):
    h, w = cov.shape
    sx, sy = cov.sum(0), cov.sum(1)
    ax, ay = 2 * np.pi * (np.arange(w) + 0.5) / w, 2 * np.pi * (np.arange(h) + 0.5) / h
    cx = np.arctan2((sx * np.sin(ax)).sum(), (sx * np.cos(ax)).sum()) % (2 * np.pi) / (2 * np.pi) * w
    cy = np.arctan2((sy * np.sin(ay)).sum(), (sy * np.cos(ay)).sum()) % (2 * np.pi) / (2 * np.pi) * h
    return cx, cy, cov.sum()


def read(v):
    v = np.asarray(v, dtype=np.float64)
    t, h, w, _ = v.shape
    edge = np.concatenate([v[:, :3].reshape(-1, 3), v[:, -3:].reshape(-1, 3), v[:, :, :3].reshape(-1, 3), v[:, :, -3:].reshape(-1, 3)])
    bg = np.median(edge, 0)
    dist = np.abs(v - bg).sum(-1)
    top = np.quantile(dist.reshape(t, -1), 0.99, axis=1).max()
    if top < 60:
        return dict(ground=nearest(clips.GROUNDS, bg), colour=None, shape=None, motion=None, iou=0.0)
    fg = np.median(v[dist > 0.7 * top], 0)
    d = fg - bg
    cov = np.clip(((v - bg) @ d) / (d @ d), 0, 1)
    cov[cov < 0.25] = 0
    c = np.array([centre(f) for f in cov])
    area = c[:, 2] + 1e-6
    out = dict(ground=nearest(clips.GROUNDS, bg), colour=nearest(clips.COLOURS, fg))
    x, y = np.unwrap(c[:, 0] / w * 2 * np.pi) / (2 * np.pi), np.unwrap(c[:, 1] / h * 2 * np.pi) / (2 * np.pi)
    if t >= 5:
        g = np.median(area[-3:]) / np.median(area[:3])
        dx, dy = x[-1] - x[0], y[-1] - y[0]
        rx, ry = np.ptp(x), np.ptp(y)
        if g > 2.2 or g < 1 / 2.2:
            out["motion"] = "growing" if g > 1 else "shrinking"
        elif min(rx, ry) > 0.22:
            out["motion"] = "circling"
        elif max(abs(dx), abs(dy)) > 0.15:
            out["motion"] = ("moving right" if dx > 0 else "moving left") if abs(dx) > abs(dy) else ("moving down" if dy > 0 else "moving up")
        elif max(rx, ry) < 0.12:
            out["motion"] = "standing still"
        else:
            out["motion"] = "?"
    else:
        out["motion"] = None
    pick = np.argsort(area)[::-1][:max(1, t // 2)][:: max(1, t // 10)]
    score = {s: 0.0 for s in clips.SHAPES}
    for i in pick:
        for s, q in shape_of(cov[i]).items():
            score[s] += q / len(pick)
    out["shape"] = max(score, key=score.get)
    out["iou"] = score[out["shape"]]
    return out


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    good = {k: 0 for k in ("colour", "shape", "motion", "ground")}
    n = 60
    for _ in range(n):
        c = clips.combos()[rng.integers(1000)]
        v = (clips.draw(c, rng.choice(["small", "big"]), rng).permute(1, 2, 3, 0).numpy() + 1) * 127.5
        r = read(v)
        for k, a in zip(good, c):
            good[k] += r[k] == a
            if r[k] != a: print(c, k, r)
    print({k: a / n for k, a in good.items()})
