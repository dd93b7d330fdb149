"""Muon on matrices (momentum, then orthogonalised by Newton-Schulz), Adam on everything else."""
import torch
import torch.distributed as dist


def orthogonalise(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    flip = g.shape[-2] > g.shape[-1]
    x = g.transpose(-1, -2) if flip else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        m = x @ x.transpose(-1, -2)
        x = a * x + (b * m + c * (m @ m)) @ x
    return x.transpose(-1, -2) if flip else x


def shared(g):
    """Orthogonalise a stack, each process its part of it."""
    if not (dist.is_initialized() and len(g) >= 4):
        return orthogonalise(g)
    n, r = dist.get_world_size(), dist.get_rank()
    out = torch.zeros_like(g)
    part = slice(len(g) * r // n, len(g) * (r + 1) // n)
    out[part] = orthogonalise(g[part])
    dist.all_reduce(out)
    return out


class Muon:
    def __init__(self, matrices, others, lr=0.02, other_lr=1e-3, momentum=0.95, weight_decay=0.0):
        self.lr, self.momentum, self.wd = lr, momentum, weight_decay
        self.groups = {}
        for p in matrices:
            self.groups.setdefault((p.shape[0], p[0].numel()), []).append(p)
        self.buf = {k: [torch.zeros_like(p) for p in v] for k, v in self.groups.items()}
        self.adam = torch.optim.Adam(others, lr=other_lr, betas=(0.9, 0.98))
        self.other_lr = other_lr

    def zero_grad(self):
        for ps in self.groups.values():
            for p in ps:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self, scale=1.0):
        for (rows, cols), ps in self.groups.items():
            live = [(p, b) for p, b in zip(ps, self.buf[(rows, cols)]) if p.grad is not None]
            if not live:
                continue
            ups = []
            for p, b in live:
                b.mul_(self.momentum).add_(p.grad, alpha=1 - self.momentum)
                ups.append((p.grad * (1 - self.momentum) + b * self.momentum).reshape(rows, cols))
            o = shared(torch.stack(ups)) * max(1.0, rows / cols) ** 0.5
            for (p, _), u in zip(live, o):
                if self.wd:
                    p.mul_(1 - self.lr * scale * self.wd)
                p.add_(u.reshape(p.shape), alpha=-self.lr * scale)
        for g in self.adam.param_groups:
            g["lr"] = self.other_lr * scale
        self.adam.step()

    def state_dict(self):
        return {"buf": {str(k): v for k, v in self.buf.items()}, "adam": self.adam.state_dict()}

    def load_state_dict(self, s):
        for k in self.buf:
            for d, v in zip(self.buf[k], s["buf"][str(k)]):
                d.copy_(v)
        self.adam.load_state_dict(s["adam"])
