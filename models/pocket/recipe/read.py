"""A small reader: colour, ground, shape and motion of a decoded clip (frames, height, width, 3) in 0..255."""
import numpy as np
import torch
import clips


def nearest(table, rgb):
    return min(table, key=lambda k: np.abs(np.array(table[k]) - rgb).sum())


def centre(cov):
    h, w = cov.shape
    sx, sy = cov.sum(0), cov.sum(1)
    ax, ay = 2 * np.pi * (np.arange(w) + 0.5) / w, 2 * np.pi * (np.arange(h) + 0.5) / h
    cx = np.arctan2((sx * np.sin(ax)).sum(), (sx * np.cos(ax)).sum()) % (2 * np.pi) / (2 * np.pi) * w
    cy = np.arctan2((sy * np.sin(ay)).sum(), (sy * np.cos(ay)).sum()) % (2 * np.pi) / (2 * np.pi) * h
    return cx, cy, cov.sum()


AREA = {"ball": np.pi, "square": 3.24, "ring": 0.8736 * np.pi, "triangle": 1.08 * 3 ** 0.5, "star": 2.278}  # at radius 1


def views(frames):
    """The six frames of a clip that are looked at one by one."""
    return [i * (frames - 1) // 5 for i in range(6)] if frames > 5 else list(range(frames))


def fit(mask):
    """mask: bool (h, w). For each shape the best intersection over union with an ideal one of any centre (wrapped
    round) and radius, found by climbing from the mask's centroid and area. Every pixel of the mask counts."""
    h, w = mask.shape
    out = dict.fromkeys(clips.SHAPES, 0.0)
    if not mask.any():
        return out
    mask = torch.from_numpy(np.ascontiguousarray(mask))
    area = int(mask.sum())
    cx, cy, _ = centre(mask.numpy().astype(float))
    px, py = torch.arange(w) + 0.5, torch.arange(h) + 0.5
    move = torch.tensor([[0, 0, 0]] + [[s if k == a else 0 for k in range(3)] for a in range(3) for s in (-1, 1)])
    for shape in clips.SHAPES:
        at, best = torch.tensor([cx, cy, (area / AREA[shape]) ** 0.5]), -1.0
        for step in (6.0, 3.0, 1.5, 0.75, 0.4):
            for _ in range(12):
                tries = at + move * step
                tries[:, 2].clamp_(2, 0.42 * min(h, w))  # no clip has a larger shape
                x, y, r = (tries[:, k].view(-1, 1, 1) for k in range(3))
                near = float(tries[:, 2].max()) * 1.3 + step + 1  # no shape reaches farther
                dx, dy = torch.remainder(px - x + w / 2, w) - w / 2, torch.remainder(py - y[..., 0] + h / 2, h)[..., None] - h / 2
                cols, rows = (dx.abs() < near).any(0)[0], (dy.abs() < near).any(0)[:, 0]
                ideal = clips.coverage(shape, dx[:, :, cols].expand(-1, int(rows.sum()), -1),
                                       dy[:, rows].expand(-1, -1, int(cols.sum())), r) > 0.5
                both = (ideal & mask[rows][:, cols]).flatten(1).sum(1)
                iou = both / (ideal.flatten(1).sum(1) + area - both)
                k = int(iou.argmax())
                if float(iou[k]) <= best:
                    break
                at, best = tries[k], float(iou[k])
                if k == 0:
                    break
        out[shape] = best
    return out


def read(v):
    v = np.asarray(v, dtype=np.float64)
    t, h, w, _ = v.shape
    edge = np.concatenate([v[:, :3].reshape(-1, 3), v[:, -3:].reshape(-1, 3), v[:, :, :3].reshape(-1, 3), v[:, :, -3:].reshape(-1, 3)])
    bg = np.median(edge, 0)
    dist = np.abs(v - bg).sum(-1)
    top = np.quantile(dist.reshape(t, -1), 0.99, axis=1).max()
    if top < 60:
        return dict(ground=nearest(clips.GROUNDS, bg), colour=None, shape=None, motion=None, iou=0.0, views=[0.0], kinds=[None])
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
    apart = np.sqrt(((v - bg) ** 2).sum(-1)) > 0.5 * np.sqrt(d @ d)  # whatever stands out, of any colour
    fits = [fit(apart[i]) for i in views(t)]
    out["views"] = [max(f.values()) for f in fits]
    out["kinds"] = [max(f, key=f.get) for f in fits]
    total = {s: sum(f[s] for f in fits) for s in clips.SHAPES}
    out["shape"] = max(total, key=total.get)
    out["iou"] = min(out["views"])
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
        if min(r["views"]) < 0.9: print(c, "a view of a drawn clip fits badly", r["views"])
        if c[1:3] == ("ring", "standing still"):
            middle = centre(np.abs(v[9] - v[9, 0, 0]).sum(-1) * (np.abs(v[9] - v[9, 0, 0]).sum(-1) > 60))[0]
            v[9, :, int(middle):] = v[9, :, :1]  # the right half of one view is gone
            if read(v)["iou"] >= 0.6: print(c, "half a ring passes", read(v))
    print({k: a / n for k, a in good.items()})
